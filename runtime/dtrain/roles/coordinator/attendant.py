"""A worker of a coordinator program: takes closures until the program ends."""

from collections.abc import Callable

import numpy as np

from dtrain.errors import DtrainError, PeerLostError, PeerRefusedError
from dtrain.messages import (
    Attend,
    Attended,
    Closure,
    Failure,
    Refusal,
    RefusalKind,
    TakeClosure,
)
from dtrain.process.clock import SYSTEM, Clock
from dtrain.runs.account import Account
from dtrain.wire.frames import Frame
from dtrain.wire.peer import Connect, Peer

Run = Callable[[Closure, bytes], bytes | Failure]
"""Runs a closure with its encoded arguments; returns its encoded result, or why it has failed."""


class Attendant:
    """A worker on its connection to the coordinator."""

    def __init__(
        self,
        coordinator: str,
        connect: Connect,
        reporter: Account,
        *,
        begin: Callable[[Attended], None],
        run: Run,
        connect_s: float,
        patience_s: float,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make no connection yet.

        Args:
            coordinator: its name.
            connect: opens a connection to it.
            reporter: told of progress.
            begin: begins a session.
            run: runs a closure of it.
            connect_s, patience_s: how long the coordinator may take to be there at first, and be away later.
            clock: the time.
        """
        self._peer = Peer(coordinator, connect, patience_s=patience_s, clock=clock)
        self._reporter = reporter
        self._begin = begin
        self._run = run
        self._connect_s = connect_s
        self._session = 0
        self._over = False

    def end(self, reason: str, *, failed: bool) -> None:
        """From any thread: end the service, which returns; or raises a `PeerLostError` with this reason."""
        self._over = not failed
        self._peer.abort(reason)

    def serve(self) -> None:
        """Run one closure after the other; return when the coordinator's program has ended.

        Raises:
            WaitTimeoutError: the coordinator does not come.
            PeerLostError: it is gone for good.
            PeerRefusedError: it does not want this task.
            ProgramError: a session cannot be begun by this task's program.
        """
        peer = self._peer
        self._reporter.waiting(peer.name)
        peer.open(self._connect_s)
        ended = 0
        try:
            peer.send(Attend())
            while (frame := self._answer()) is not None:
                self._reporter.waiting(None)
                match frame.message:
                    case Attended() as attended:
                        self._attended(attended)
                    case Closure() as closure:
                        self._called(closure, frame)
                        ended += 1
                        self._reporter.progress(ended)
                    case Refusal(kind=RefusalKind.ENDED):
                        return
                    case other:
                        reason = other.reason if isinstance(other, Refusal) else type(other).__name__
                        raise PeerRefusedError(f"{peer.name} answered: {reason}")
                self._reporter.waiting(peer.name)
        finally:
            self._reporter.waiting(None)
            peer.close()

    def _attended(self, attended: Attended) -> None:
        """Begin a session, and ask for its first closure; or say why that cannot be."""
        self._session = attended.session
        try:
            self._begin(attended)
        except DtrainError as error:
            why = Failure(kind=type(error).__name__, message=str(error), trace="")
            self._peer.tell(TakeClosure(session=self._session, failure=why))
            raise
        self._peer.send(TakeClosure(session=self._session))

    def _called(self, closure: Closure, frame: Frame) -> None:
        """Run a closure, and tell what came of it."""
        came = self._run(closure, frame.blocks[0].tobytes() if frame.blocks else b"")
        failure = came if isinstance(came, Failure) else None
        blocks = () if isinstance(came, Failure) else [np.frombuffer(came, np.uint8)]
        question = TakeClosure(session=self._session, closure=closure.number, failure=failure)
        self._peer.send(question, blocks)

    def _answer(self) -> Frame | None:
        """Wait for the coordinator's next message; None if the run has ended meanwhile."""
        try:
            return self._peer.receive()
        except PeerLostError:
            if self._over:
                return None
            raise
