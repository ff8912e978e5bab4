"""The thread that keeps a task's lease at ps:0: a heartbeat each second on a connection that tensors do not share. Rule 6.

It is also the watchman of every wait: when ps:0 is gone for good, has declared training failed, or knows another process in this
task's place, `failure` says so and the callback breaks whatever the task waits on.
"""

import threading
import time
from collections.abc import Callable

import msgspec

from dtrain.errors import DtrainError, PeerLostError, PeerRefusedError, TooFewReplicasError
from dtrain.messages import Heartbeat, HeartbeatReply, Refusal
from dtrain.reporting import Reporter
from dtrain.wire.channel import Channel

INTERVAL_S = 1.0

Connect = Callable[[float], Channel]
"""Opens a connection to the server, waiting at most the given seconds."""


class HeartbeatLink:
    """One task's lease at one server."""

    def __init__(self, connect: Connect, reporter: Reporter, *, connect_s: float, patience_s: float) -> None:
        """Connect, and renew the lease once, so that `reply` is there.

        Args:
            connect: opens the connection.
            reporter: whose status is carried along.
            connect_s: how long the server may take to be there at first.
            patience_s: how long it may be away later before it counts as lost.

        Raises:
            WaitTimeoutError: nobody is there within `connect_s`.
            PeerRefusedError: the server does not want this task.
        """
        self._connect = connect
        self._reporter = reporter
        self._patience_s = patience_s
        self._process = (reporter.status.attempt, time.time())
        self._channel: Channel | None = connect(connect_s)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.on_failure: Callable[[str], None] = lambda reason: None
        self.on_reply: Callable[[HeartbeatReply], None] = lambda reply: None
        self.failure: DtrainError | None = None
        # Larger than that of every earlier process, also of an earlier run whose checkpoint remembers what it pushed (rule 5).
        self.reply = self._beat(incarnation=int(self._process[1] * 1000))
        self._thread.start()

    @property
    def incarnation(self) -> int:
        """The one by which the server knows this task."""
        return self.reply.incarnation

    def _beat(self, incarnation: int, leaving: bool = False) -> HeartbeatReply:
        if self._channel is None:
            self._channel = self._connect(INTERVAL_S)
        status = msgspec.to_builtins(self._reporter.current(), str_keys=True)
        self._channel.send(Heartbeat(self._process, incarnation, status, leaving))
        answer = self._channel.receive().message
        if isinstance(answer, HeartbeatReply):
            return answer
        raise PeerRefusedError(answer.reason if isinstance(answer, Refusal) else f"{self._channel.peer} answered {answer}")

    def _run(self) -> None:
        last_heard_s = time.monotonic()
        while not self._stopped.wait(INTERVAL_S):
            try:
                self.reply = self._beat(self.reply.incarnation)
            except PeerRefusedError as error:
                self._fail(error)
                return
            except DtrainError as error:
                self._drop_channel()
                if time.monotonic() - last_heard_s >= self._patience_s:
                    self._fail(PeerLostError(f"{error}; it has been away for {self._patience_s:g} s"))
                    return
                continue
            last_heard_s = time.monotonic()
            self.on_reply(self.reply)
            if self.reply.failed:
                kind = TooFewReplicasError if self.reply.failed.startswith("too few") else PeerLostError
                self._fail(kind(self.reply.failed))
                return

    def _fail(self, error: DtrainError) -> None:
        if not self._stopped.is_set():
            self.failure = error
            self.on_failure(str(error))

    def _drop_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def close(self) -> None:
        """Say goodbye, if the server is still there, and stop."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * INTERVAL_S)
        if self._thread.is_alive():
            self._drop_channel()
            return
        try:
            if self.failure is None and self._channel is not None:
                self.on_reply(self._beat(self.reply.incarnation, leaving=True))
        except DtrainError:
            pass  # whoever is gone needs no goodbye
        finally:
            self._drop_channel()
