"""The start of a fleet: each host is logged in to, gets the code, holds ports, and reaches the others."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TypeAlias, TypeVar

from dtrain.errors import DtrainError
from dtrain_cli.agent import messages
from dtrain_cli.agent.copies import PIECE_BYTES
from dtrain_cli.code import CodeArchive
from dtrain_cli.fleet.agents import AgentAnswer, Agents, News, StreamEnded
from dtrain_cli.fleet.host_rules import AGAIN_S, Gone
from dtrain_cli.fleet.link import HostError
from dtrain_cli.targets.signals import STOP_SIGNALS, SignalInbox, signal_name

T = TypeVar("T")
Reasons: TypeAlias = dict[str, list[str]]
"""Why logins have failed, by host."""
ANSWER_S = 30.0
"""The longest wait for the answer of a host that is up."""
TRY_S = 5.0
_TICK_S = 0.1


class StartInterruptedError(DtrainError):
    """A signal has come before the first task was started."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{signal_name(number)}: stopped before a task was started")
        self.exit_code = 128 + number


class Preparation:
    """The steps of the start, each on all hosts at once.

    A `HostError` says why a host cannot be used; unless all are `needed`: then its reason is kept in `unfit`,
    and the steps go on without it.
    """

    def __init__(
        self, agents: Agents, signals: SignalInbox, say: Callable[[str], None], needed: bool = True
    ) -> None:
        self._agents = agents
        self._signals = signals
        self._say = say
        self._needed = needed
        self.unfit: dict[str, str] = {}

    def log_in(self, hosts: Sequence[str], timeout_s: float) -> None:
        self._agents.alive.expect(hosts, time.monotonic())
        failed: Reasons = {}
        last_word = messages.RunReady if self._needed else messages.HostFacts
        there = self.wait(hosts, last_word, timeout_s, failed)
        again = [f"{host} ({len(reasons) + 1} times)" for host, reasons in failed.items() if host in there]
        if again:
            self._say(f"logged in after several tries: {', '.join(again)}")

    def _give_up(self, host: str, why: str, others: Sequence[str] = ()) -> None:
        if self._needed:
            raise HostError(_and_more(why, others))
        self.unfit.setdefault(host, why)
        self._agents.alive.forget(host)

    def send_code(self, hosts: Sequence[str], archive: CodeArchive) -> None:
        mib = len(archive.data) / (1 << 20)
        self._say(f"sending the code ({mib:.1f} MiB) to {', '.join(hosts)}")
        for host, start in product(hosts, range(0, max(1, len(archive.data)), PIECE_BYTES)):
            end = start + PIECE_BYTES
            part = messages.CodePart(archive.digest, archive.data[start:end], end >= len(archive.data))
            self._agents.send(host, part)
        for host, answer in self.wait(hosts, messages.Done, ANSWER_S + 10 * mib).items():
            if answer.problem is not None:
                raise HostError(f"{host}: {answer.problem}")

    def hold_ports(self, orders: Mapping[str, messages.HoldPorts]) -> dict[str, list[int]]:
        held = self.ask(orders, messages.Held)
        for host, answer in held.items():
            if (reason := answer.lacking(orders[host].count)) is not None:
                self._give_up(host, f"{host}: {reason}")
        return {host: answer.ports for host, answer in held.items() if host not in self.unfit}

    def unreached(self, addresses: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
        """Have each host connect to addresses that others hold; return, by host, why it cannot reach some."""
        self.ask({host: messages.Listen(True) for host in addresses}, messages.Done)
        tries = {host: messages.Try(list(wanted), TRY_S) for host, wanted in addresses.items() if wanted}
        tried = self.ask(tries, messages.Tried)
        self.ask({host: messages.Listen(False) for host in addresses}, messages.Done)
        return {host: dict(answer.problems) for host, answer in tried.items()}

    def try_pairs(self, addresses: Mapping[str, Mapping[str, str]], names: Mapping[str, str]) -> None:
        """Have each host connect to the tasks that it needs on others; `names` is for the message."""
        problems = [
            f"{host} ({names[host]}) cannot reach {addresses[host].get(address)} at {address}: {why}"
            for host, answer in self.unreached({each: list(addresses[each]) for each in addresses}).items()
            for address, why in answer.items()
        ]
        if problems:
            raise HostError(
                f"{problems[0]}{f'; {len(problems) - 1} more pairs likewise' if problems[1:] else ''}; open "
                "these ports in the firewalls (`network.ports` names them), or give `network.interface`"
            )

    def ask(
        self, orders: Mapping[str, messages.Order], kind: type[T], timeout_s: float = ANSWER_S
    ) -> dict[str, T]:
        for host, order in orders.items():
            self._agents.send(host, order)
        return self.wait(list(orders), kind, timeout_s)

    def wait(
        self, hosts: Sequence[str], kind: type[T], timeout_s: float, failed: Reasons | None = None
    ) -> dict[str, T]:
        """Return the answer of each host; `failed` gets why logins have failed that were tried again."""
        deadline_s = time.monotonic() + timeout_s
        answers: dict[str, T] = {}
        while missing := [host for host in hosts if host not in answers and host not in self.unfit]:
            for host in missing if time.monotonic() >= deadline_s else ():
                in_vain = [f"{self._agents.unheard(host)} within {timeout_s:g} s"]
                self._give_up(host, (failed or {}).get(host, in_vain)[-1], missing[1:])
            for news in self._turn():
                if isinstance(news, StreamEnded):
                    tried = [] if failed is None else failed.setdefault(news.host, [])
                    tried.append(news.reason)
                    tries = f"; tried {len(tried)} times" if len(tried) > 1 else ""
                    if failed is None or not news.again or news.host in answers or len(tried) > len(AGAIN_S):
                        self._give_up(news.host, f"{news.reason}{tries}")
                if isinstance(news, Gone):
                    self._give_up(news.host, f"{news.host}: no word of its agent for {news.silent_s:.0f} s")
                if isinstance(news, AgentAnswer) and isinstance(news.answer, messages.Failed):
                    self._give_up(news.host, f"{news.host}: {news.answer.reason}")
                if isinstance(news, AgentAnswer) and isinstance(news.answer, kind):
                    answers[news.host] = news.answer
        return answers

    def _turn(self) -> list[News]:
        """Return the news of a moment, unless a signal has come, here or at an agent."""
        news = self._agents.turn(time.monotonic() + _TICK_S)
        for number in self._signals.read():
            if number in STOP_SIGNALS:
                raise StartInterruptedError(number)
        for each in news:
            if isinstance(each, AgentAnswer) and isinstance(each.answer, messages.Signalled):
                raise StartInterruptedError(each.answer.number)
        return news


def _and_more(reason: str, others: Sequence[str]) -> str:
    return f"{reason}; likewise {', '.join(others[:8])}" if others else reason
