"""The order of logins to many hosts: few at once, and again after a failure that may be chance. Pure.

An sshd refuses logins at random when more than ten are under way (MaxStartups 10:30:100), and sites ban
addresses from which storms of logins come.
"""

from collections.abc import Iterable

AT_ONCE = 8
WAITS_S = (0.3, 0.7, 1.5, 3.0, 5.0)
"""The waits before each new login to a host that may have refused the last one by chance."""
APART_S = 0.05
"""Hosts try again one after the other, by this much."""


class Logins:
    """The logins that are still to be made."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._due_s: dict[str, float] = dict.fromkeys(hosts, 0.0)
        self._failed: dict[str, int] = dict.fromkeys(self._due_s, 0)
        self._place = {host: place for place, host in enumerate(self._due_s)}
        self._under_way: set[str] = set()

    @property
    def done(self) -> bool:
        """Return whether every host has been logged in to."""
        return not self._due_s and not self._under_way

    @property
    def missing(self) -> list[str]:
        """Return the hosts that have not been logged in to."""
        return sorted({*self._due_s, *self._under_way}, key=self._place.__getitem__)

    def begin(self, now_s: float) -> list[str]:
        """Return the hosts to log in to now."""
        room = AT_ONCE - len(self._under_way)
        hosts = [host for host, due_s in self._due_s.items() if now_s >= due_s][:room]
        for host in hosts:
            del self._due_s[host]
        self._under_way |= set(hosts)
        return hosts

    def succeeded(self, host: str) -> None:
        """Note that a login has succeeded."""
        self._under_way.discard(host)

    def failed(self, host: str, now_s: float) -> bool:
        """Note that a login has failed; return whether it is tried again."""
        self._under_way.discard(host)
        count = self._failed[host]
        if count == len(WAITS_S):
            return False
        self._failed[host] = count + 1
        self._due_s[host] = now_s + WAITS_S[count] + APART_S * (self._place[host] % AT_ONCE)
        return True
