"""Visits to hosts: an agent on each, asked for its facts and for its way to the others."""

import contextlib
import os
import secrets
import selectors
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from dtrain.config import Host, NetworkSection
from dtrain.errors import DtrainError
from dtrain_cli.agent.messages import (
    PING_S,
    Answer,
    AskClock,
    Clock,
    Held,
    HoldPorts,
    Listen,
    Listening,
    Look,
    Order,
    Ping,
    Pong,
    Seen,
    Tried,
    Try,
    Welcome,
)
from dtrain_cli.fleet.host_rules import Logins, address_of, unfit
from dtrain_cli.fleet.link import HostError, Link, Opener
from dtrain_cli.survey.findings import HostFound

T = TypeVar("T")
LOGIN_S = 20.0
"""For all logins, and so much more for each dozen of hosts: few are under way at once."""
_LOGIN_S_A_HOST = LOGIN_S / 12
ANSWER_S = 10.0
CONNECT_S = 5.0
_TICK_S = 0.1
_CLOCK_LOOKS = 3
_KEPT = 16


class Visit:
    """The visit to one host: the process that carries its agent's streams, and what it has said."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.begun_s = time.monotonic()
        self.welcome: Welcome | None = None
        self.heard_s = 0.0
        self.answers: deque[Answer] = deque(maxlen=_KEPT)


class Visits:
    """The visits to some hosts. A context manager: leaving it ends them all."""

    def __init__(
        self, opener: Opener, hosts: Sequence[Host], network: NetworkSection, say: Callable[[str], None]
    ) -> None:
        """Prepare; no host is visited before `survey`.

        Args:
            opener: the way to the hosts.
            hosts: to visit.
            network: of the spec.
            say: prints a line while the user waits.
        """
        self._say = say
        self.found = {host.host: HostFound(host.host) for host in hosts}
        self._hosts = {host.host: host for host in hosts}
        self._opener = opener
        self._network = network
        self._visits: dict[str, Visit] = {}
        self._selector = selectors.DefaultSelector()
        self._ping_s = 0.0
        ports = network.port_range
        self._ports = (0, 0) if ports is None else (ports.start, ports.stop - 1)
        self._may_try_again: dict[str, bool] = {}

    def __enter__(self) -> "Visits":
        return self

    def __exit__(self, *_: object) -> None:
        for visit in self._visits.values():
            visit.link.kill()
        self._selector.close()

    def survey(self, folder: Path) -> list[HostFound]:
        """Return the findings about every host; `folder` is what they may see."""
        self._log_in()
        self._look_at_clocks()
        self._look_for(folder)
        self._try_pairs()
        return list(self.found.values())

    def _log_in(self) -> None:
        logins = Logins(self._hosts)
        allowed_s = LOGIN_S + _LOGIN_S_A_HOST * len(self._hosts)
        deadline_s = time.monotonic() + allowed_s
        under_way: set[str] = set()
        while not logins.done and time.monotonic() < deadline_s:
            for host in logins.begin(time.monotonic()):
                try:
                    self._open(host)
                except DtrainError as error:
                    self.found[host].problem = str(error)
                    logins.succeeded(host)
                    continue
                under_way.add(host)
            self._turn(_TICK_S)
            for host in sorted(under_way):
                visit = self._visits.get(host)
                if visit is not None and visit.welcome is None:
                    continue
                under_way.discard(host)
                again = visit is None and self._may_try_again.pop(host, False)
                if not (again and logins.failed(host, time.monotonic())):
                    logins.succeeded(host)
                elif (reason := self.found[host].problem) is not None:
                    self._say(f"{reason}; trying again")
        for host in logins.missing:
            reason = self.found[host].problem or f"{host}: no answer within {allowed_s:.0f} s"
            self.found[host].problem = reason
            if host in self._visits:
                self._end(self._visits[host], reason)

    def _open(self, host: str) -> None:
        visit = Visit(Link(host, self._opener.open(host)))
        self._visits[host] = visit
        self._selector.register(visit.link, selectors.EVENT_READ, visit)

    def _turn(self, wait_s: float) -> None:
        """Read what agents say for some time, and keep their leases."""
        for key, _ in self._selector.select(wait_s):
            self._hear(key.data)
        now_s = time.monotonic()
        if now_s >= self._ping_s:
            self._ping_s = now_s + PING_S
            for visit in self._visits.values():
                if visit.welcome is not None:
                    visit.link.send(Ping(visit.heard_s))
        for visit in self._visits.values():
            visit.link.pump()

    def _hear(self, visit: Visit) -> None:
        host = visit.link.host
        try:
            answers = visit.link.read()
        except HostError as error:
            self._end(visit, str(error))
            return
        for answer in answers:
            if isinstance(answer, Pong | Welcome):
                visit.heard_s = max(visit.heard_s, answer.monotonic_s)
            if isinstance(answer, Welcome):
                self._welcomed(visit, answer)
            else:
                visit.answers.append(answer)
        if visit.link.over:
            reason, again = self._opener.explain(host, visit.link.exit_code(), visit.link.words())
            self._may_try_again[host] = again and visit.welcome is None
            self._end(visit, reason)

    def _welcomed(self, visit: Visit, welcome: Welcome) -> None:
        found = self.found[visit.link.host]
        visit.welcome = welcome
        found.login_s = time.monotonic() - visit.begun_s
        found.python, found.dtrain = welcome.python, welcome.version
        found.problem = unfit(found.host, welcome)
        try:
            alone = len(self._hosts) == 1
            found.address = address_of(self._hosts[found.host], welcome, self._network, alone)
        except HostError as error:
            found.problem = found.problem or str(error)

    def _end(self, visit: Visit, reason: str) -> None:
        host = visit.link.host
        self.found[host].problem = self.found[host].problem or reason
        self._selector.unregister(visit.link)
        visit.link.kill()
        self._visits.pop(host, None)

    def _ask(self, orders: Mapping[str, Order], kind: type[T], timeout_s: float = ANSWER_S) -> dict[str, T]:
        """Return the answers of the hosts that answer in time."""
        for host, order in orders.items():
            if host in self._visits:
                self._visits[host].link.send(order)
        found: dict[str, T] = {}
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for host in orders.keys() - found.keys():
                visit = self._visits.get(host)
                answer = (
                    next((each for each in visit.answers if isinstance(each, kind)), None) if visit else None
                )
                if visit is not None and answer is not None:
                    visit.answers.clear()
                    found[host] = answer
            if all(host in found or host not in self._visits for host in orders):
                break
            self._turn(_TICK_S)
        return found

    def _look_at_clocks(self) -> None:
        """Find the offset of each clock, one host at a time, by the quickest of a few answers."""
        for host in list(self._visits):
            looks = []
            for _ in range(_CLOCK_LOOKS):
                before_s = time.time()
                answer = self._ask({host: AskClock()}, Clock).get(host)
                took_s = time.time() - before_s
                if answer is not None:
                    looks.append((took_s, answer.wall_s - before_s - took_s / 2))
            if looks:
                self.found[host].clock_s = min(looks)[1]

    def _look_for(self, folder: Path) -> None:
        """Put a file into a folder here and ask every host whether it is there."""
        mark = folder / f".dtrain-check-{secrets.token_hex(8)}"
        content = secrets.token_bytes(16)
        try:
            descriptor = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:  # a folder in which nothing can be written
            return
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            for host, seen in self._ask(dict.fromkeys(self._visits, Look(str(mark), content)), Seen).items():
                self.found[host].sees_folder = seen.there
        finally:
            with contextlib.suppress(OSError):
                mark.unlink()

    def _try_pairs(self) -> None:
        """Have each host hold one port, and connect to those of all others."""
        held = self._ask(
            {
                host: HoldPorts(address, 1, *self._ports)
                for host in self._visits
                if (address := self.found[host].address) is not None
            },
            Held,
        )
        addresses: dict[str, str] = {}
        for host, answer in held.items():
            if (reason := answer.lacking(1)) is not None:
                self.found[host].problem = f"{host}: {reason}"
            else:
                addresses[host] = _join(self.found[host].address, answer.ports[0])
        self._ask(dict.fromkeys(addresses, Listen(True)), Listening)
        others = {host: {each: to for each, to in addresses.items() if each != host} for host in addresses}
        orders = {host: Try(list(wanted.values()), CONNECT_S) for host, wanted in others.items() if wanted}
        tried = self._ask(orders, Tried, CONNECT_S + ANSWER_S)
        for host in orders:
            found = tried.get(host)
            for other, address in others[host].items():
                why = "its agent has not answered" if found is None else found.problems.get(address)
                if why is not None:
                    self.found[host].unreached[other] = why


def _join(address: str | None, port: int) -> str:
    assert address is not None
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
