"""The agents of a run: logins, streams, pings, copies of files, and hosts that are lost; one loop, one owner.

`turn` waits for something to happen and returns what is left for its caller: answers, and the fate of hosts.
"""

import math
import select
import time
from collections.abc import Callable, Iterable

import msgspec

from dtrain.errors import RunError
from dtrain_cli.agent import messages
from dtrain_cli.fleet.host_rules import Action, Gone, HostsAlive, LogInAgain, SendPing, unfit
from dtrain_cli.fleet.link import HostError, Link
from dtrain_cli.fleet.mirror import Mirror
from dtrain_cli.targets.ssh import AgentOpener
from dtrain_cli.targets.target import HasFileno, HostNews

_TURN_S = 0.2
_WORDS_MAX = 200


class AgentHost(msgspec.Struct):
    """A host and its agent: when it was greeted (seconds since 1970), and why its stream has ended.

    `offset_s` added to a moment of the host's monotonic clock is the moment here, by its fastest answer.
    """

    link: Link
    begun_s: float = msgspec.field(default_factory=time.monotonic)
    login_s: float = 0.0
    greeted_s: float = 0.0
    welcome: messages.HostFacts | None = None
    offset_s: float = math.inf
    ready: messages.RunReady | None = None
    why: str | None = None

    def heard(self, said_s: float | None, now_s: float) -> None:
        if said_s is not None:
            self.offset_s = min(self.offset_s, now_s - said_s)


class AgentAnswer(msgspec.Struct, frozen=True):
    """An answer of an agent for the owner of the agents."""

    host: str
    answer: messages.Answer


class StreamEnded(msgspec.Struct, frozen=True):
    """The end of an agent's stream; `again` says whether another login may succeed."""

    host: str
    reason: str
    again: bool


News = AgentAnswer | StreamEnded | Gone | HostNews


class Agents:
    """The agents of one run by host, and which hosts are alive.

    The last word of a login is `RunReady`; without `begin` they belong to no run, and it is `HostFacts`.
    """

    def __init__(
        self,
        opener: AgentOpener,
        begin: Callable[[str], messages.BeginRun] | None,
        mirror: Mirror,
        lease_s: float,
    ) -> None:
        self.members: dict[str, AgentHost] = {}
        self.alive = HostsAlive(lease_s)
        self._opener = opener
        self._begin = begin
        self._mirror = mirror
        self._sources: list[HasFileno] = []

    def wake_on(self, source: HasFileno) -> None:
        self._sources.append(source)

    def log_in(self, host: str) -> None:
        """Start a login to a host; `AgentAnswer` with its last word, or `StreamEnded`, follows."""
        if (before := self.members.pop(host, None)) is not None:
            before.link.kill()
        self.members[host] = AgentHost(Link(host, self._opener.open(host)))

    def send(self, host: str, order: messages.Order) -> None:
        member = self.members.get(host)
        if member is not None:
            member.link.send(order)
            member.link.pump()

    def turn(self, until_s: float) -> list[News]:
        """Wait for news until a moment (monotonic), and return them; copied files are written at once."""
        news: list[News] = []
        while True:
            now_s = time.monotonic()
            ready = self._wait(min(until_s, self.alive.next_s(now_s)) - now_s)
            news += self._receive(ready)
            for action in self.alive.due(time.monotonic()):
                news += self._act(action)
            if news or any(source in ready for source in self._sources) or time.monotonic() >= until_s:
                return news

    def _wait(self, wait_s: float) -> list[HasFileno]:
        """Wait for streams and sources that can be read, and return them; write what can be written."""
        links = [member.link for member in self.members.values() if not member.link.over]
        watched: dict[int, HasFileno] = {each.fileno(): each for each in (*self._sources, *links)}
        poll = select.poll()
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        for link in links:
            if link.waiting_bytes:
                poll.register(link.writing_end, select.POLLOUT)
        ready = poll.poll(math.ceil(1000 * max(0.0, wait_s)))
        for link in links:
            link.pump()
        return [watched[descriptor] for descriptor, _ in ready if descriptor in watched]

    def close(self) -> None:
        """End every agent, and with it what it has started; wait for the processes that carried them."""
        self._sources.clear()
        for member in self.members.values():
            member.link.close()
        deadline_s = time.monotonic() + _TURN_S * 5
        while time.monotonic() < deadline_s and any(not m.link.over for m in self.members.values()):
            self._receive(self._wait(_TURN_S))
        while self.members:
            self.members.popitem()[1].link.kill()

    def _receive(self, ready: Iterable[HasFileno]) -> list[News]:
        news: list[News] = []
        for link in ready:
            member = self.members.get(link.host) if isinstance(link, Link) else None
            if member is None or member.link is not link:
                continue
            try:
                for answer in link.read():
                    news += self._handle(link.host, member, answer)
            except HostError as error:
                link.kill()
                member.why = str(error)
            if link.over:
                news += self._ended(link, member)
        return news

    def _handle(self, host: str, member: AgentHost, answer: messages.Answer) -> list[News]:
        if isinstance(answer, messages.HostFacts) != (member.welcome is None):
            raise HostError(
                f"{host}: its agent is not heard any more: it has said {answer!s:.80} out of turn"
            )
        now_s = time.monotonic()
        said_s = answer.monotonic_s if isinstance(answer, messages.Pong | messages.HostFacts) else None
        member.heard(said_s, now_s)
        news: list[News] = [*self.alive.heard(host, now_s, said_s)]  # type: ignore[list-item]
        match answer:
            case messages.Pong():
                pass
            case messages.HostFacts():
                member.welcome = answer
                member.login_s, member.greeted_s = now_s - member.begun_s, time.time()
                if self._begin is None:
                    self.alive.ready(host, answer.monotonic_s, now_s)
                    news.append(AgentAnswer(host, answer))
                elif (reason := unfit(host, answer)) is not None:
                    member.why = reason
                    member.link.close()
                else:
                    self.send(host, self._begin(host))
            case messages.RunReady() if member.ready is None and member.welcome is not None:
                member.ready = answer
                for action in self.alive.ready(host, member.welcome.monotonic_s, now_s):
                    news += self._act(action)
                news.append(AgentAnswer(host, answer))
            case messages.Replaced() | messages.Appended():
                self._mirror.write(host, answer, member.offset_s)
            case messages.Failed(reason=reason):
                member.why = f"{host}: {reason}"
                news.append(AgentAnswer(host, answer))
            case _:
                news.append(AgentAnswer(host, answer))
        return news

    def _ended(self, link: Link, member: AgentHost) -> list[News]:
        code = link.exit_code()
        reason, again = member.why, False
        if reason is None:
            reason, again = self._opener.explain(link.host, code, link.words())
            if link.spoke:
                said = f" ({words[-1]})" if (words := link.words().splitlines()) else ""
                reason, again = f"{link.host}: the connection to its agent has ended{said}", True
        member.why = reason
        link.kill()
        self.alive.cut(link.host, time.monotonic())
        return [StreamEnded(link.host, reason, again)]

    def _act(self, action: Action) -> list[News]:
        match action:
            case SendPing(host=host, heard_s=heard_s):
                self.send(host, messages.Ping(heard_s))
            case LogInAgain(host=host):
                try:
                    self.log_in(host)
                except RunError as error:  # there is no ssh
                    self.alive.cut(host, time.monotonic())
                    return [StreamEnded(host, str(error), again=False)]
            case Gone(host=host, usable=usable):
                if not usable and host in self.members:
                    self.members[host].link.kill()
                return [action]
            case HostNews():
                return [action]
        return []

    def unheard(self, host: str) -> str:
        member = self.members.get(host)
        if member is None or member.link.spoke:
            return f"{host}: its agent has not answered"
        words = member.link.words().splitlines()
        printed = f", which has printed {words[-1][:_WORDS_MAX]!r}," if words else ""
        return f"{host}: the login{printed} has started no agent (does its shell wait for an answer?)"

    def heard_s(self, host: str) -> float:
        """Return the last moment of a host's clock that it has told, by the clock here."""
        member = self.members.get(host)
        if member is None or member.welcome is None:
            return -math.inf
        return self.alive.told_s(host) + member.offset_s

    def up(self, hosts: Iterable[str]) -> list[str]:
        return [host for host in hosts if self.alive.is_heard(host)]
