"""All stages of a pipeline in threads of this process: everything that ships, but for sockets and the loop of `fit`."""

import threading
from types import SimpleNamespace

import numpy as np

from dtrain.cluster import ClusterSpec
from dtrain.config import CheckpointSection, training_section
from dtrain.learning import optimizers
from dtrain.learning.graphs.stages import StageNetwork, segments_of
from dtrain.messages import Hello, Sums
from dtrain.parameters import placement
from dtrain.roles.chief.start import fresh, restored
from dtrain.roles.stage.driver import LeadingDriver, StageDriver
from dtrain.roles.stage.machine import LeadingStage, StageMachine
from dtrain.runs.ledger import NO_ACTIVITY
from dtrain.runs.trace import NO_TRACE
from dtrain.state.batch_cut import UNCUT
from dtrain.state.stage_layout import StageLayout
from dtrain.strategies.beginnings import Beginnings
from dtrain.strategies.interface import Problem, Stepped
from dtrain.strategies.pipeline.leading import LeadingTraining
from dtrain.strategies.pipeline.parts import StageParts
from dtrain.strategies.pipeline.planning import hash_of
from dtrain.strategies.pipeline.training import enter
from dtrain.wire.channel import MemoryChannel

END_S = 60.0
KILLED = "killed"


class SilentReporter(SimpleNamespace):
    """Keeps the status, and tells nobody."""

    def __init__(self):
        super().__init__(
            status=SimpleNamespace(), trace=NO_TRACE, activity=NO_ACTIVITY, bytes_moved=None, warnings=[]
        )
        self.warn = self.refused = self.warnings.append
        self.waiting = self.progress = self.fit_ends = self.tried_to_save = lambda *_: None


class StagesInMemory:
    """One call of `fit` of a network that is cut; `run` gives each stage's training once it has ended."""

    def __init__(self, network, ranges, weights, optimizer, *, steps, steps_per_epoch, **section):
        self.network, self.ranges = network, ranges
        self.section = training_section(strategy="pipeline", **section)
        self.problem = Problem(
            variables=network.variables,
            initial_values=lambda: weights,
            optimizer=optimizers.serialize(optimizer),
            max_steps=steps,
            steps_per_epoch=steps_per_epoch,
        )
        addresses = [f"localhost:{9000 + stage}" for stage in range(len(ranges))]
        self.cluster = ClusterSpec.from_lists(chief=addresses[:1], worker=addresses[1:])
        self.tasks = self.cluster.replicas()
        self.killed = (0, 0)  # a stage, and the message at which it dies, counted from 1 in all stages
        self.messages = 0
        self._channels = []
        self.drivers = [self._driver(stage) for stage in range(len(ranges))]
        self.trainings = {}
        self.folder = None  # of checkpoints, each a version that the leader has made

    def _driver(self, stage):
        hello = Hello(run_id="run", cluster_hash=self.cluster.hash, task=str(self.tasks[stage]))

        def connect(task, timeout_s):
            to = self.tasks.index(task)
            channel = MemoryChannel(str(task), self.drivers[to], hello)
            self._channels.append(((stage, to), channel))
            return channel

        kind, machine = (StageDriver, StageMachine) if stage else (LeadingDriver, LeadingStage)
        driver = kind(
            machine(stage, self.tasks, depth=64), hello, self.cluster, connect, SilentReporter(), END_S
        )
        received = driver.received

        def counted(caller, frame):
            self.messages += 1
            if self.messages == self.killed[1]:
                self._kill(self.killed[0])
            return received(caller, frame)

        driver.received = counted
        return driver

    def _kill(self, stage):
        """Its process is gone: whatever it has, and every connection that has an end there."""
        self.drivers[stage].abort(KILLED)
        self.drivers[stage] = self._driver(stage)
        for ends, channel in list(self._channels):
            if stage in ends:
                channel.abort("its end is gone")
                if stage == ends[0]:
                    channel.close()

    def _parts(self, stage):
        layout = StageLayout(segments_of(self.ranges, self.network.graph, [1] * len(self.ranges)))
        networks = [StageNetwork(self.network, each) for each in layout.segments]
        stage_of = {spec.name: number for number, each in enumerate(networks) for spec in each.variables}
        variables = self.problem.variables
        count = len(networks)
        return StageParts(
            number=1,
            problem=self.problem,
            begins=(),
            label="",
            plan=placement.placed_on(variables, [stage_of[spec.name] for spec in variables], count),
            plans=[
                placement.plan([spec for spec in variables if stage_of[spec.name] == each], servers=1)
                for each in range(count)
            ],
            owners=range(count),
            networks={stage: networks[stage]},
            layout=layout,
            schedule=self.section.schedule,
            driver=self.drivers[stage],
            section=self.section,
            reporter=self.drivers[stage]._reporter,
            leave_s=END_S,
            incarnation=lambda: 0,
            cut_at=lambda begins: self._parts(stage),
        )

    def _open(self, stage):
        parts = self._parts(stage)
        if stage:
            return enter(parts.driver, 1, hash_of(self.problem), lambda begins: parts)
        term = parts.driver.gather(1, hash_of(self.problem), 0, END_S, voids=False)
        asked = self.problem.asked(1, parts.plan, UNCUT, sync=False)
        start = fresh(asked, parts.plan, self.problem.initial_values())
        start = start.going_on(UNCUT, self.problem.max_steps, sync=False)
        if self.folder is None:
            return LeadingTraining(parts, start, term, lambda: start, lambda: None)

        def saved():
            found = restored(self.folder, parts.plan, asked, by_server=False)
            return found.going_on(UNCUT, self.problem.max_steps, sync=False)

        training = LeadingTraining(parts, start, term, saved, lambda: None)
        section = CheckpointSection(every_steps=1, keep=100)
        calls = Beginnings(section, self.folder, parts.reporter)
        training.saver = calls.keeper(training.state, parts.reporter, section, END_S)
        training.saver.begin(start, save=True)
        return training

    def run(self, batch_of, loss, words_of, after=lambda stage, training: None):
        """Train: `batch_of` gives x and y of a batch, `words_of` those of its chance; `after` is called after each step."""
        errors = []

        def train(stage, again=False):
            driver = self.drivers[stage]
            try:
                training = self._open(stage)
                if training is None:  # all is done
                    return None
                self.trainings[stage] = training

                def compute(replica, number):
                    def work():
                        x, y = batch_of(number)
                        result = replica.compute(
                            replica.weights,
                            x,
                            y,
                            loss,
                            gradients=replica.gradients,
                            rng=np.random.default_rng(words_of(number)),
                        )
                        for name, update in replica.updates.items():
                            update[...] = result.state_updates.get(name, replica.weights[name])
                        replica.rows.update(result.row_gradients)
                        sums = None
                        if result.outputs is not None:
                            sums = Sums(
                                names=("loss",), totals=np.array([len(y), len(y) * result.loss]).tobytes()
                            )
                        return replica.commit(result.loss, len(y), sums)

                    return work

                while training.step(compute) is not Stepped.ENDED:
                    after(stage, training)
                training.close()
            except BaseException as error:
                if driver.failure == KILLED and not again:
                    return train(stage, again=True)
                errors.append(error)
                for driver in self.drivers:
                    driver.abort(f"stage {stage}: {error!r}")

        threads = [
            threading.Thread(target=train, args=[stage], daemon=True) for stage in range(len(self.ranges))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(END_S)
        if errors:
            raise errors[0]
        assert not any(thread.is_alive() for thread in threads)
        return {
            name: np.array(value)
            for training in self.trainings.values()
            for name, value in training.store.variables.items()
        }
