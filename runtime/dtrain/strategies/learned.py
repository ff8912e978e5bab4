"""The way by which tasks of all hosts take over what the leader has learned from data: rule *Learned
once* (docs/design/protocol.md#learned-once).
"""

import time
from collections.abc import Callable

from dtrain.control.learned import STATE_LIMIT_BYTES
from dtrain.errors import DtrainError, PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import AskLearned, Learned, Refusal, RefusalKind
from dtrain.process.assignment import TaskAssignment
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.runs.reporting import Reporter
from dtrain.wire.peer import Connect, Peer

TELL_S = 60.0
"""How long the control host may take to hear of a state."""
PAUSE_S = 0.2


def spreads_over_hosts(assignment: TaskAssignment) -> bool:
    """Return whether tasks must send each other what they would read in the run directory on one host."""
    return not (assignment.launched and assignment.on_one_host)


class LeaderLearns:
    """Passes on what the leader has learned of data, through the control host."""

    def __init__(
        self,
        reporter: Reporter,
        join: Callable[[], HeartbeatLink],
        connect: Connect,
        *,
        leads: Callable[[], bool],
        fits: Callable[[], int],
        patience_s: float,
    ) -> None:
        """Make no connection yet.

        `join` takes the lease at the control host, if this task has none; `fits` returns how many calls of
        `fit` it has begun; the control host may be away for `patience_s`.
        """
        self._reporter = reporter
        self._join = join
        self._connect = connect
        self._leads = leads
        self._fits = fits
        self._patience_s = patience_s

    def __call__(self, key: str, who: str, wait_s: float, learn: Callable[[], bytes]) -> bytes:
        """Take part in the run, so that no task counts as lost meanwhile; learn and send, or ask."""
        self._join()
        if not self._leads():
            return self._ask(key, who, wait_s)
        state = learn()
        self._send(key, state)
        return state

    def _send(self, key: str, state: bytes) -> None:
        """Send what was learned; one that is too large is sent as an empty one."""
        if len(state) > STATE_LIMIT_BYTES:
            self._reporter.warn(
                f"adapt: {len(state) >> 20} MB were learned, more than the {STATE_LIMIT_BYTES >> 20} MB that "
                "are handed on to other hosts: every task learns for itself; a vocabulary may be a file that "
                "all hosts see"
            )
            state = b""
        try:
            self._answer(Learned(key=key, state=state), time.monotonic() + TELL_S)
        except DtrainError as error:
            self._reporter.warn(f"adapt: other tasks cannot be told what was learned: {error}")

    def _ask(self, key: str, who: str, wait_s: float) -> bytes:
        """Return what the leader has learned, or raise a `WaitTimeoutError`."""
        self._reporter.waiting(f"the leader to adapt {who}")
        try:
            return self._answer(AskLearned(key=key, fits=self._fits()), time.monotonic() + wait_s).state
        except WaitTimeoutError:
            raise WaitTimeoutError(
                f"adapt {who}: waited {wait_s:.0f} s for the leader to learn it from its data; every task of "
                "the program has to call adapt, in the same order"
            ) from None
        except (PeerLostError, PeerRefusedError) as error:
            self._reporter.warn(f"adapt {who}: the leader cannot be asked; this task learns alone: {error}")
            return b""
        finally:
            self._reporter.waiting(None)

    def _answer(self, message: Learned | AskLearned, deadline_s: float) -> Learned:
        """Ask the control host, again while the task that was asked does not lead yet."""
        link = self._join()
        peer = Peer("the control host", self._connect, patience_s=self._patience_s)
        link.on_failure = peer.abort
        try:
            while True:
                answer = peer.ask(message, deadline_s).message
                if isinstance(answer, Learned):
                    return answer
                if not isinstance(answer, Refusal):
                    raise PeerRefusedError(f"expected Learned, found {type(answer).__name__}")
                if answer.kind is not RefusalKind.NOT_LEADING or time.monotonic() >= deadline_s:
                    raise PeerRefusedError(answer.reason)
                time.sleep(PAUSE_S)
        finally:
            link.on_failure = lambda reason: None
            peer.close()
