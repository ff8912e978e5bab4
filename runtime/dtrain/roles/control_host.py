"""Runs the control plane's machine in a task that is no parameter server: its lock and its clock.

It decides nothing. A parameter server needs none of this: its own driver runs the machine with its arrays.
"""

import threading
from collections.abc import Callable, Sequence

from dtrain.cluster import TaskId
from dtrain.control.interface import Action, Decide, End, Note, Send
from dtrain.control.machine import ControlPlane
from dtrain.messages import Commit, Complete, Hello, Refusal, RefusalKind, Subscribe
from dtrain.process.clock import SYSTEM, Clock
from dtrain.runs.events import AnyEvent
from dtrain.wire.channel import Answer, Caller
from dtrain.wire.frames import HEADER_LIMIT_BYTES, Frame, Limits
from dtrain.wire.handshake import refusal

TICK_S = 0.5
"""How late a lease or a deadline may be noticed; the end is noticed at once."""
LIMITS = Limits(HEADER_LIMIT_BYTES, 1 << 20)
"""Of its messages: none has arrays, and that of the leader with the numbers of all epochs may be long."""
UNANSWERED = {Complete: Answer.NONE, Commit: Answer.NONE, Subscribe: Answer.STREAM}
"""Messages that are not answered by exactly one."""


class ControlHandler:
    """Joins the control plane's machine to a service; see `Handler`.

    Attributes:
        control: the machine. Other threads reach it by `ask` alone.
        ended: set when no other task will talk to this one any more, or it has failed.
        leads: whether this task is the one that others ask. One that may lead later sends them on.
        leader: returns who leads, where this task does not and knows it.
    """

    answers_at_once = True

    def __init__(
        self,
        control: ControlPlane,
        hello: Hello,
        *,
        decide: Callable[[Decide], Sequence[Action]],
        note: Callable[[AnyEvent], None] = lambda event: None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Begin without a connection.

        Args:
            decide: carries out a decision in the part of this task that holds arrays; returns what
                follows. It runs under the handler's lock.
        """
        self.control = control
        self.ended = clock.event()
        self.failure: str | None = None
        self.leads = True
        self.leader: Callable[[], str | None] = lambda: None
        self._hello = hello
        self._decide = decide
        self._note = note
        self._clock = clock
        self._lock = threading.RLock()
        self._callers: set[Caller] = set()

    def start(self) -> None:
        """Let time pass for the machine, in a thread of its own, until `ended`."""
        self._clock.start(self._run, "control plane")

    def ask(self, call: Callable[[ControlPlane, float], Sequence[Action]]) -> None:
        """Let the part of this task that holds arrays call the machine, under the lock."""
        with self._lock:
            self._carry_out(call(self.control, self._clock.now()))

    def limits(self, hello: Hello) -> Limits:
        return LIMITS

    def refuse(self, hello: Hello) -> str | None:
        return refusal(self._hello, hello) or self.control.roster.refusal(TaskId.parse(hello.task))

    def received(self, caller: Caller, frame: Frame) -> Answer:
        sender = TaskId.parse(caller.hello.task)
        if not self.leads:
            reason = f"{self._hello.task} does not lead"
            caller.send(Refusal(reason=reason, kind=RefusalKind.NOT_LEADING, leads=self.leader()))
            return Answer.ONE
        with self._lock:
            self._callers.add(caller)
            self.ask(lambda control, now: control.receive(caller, sender, frame.message, now))
        return UNANSWERED.get(type(frame.message), Answer.ONE)

    def disconnected(self, caller: Caller) -> None:
        with self._lock:
            self._callers.discard(caller)
            self.control.disconnected(caller)
            self._end_if_alone()

    def _run(self) -> None:
        while not self.ended.wait(TICK_S):
            self.ask(lambda control, now: control.tick(now))
            with self._lock:
                self._end_if_alone()

    def _end_if_alone(self) -> None:
        """End if no other task is left that will talk to this one."""
        others = sum(caller.hello.task != self._hello.task for caller in self._callers)
        self._carry_out(self.control.end(self._clock.now(), others))

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(caller, message, blocks):
                    # opaque to the machine only
                    caller.send(message, blocks)  # type: ignore[attr-defined]
                case Decide():
                    self._carry_out(self._decide(action))
                case Note(event):
                    self._note(event)
                case End(failed):
                    self.failure = failed
                    self.ended.set()
