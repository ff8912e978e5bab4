"""The thread that keeps a task's lease at ps:0: a heartbeat each second on a connection that tensors do not
share: rule *No silent wait* (docs/design/protocol.md#no-silent-wait).

It is also the watchman of every wait: when ps:0 is gone for good, has declared training failed, or knows
another process in this task's place, `failure` says so and the callback breaks whatever the task waits on.
The leader, which has a link to every server, hears of each that has been silent for a lease.
"""

import contextlib
import math
from collections.abc import Callable

from dtrain.cluster import AddressBook
from dtrain.errors import DtrainError, PeerLostError, PeerRefusedError, TooFewReplicasError, WaitTimeoutError
from dtrain.messages import Heartbeat, HeartbeatReply, NotReady, Refusal, RefusalKind
from dtrain.process.clock import SYSTEM, Clock, Running
from dtrain.protocol.membership import LEASE_S
from dtrain.roles.server_answers import check_numbers
from dtrain.runs.reporting import Reporter
from dtrain.wire.channel import Channel
from dtrain.wire.peer import Connect, Peer

INTERVAL_S = 1.0
CLOCK_BITS = 42
"""Enough for milliseconds since 1970 until 2109."""


class HeartbeatLink:
    """One task's lease at one server."""

    def __init__(
        self,
        server: str,
        connect: Connect,
        reporter: Reporter,
        *,
        connect_s: float,
        patience_s: float,
        on_silence: Callable[[float], None] = lambda silent_s: None,
        clock: Clock = SYSTEM,
        book: AddressBook | None = None,
        moved_to: str | None = None,
        on_not_leading: Callable[[str | None], None] = lambda leads: None,
    ) -> None:
        """Connect, and renew the lease once, so that `reply` is there.

        Args:
            patience_s: how long it may be away later before it counts as lost.
            on_silence: called with the seconds without an answer, whenever another lease is over, from the
                first connection on.
            book: told of tasks that serve elsewhere than the cluster says.
            moved_to: where this task does, if it does.
            on_not_leading: called if the task that was asked does not lead, with the name of the leader if
                the task knows it; the next connection goes to another task.

        Raises:
            PeerLostError: no server answers within `connect_s`; a WaitTimeoutError if none is there at all.
            PeerRefusedError: the server does not want this task.
        """
        self._clock = clock
        self._peer = Peer(server, connect, patience_s=math.inf, clock=clock)
        self._reporter = reporter
        self._patience_s = patience_s
        self._book = book
        self._moved_to = moved_to
        self._process = (reporter.status.attempt, clock.wall())
        self._stopped = clock.event()
        self._wake = clock.event()
        self.on_failure: Callable[[str], None] = lambda reason: None
        self.on_reply: Callable[[HeartbeatReply], None] = lambda reply: None
        self._on_silence = on_silence
        self._on_not_leading = on_not_leading
        self.failure: DtrainError | None = None
        self._heard_on: Channel | None = None
        # Larger than that of every earlier process, also of an earlier run whose checkpoint remembers what it
        # pushed, and also if the clock was set back meanwhile: attempts of one run only rise.
        self.answer = self._first_beat(
            (reporter.status.attempt << CLOCK_BITS) + int(self._process[1] * 1000), connect_s
        )
        self._thread: Running = clock.start(self._run, "heartbeat")

    @property
    def reply(self) -> HeartbeatReply:
        return self.answer[1]

    @property
    def away(self) -> bool:
        return self._peer.channel is None

    @property
    def incarnation(self) -> int:
        return self.reply.incarnation

    @property
    def heard(self) -> bool:
        """Whether the last answer on this connection was one of a task that leads."""
        return self._peer.channel is not None and self._peer.channel is self._heard_on

    def hurry(self) -> None:
        """From another thread: ask the server now, without waiting for the next second."""
        self._wake.set()

    def _first_beat(self, incarnation: int, connect_s: float) -> tuple[float, HeartbeatReply]:
        """Wait for the first answer. A server that dies before it is waited for like a missing one."""
        begun_s = told_s = self._clock.now()
        until_s = begun_s + connect_s
        while True:
            try:
                return self._beat(incarnation, min(LEASE_S, until_s - self._clock.now()))
            except (PeerLostError, WaitTimeoutError) as error:
                now_s = self._clock.now()
                if now_s >= until_s:
                    raise type(error)(f"{error}; waited {connect_s:g} s in all") from None
                if now_s - told_s >= LEASE_S:
                    told_s = now_s
                    self._on_silence(now_s - begun_s)

    def _beat(self, incarnation: int, within_s: float, leaving: bool = False) -> tuple[float, HeartbeatReply]:
        """Return when the question was asked, and its answer."""
        status = self._reporter.current()
        asked_s = self._clock.now()
        beat = Heartbeat(
            process=self._process,
            incarnation=incarnation,
            status=status,
            leaving=leaving,
            moved_to=self._moved_to,
            book=0 if self._book is None else self._book.digest,
        )
        if leaving:
            self._peer.notify(beat)
            answer = self._peer.receive(deadline=asked_s + within_s).message
        else:
            answer = self._peer.ask(beat, asked_s + within_s).message
        if isinstance(answer, HeartbeatReply):
            self._heard_on = self._peer.channel
            check_numbers(self._peer.name, answer)
            if answer.moved and self._book is not None:
                self._book.learn_all(answer.moved)
            self._reporter.behind(self._peer.name, answer.waiting_for)
            return asked_s, answer
        if isinstance(answer, NotReady):  # an earlier process still has the place
            self._peer.close()  # so that the next question waits for a moment
            raise PeerLostError(answer.reason)
        if isinstance(answer, Refusal) and answer.kind is RefusalKind.NOT_LEADING:
            self._peer.close()
            self._on_not_leading(answer.leads)
            raise PeerLostError(answer.reason)
        raise PeerRefusedError(
            answer.reason if isinstance(answer, Refusal) else f"{self._peer.name} answered {answer}"
        )

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:  # else the waits of this task would never end, and not say why
            why = f"{type(error).__name__}: {error}"
            self._fail(PeerLostError(f"the watch over {self._peer.name} has ended by a fault: {why}"))
            raise

    def _loop(self) -> None:
        last_heard_s = told_s = self._clock.now()
        while True:
            if not self.away:
                self._wake.wait(INTERVAL_S)
            self._wake.clear()
            if self._stopped.is_set():
                return
            try:
                self.answer = self._beat(self.reply.incarnation, min(LEASE_S, self._patience_s))
            except PeerRefusedError as error:
                self._fail(error)
                return
            except DtrainError as error:
                silent_s = self._clock.now() - last_heard_s
                if silent_s >= self._patience_s:
                    self._fail(PeerLostError(f"{error}; it has been away for {self._patience_s:g} s"))
                    return
                if (
                    silent_s >= LEASE_S
                    and self._clock.now() - told_s >= LEASE_S
                    and not self._stopped.is_set()
                ):
                    told_s = self._clock.now()
                    self._on_silence(silent_s)
                continue
            last_heard_s = self._clock.now()
            self.on_reply(self.reply)
            if self.reply.failed:
                too_few = self.reply.failed.kind is RefusalKind.TOO_FEW_REPLICAS
                self._fail((TooFewReplicasError if too_few else PeerLostError)(self.reply.failed.reason))
                return

    def _fail(self, error: DtrainError) -> None:
        if not self._stopped.is_set():
            self.failure = error
            self.on_failure(str(error))

    def close(self, *, patient: bool = True) -> None:
        """Say goodbye and stop; a server that is away is waited for a moment if `patient`."""
        self._stopped.set()
        self._wake.set()
        self._thread.join(timeout=2 * INTERVAL_S if patient or not self.away else 0)
        if self._thread.is_alive():
            self._peer.abort("the task ends")
            return
        with contextlib.suppress(DtrainError):  # a server that is gone needs no goodbye
            if self.failure is None and not self.away:
                self.on_reply(self._beat(self.reply.incarnation, LEASE_S, leaving=True)[1])
        self._peer.close()
