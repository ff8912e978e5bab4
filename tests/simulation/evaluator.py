"""What a simulated evaluator runs: the driver that ships, over the checkpoints of the simulated disk."""

from functools import partial
from typing import Any

from simulation.program import CONNECT_S, PATIENCE_S, RUN
from simulation.reporter import Reporter

from dtrain.checkpoints import Pace
from dtrain.cluster import Role, TaskId
from dtrain.config import CheckpointSection
from dtrain.errors import PeerLostError
from dtrain.roles.evaluator.driver import FollowedRun, follow_fit
from dtrain.roles.heartbeat import HeartbeatLink

EVALUATOR = "evaluator:0"


class Evaluation:
    """One process of the evaluator: it follows one call of `fit` after the other."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.reporter = Reporter(process.task, process.network)
        self.stands = "starting"

    def run(self) -> None:
        """Evaluate until the final checkpoint of the last call of `fit` is evaluated."""
        process, scenario, random = self.process, self.process.setup.scenario, self.process.network.random
        evaluations, clock = process.network.judge.evaluations, process.life
        evaluations.begins()
        connect = partial(process.connect, "heartbeat", TaskId(Role.PS, 0))
        link = HeartbeatLink(
            "ps:0", connect, self.reporter, connect_s=CONNECT_S, patience_s=PATIENCE_S, clock=clock
        )
        run = FollowedRun(CheckpointSection(), lambda: self._visible(link), self.reporter.warn, clock)
        pace = Pace(throttle_s=random.choice((0.0, 1.0)))
        for fit in range(1, scenario.fits + 1):
            self.stands = f"following fit {fit}"
            for found in follow_fit(link, run, self.reporter, pace, fit, clock):
                evaluations.evaluated(fit, found)
                clock.sleep(scenario.evaluation_s * random.uniform(0.5, 1.5))
            if link.failure is not None and self._visible(link) is None:
                raise PeerLostError("ps:0 has not lived to say where the leader saves")
            evaluations.followed(fit)
        process.finished = True
        link.close()

    def _visible(self, link: HeartbeatLink) -> Any:
        """Where the leader saves: known from the launcher, or from ps:0 once that knows it."""
        return RUN if self.process.setup.scenario.seed % 2 else link.reply.directory
