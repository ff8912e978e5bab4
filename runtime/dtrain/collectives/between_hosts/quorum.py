"""Which hosts may go on without the others, so that never two groups do: rule *One decision*
(docs/design/protocol.md#one-decision), for a leader that is one of the hosts.

A host is *gone* when all its processes have certainly ended, which is final, and the asking host was in
contact with it up to then: within a lease it, or the leader on its behalf, was heard to go on with the asking
host. It is *silent* when its lease has run out: it may be dead, or behind a link that is cut and still
connected to others; or it has ended since, and may have gone on without the asking host before. Where no host
is silent, all that live are here, and go on, however few. Otherwise more than half of the members must be
present, or half with the leader among them: of two such groups that have no host in common, one would be too
small. A host that is gone counts as a member here, for it may have agreed to another group before its end.
"""

from collections.abc import Collection


def may_go_on(members: Collection[int], present: Collection[int], gone: Collection[int], leader: int) -> bool:
    """Return whether the hosts `present` may go on alone.

    Args:
        members: of the newest membership that all present hosts have heard of.
        present: those that are heard of, the asking one included.
        gone: hosts that have certainly ended; some may not be known.
        leader: of that membership.
    """
    there = set(members) & set(present)
    if set(members) <= there | set(gone):
        return True
    return 2 * len(there) > len(members) or (2 * len(there) == len(members) and leader in there)


_HOSTS_MAX = 1 << 10
_ATTEMPTS_MAX = 1 << 20


def next_term(newest: int, host: int) -> int:
    """Return the term of a host that begins to lead: above `newest`, and never another host's."""
    return (newest // _HOSTS_MAX + 1) * _HOSTS_MAX + host


def leader_of(term: int) -> int:
    """Return the host that leads in a term; for term 0, in which no host has led yet, the first one."""
    return term % _HOSTS_MAX


def first_attempt(term: int) -> int:
    """Return the number of a leader's first attempt: above all those of earlier terms."""
    return term * _ATTEMPTS_MAX
