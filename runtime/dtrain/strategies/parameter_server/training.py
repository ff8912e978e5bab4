"""One call of `fit` on parameter servers, seen from one of the tasks that take part."""

from collections.abc import Callable, Mapping, Sequence

from dtrain.messages import Row
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.runs.reporting import Reporter
from dtrain.state.batch_cut import BatchCut
from dtrain.strategies.interface import Training
from dtrain.strategies.parameter_server.leader import ServerLeader
from dtrain.strategies.parameter_server.replica import ServerReplica
from dtrain.types import Array


class ServerTraining(Training):
    """One generation of variables; see `Training`.

    Attributes:
        driver: moves this task from one version to the next.
    """

    def __init__(
        self,
        driver: ReplicaDriver,
        weights: dict[str, Array],
        replicas: Sequence[ServerReplica],
        leader: ServerLeader | None,
        reporter: Reporter,
        *,
        cut: BatchCut,
        weighs_examples: bool,
        on_close: Callable[["ServerTraining"], None],
    ) -> None:
        """Put together what `opening` has made; `on_close` is called when it ends."""
        self.driver = driver
        self.weights = weights
        self.replicas = replicas
        self.leader = leader
        self.clock = driver.machine
        self.cut = cut
        self.weighs_examples = weighs_examples
        self._leader = leader
        self._reporter = reporter
        self._on_close = on_close

    @property
    def recorded(self) -> Mapping[int, Row]:
        """See `Training.recorded`."""
        return self.driver.machine.rows if self._leader is None else self._leader.recorded

    def heard_term(self, term: int) -> None:
        """From another thread: this is the term at ps:0; waits for a process that is gone begin anew."""
        self.driver.heard_term(term)
        if self._leader is not None:
            self._leader.heard_term(term)

    def close(self, error: BaseException | None = None) -> None:
        """See `Training.close`; a leader that ends early, because it was ordered to stop, writes a last
        checkpoint.
        """
        reporter = self._reporter
        reporter.progress(self.clock.global_step)  # others may have made the last steps
        reporter.current()  # with the bytes of the connections, which are closed next
        reporter.bytes_moved = None
        self._on_close(self)
        if self._leader is not None:
            self._leader.close(error)
        if error is None:
            reporter.fit_ends()
