"""The `hosts` and `place` of a spec: the machines that tasks may run on, and which task goes where."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dtrain.cluster.host_lists import HOSTS_MAX, NAME_MAX, expand_hosts
from dtrain.config.problems import Problem
from dtrain.errors import SpecError

SPREAD = "spread"
PACK = "pack"
_SLOTS = r"(?::(?P<slots>[0-9]{1,6}))?"
_WORD = re.compile(r"(?P<names>(?:[^,:\[\]]|\[[^\[\]]*\])+)" + _SLOTS)
_IPV6 = re.compile(r"\s*(?P<user>[^,:\[\]\s]+@)?\[(?P<address>[0-9A-Fa-f:.]*:[^,\[\]]*)\]\s*" + _SLOTS)
_NAME = re.compile(r"[A-Za-z0-9_@%.:-]+")
_EXAMPLE = "h1,h2:4 or n[001-003]:4"


@dataclass(frozen=True)
class Host:
    """A machine that tasks may run on.

    Attributes:
        host: its name, as ssh or the engine knows it; a user, a port, a jump or a key stands in ssh's own
            configuration.
        slots: how many tasks it takes at most; None: as many as fall to it.
        address: at which other hosts reach its tasks; None: found out when it is asked.
        spare: whether it gets no task at the start, and takes over those of a host that is lost.
    """

    host: str
    slots: int | None = None
    address: str | None = None
    spare: bool = False

    def __str__(self) -> str:
        user, at, name = self.host.rpartition("@")
        written = f"{user}{at}[{name}]" if ":" in name else self.host
        return written if self.slots is None else f"{written}:{self.slots}"


WrittenHosts = str | tuple[str | Host, ...]
"""A text such as ``h1,h2:4``, or a list of such texts and of hosts."""
Places = str | dict[Literal["chief", "worker", "ps", "evaluator"], str | tuple[str, ...]]
"""For all roles, or for each: `spread`, `pack`, the name of a host, or a list of names."""


def read_hosts(written: WrittenHosts, hosts_max: int = HOSTS_MAX) -> list[Host]:
    """Return the hosts that a spec or an option names, in its order.

    Raises:
        SpecError: it is no such list, has more than `hosts_max` hosts, or a host stands there twice.
    """
    entries = (written,) if isinstance(written, str) else written
    hosts: list[Host] = []
    for entry in entries:
        hosts += _read_words(entry, hosts_max - len(hosts)) if isinstance(entry, str) else [entry]
    for problem in map(_host_problem, hosts):
        if problem is not None:
            raise SpecError(problem)
    if len(hosts) > hosts_max:
        raise SpecError(f"expected at most {HOSTS_MAX} hosts, found more")
    seen: set[str] = set()
    for host in hosts:
        if host.host in seen:
            raise SpecError(f"{host.host} stands there twice; its slots say how many tasks it takes")
        seen.add(host.host)
    return hosts


def hosts_problems(written: WrittenHosts, place: Places) -> Iterator[Problem]:
    """Yield the mistakes in `hosts` and `place` that types do not exclude."""
    names: set[str] | None = None
    wrong = None if isinstance(written, str) else next(_entry_problems(written), None)
    try:
        names = {host.host for host in read_hosts(written) if not host.spare} if wrong is None else None
        if names is not None and written and not names:
            wrong = ("hosts",), "expected a host that is not spare, found none"
    except SpecError as error:
        wrong = ("hosts",), str(error)
    if wrong is not None:
        yield wrong
    if place and not written:
        yield ("place",), "says on which host a task runs, and hosts names none"
    elif isinstance(place, dict):
        for role, rule in place.items():
            yield from ((("place", role), text) for text in _rule_problems(rule, names))
    elif place not in (SPREAD, PACK):
        found = f"a mapping such as {{ps: {SPREAD}, chief: h1}}, found {place[:80]!r}"
        yield ("place",), f"expected {SPREAD}, {PACK}, or {found}"


def _entry_problems(entries: Sequence[str | Host]) -> Iterator[Problem]:
    room = HOSTS_MAX
    for index, entry in enumerate(entries):
        try:
            room -= len(read_hosts((entry,), room))
        except SpecError as error:
            yield ("hosts", index), str(error)


def _read_words(text: str, hosts_max: int) -> Iterator[Host]:
    place = 0
    while True:
        found = _IPV6.match(text, place) or _WORD.match(text, place)
        end = found.end() if found else -1
        if found is None or text[end : end + 1] not in ("", ","):
            brackets = "; an IPv6 address stands in brackets: [fd00::1]:4" if text.count(":") > 1 else ""
            raise SpecError(f"expected hosts such as {_EXAMPLE}, found {text[:80]!r}{brackets}")
        slots = None if found["slots"] is None else int(found["slots"])
        if found.re is _IPV6:
            hosts = [f"{found['user'] or ''}{found['address']}"]
        else:
            hosts = expand_hosts(found["names"].strip(), hosts_max)
        hosts_max -= len(hosts)
        yield from (Host(name, slots) for name in hosts)
        if end == len(text):
            return
        place = end + 1


def _host_problem(host: Host) -> str | None:
    """Return why a host cannot be one; a name with a leading dash would be an option of ssh."""
    for what, name in (("the name of a host", host.host), ("an address", host.address)):
        if name is None:
            continue
        if not _NAME.fullmatch(name) or name.startswith("-") or len(name) > NAME_MAX:
            return f"expected {what} without spaces, slashes or a leading dash, found {name[:80]!r}"
    if host.slots is not None and host.slots < 1:
        return f"expected at least 1 slot for {host.host}, found {host.slots}"
    return None


def _rule_problems(rule: str | tuple[str, ...], names: set[str] | None) -> Iterator[str]:
    if not rule:
        yield f"expected {SPREAD}, {PACK}, a host or a list of hosts, found nothing"
    elif names is not None:
        wanted = rule if isinstance(rule, tuple) else () if rule in (SPREAD, PACK) else (rule,)
        unknown = next((name for name in wanted if name not in names), None)
        if unknown is not None:
            known = ", ".join([*sorted(names)[:8], *(["..."] if len(names) > 8 else [])])
            wanted_there = "none of the hosts that have tasks at the start"
            yield f"{unknown[:80]!r} is {wanted_there}, which are {known}"
