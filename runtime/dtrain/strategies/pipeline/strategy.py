"""The place of one chief, worker or evaluator in a pipeline, for all of its calls of `fit`."""

from collections.abc import Sequence
from functools import partial
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from dtrain.checkpoints import OptimizerState
from dtrain.cluster import TaskId
from dtrain.config import PipelineSection
from dtrain.config.choices import Schedule
from dtrain.control.machine import TAKEN
from dtrain.errors import SpecError
from dtrain.learning.graphs.by_hand import places_by_hand, segments_by_hand
from dtrain.learning.graphs.graph import Graph
from dtrain.learning.graphs.networks import Network
from dtrain.learning.graphs.stages import StageNetwork, cut_before, segments_of
from dtrain.parameters import placement
from dtrain.process.assignment import TaskAssignment
from dtrain.process.plain_text import bytes_text
from dtrain.protocol.membership import MemberState
from dtrain.protocol.pipeline_schedule import FLUSHES
from dtrain.roles.chief.start import Start, restored
from dtrain.roles.stage.driver import LeadingDriver, StageDriver
from dtrain.roles.stage.machine import LeadingStage, StageMachine
from dtrain.runs.files import RunFiles
from dtrain.state.batch_cut import UNCUT
from dtrain.state.feed import UNKNOWN
from dtrain.state.stage_layout import Segment, StageLayout
from dtrain.strategies.beginnings import Beginnings, told_of
from dtrain.strategies.control_hosting import ControlHosting
from dtrain.strategies.interface import Problem, Training
from dtrain.strategies.mirrored import BesideEvaluator, FollowedStrategy
from dtrain.strategies.passed_over import PassedOverTraining
from dtrain.strategies.pipeline.leading import LeadingTraining
from dtrain.strategies.pipeline.parts import PartsOf, StageParts
from dtrain.strategies.pipeline.planning import checked_network, hash_of, planned_stages
from dtrain.strategies.pipeline.training import StageTraining, enter
from dtrain.wire.service import SideBySide

LEAVE_SHARE = 0.45
"""The share of its grace in which a task that is told to end lets the leader save, which a launcher tells
after 0.3 of it.
"""


class StagePlace(BesideEvaluator):
    """The place of one task: each one that trains serves its stage, and the leader the control plane."""

    driver: StageDriver | None = None

    def __init__(self, assignment: TaskAssignment, training: PipelineSection) -> None:
        super().__init__(assignment, training)
        own = assignment.task
        if not own.trains:
            return
        tasks = assignment.cluster.replicas()
        stage, depth = tasks.index(own), max(training.blocks, len(tasks))
        rest = (self.task.credentials.hello, assignment.cluster, self._connector.connect, self.task.reporter)
        wait = assignment.spec.wait
        patience_s = max(wait.server_s, wait.leader_s) if stage else wait.server_s
        machine = (StageMachine if stage else LeadingStage)(stage, tasks, depth=depth)
        kind = StageDriver if stage else LeadingDriver
        self.driver = kind(machine, *rest, patience_s=patience_s, away=self._is_away)

    def _host(self) -> ControlHosting | None:
        if self.driver is None:
            return None
        hosting = ControlHosting(self.task, self._training)
        if self.context.is_leader:
            hosting.lead()
        hosting.serve(SideBySide(hosting.control, self.driver, TAKEN))
        return hosting

    def _is_away(self, task: TaskId) -> bool:
        if self._hosting is None:
            return False
        return self._hosting.control.control.roster.membership.state(str(task)) is not MemberState.LIVE


def _check_replicas(graph: Graph, segments: Sequence[Segment]) -> None:
    """Raise a `SpecError` for layers whose values depend on microbatches that another replica computes."""
    for each in segments:
        for step in (graph.steps[number] for number in each.numbers if len(each.tasks) > 1):
            if any(not weight.trainable or weight.may_be_sparse for weight, _ in step.weights):
                raise SpecError(
                    f"training.stage_replicas: {step.path} ({type(step.layer).__name__}) holds state that "
                    "follows from every microbatch, or a table by rows: leave its stage one replica, or cut "
                    "the model so that another stage has it"
                )


class StagesStrategy(FollowedStrategy):
    """One task of a pipeline."""

    def __init__(self, assignment: TaskAssignment, training: PipelineSection) -> None:
        """Set up the task; no connection is made before `open`."""
        for path, problem in assignment.spec.program_problems():
            raise SpecError(f"{'.'.join(map(str, path))}: {problem}")
        self.training = training
        self._assignment = assignment
        self._place: StagePlace = StagePlace(assignment, training)
        self._task = task = self._place.task
        trains = assignment.task.trains
        self.context = replace(task.context, rank=0 if trains else -1, num_replicas=1)
        self.evaluations = task.evaluations
        self._checkpoints = RunFiles(task.run_dir).checkpoints if task.run_dir is not None else None
        self._calls = Beginnings(assignment.spec.checkpoint, self._checkpoints, task.reporter)
        self._open: LeadingTraining | None = None
        self._cuts = WeakKeyDictionary[Graph, tuple[str, ...]]()

    def open(self, problem: Problem) -> Training:
        self._calls.number += 1
        reporter = self._task.reporter
        driver = self._place.driver
        assert driver is not None, "the evaluator follows"
        network = checked_network(problem, driver.stages)
        if isinstance(self.training.stages, tuple) or places_by_hand(network.graph):
            self._layout(network, driver.machine.tasks, self.training.named_stages)
        reporter.fit_begins()
        link = self._place.join()
        link.on_failure = driver.abort
        if link.failure is not None:
            raise link.failure
        parts_of = partial(self._parts, problem, driver)  # the leader alone decides how the model is cut
        if self.is_leader:
            if (passed := self._calls.passed_over(problem)) is not None:
                return passed
            training: StageTraining | None = self._lead(problem, driver, parts_of)
        else:
            training = enter(driver, self._calls.number, hash_of(problem), parts_of)
        if training is None:
            assert self._checkpoints is not None, "a task that comes late is on the leader's host"
            return PassedOverTraining(problem, self._calls.number, self._checkpoints, leads=False)
        reporter.running()
        return training

    def _parts(self, problem: Problem, driver: StageDriver, begins: Sequence[str]) -> StageParts:
        """Cut the model in front of layers; raise a `SpecError` if it cannot be cut there."""
        variables, tasks, place = problem.variables, driver.stages, driver.machine.stage
        network = checked_network(problem, tasks)
        layout, schedule = self._layout(network, driver.machine.tasks, begins)
        networks = [StageNetwork(network, each) for each in layout.segments]
        owners = sorted({each.tasks[0] for each in layout.segments})
        owner_of = {spec.name: each.segment.tasks[0] for each in networks for spec in each.variables}
        own, steps = layout.of(place), network.graph.steps
        driver.expect(
            {number: steps[edge.slot[0]].shapes[edge.slot[1]] for number, edge in enumerate(layout.edges)},
            gradient_bytes=sum(spec.nbytes for spec in variables) if layout.sums else 0,
        )
        return StageParts(
            number=self._calls.number,
            problem=problem,
            begins=tuple(begins),
            label=steps[layout.segments[own[0]].numbers[0]].path,
            plan=placement.placed_on(
                variables, [owners.index(owner_of[spec.name]) for spec in variables], len(owners)
            ),
            plans=[
                placement.plan([spec for spec in variables if owner_of[spec.name] == owner], servers=1)
                for owner in (layout.replicas_of(task)[0] for task in range(tasks))
            ],
            owners=owners,
            networks={segment: networks[segment] for segment in own},
            layout=layout,
            schedule=schedule,
            driver=driver,
            section=self.training,
            reporter=self._task.reporter,
            leave_s=LEAVE_SHARE * self._assignment.spec.wait.grace(launched=self._assignment.launched),
            incarnation=lambda: self._place.join().incarnation,
            cut_at=partial(self._parts, problem, driver),
        )

    def _layout(
        self, network: Network, tasks: Sequence[TaskId], begins: Sequence[str]
    ) -> tuple[StageLayout, Schedule]:
        """Return what each task computes, and in which order it passes microbatches.

        Raises:
            SpecError: the model cannot be cut, or placed, so.
        """
        graph, section = network.graph, self.training
        placed = places_by_hand(graph)
        if not placed:
            replicas = section.replicas_by_stage(len(tasks))
            segments = segments_of(cut_before(graph, begins), graph, replicas)
            _check_replicas(graph, segments)
            return StageLayout(segments), section.schedule
        if section.chooses or section.schedule not in FLUSHES:
            raise SpecError(
                "training.stages, stage_replicas, schedule: the program places layers by hand (dt.device), "
                "which are computed step by step: leave all three out, or place none"
            )
        for layer, task in placed.items():
            if task not in tasks:
                raise SpecError(
                    f"{layer.label} is placed on {task}, which this cluster has not: expected one of "
                    f"{', '.join(map(str, tasks))}"
                )
        stages = {layer: tasks.index(task) for layer, task in placed.items()}
        return StageLayout(segments_by_hand(graph, stages, [str(task) for task in tasks])), Schedule.GPIPE

    def _begins(self, problem: Problem, driver: LeadingDriver) -> tuple[str, ...]:
        """Return the layers with which stages begin: said, measured, or as in an earlier `fit`."""
        network = problem.computing.network
        assert network is not None, "it is checked"
        if places_by_hand(network.graph):
            return ()
        if isinstance(self.training.stages, tuple):
            return self.training.stages
        if network.graph not in self._cuts:
            links = driver.measured_links()
            stages = planned_stages(problem, self._assignment, self.training, links).stages
            self._cuts[network.graph] = begins = tuple(each.layers[0] for each in stages)
            slowest = min((each.bytes_per_s for each in links.values()), default=None)
            link = "" if slowest is None else f"; the slowest link has {bytes_text(slowest)}/s"
            self._task.reporter.warn(f"stages begin with {', '.join(begins)}, by measured time{link}")
        return self._cuts[network.graph]

    def _lead(self, problem: Problem, driver: StageDriver, parts_of: PartsOf) -> LeadingTraining:
        """Begin a call of `fit` in all stages, and save it from now on."""
        calls, reporter, spec = self._calls, self._task.reporter, self._assignment.spec
        assert isinstance(driver, LeadingDriver), "stage 0 leads"
        folder = self._checkpoints
        assert folder is not None, "a leader has a directory"
        first = calls.number == 1
        within_s = self._assignment.connect_s if first else spec.wait.server_s
        incarnation = self._place.join().incarnation
        term = driver.gather(calls.number, hash_of(problem), incarnation, within_s, voids=first)
        parts = parts_of(self._begins(problem, driver))
        asked = problem.asked(calls.number, parts.plan, UNCUT, sync=False)
        resumes = first and calls.resumes
        start = calls.start(asked, parts.plan, problem, resumes=resumes, by_server=False)
        start = start.going_on(UNCUT, problem.max_steps, sync=False)

        def again() -> Start:
            found = restored(folder, parts.plan, asked, by_server=False)
            return found.going_on(UNCUT, problem.max_steps, sync=False)

        training = LeadingTraining(parts, start, term, again, lambda: self._place.begin(training))
        for text in told_of(start, resumes=resumes):
            reporter.warn(text)
        training.saver = calls.keeper(training.state, reporter, spec.checkpoint)
        training.saver.begin(start, save=True)
        self._place.begin(training)
        self._open = training
        return training

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        """Return the state of all stages as of a checkpoint that is written now."""
        training = self._open
        if training is None or self._checkpoints is None or not self._calls.is_of(owner):
            return None
        training.save()
        parts = training.parts
        asked = training.state.begun.but(feed=UNKNOWN, compiled=parts.problem.optimizer)
        return restored(self._checkpoints, parts.plan, asked).optimizer_state

    def close(self, error: BaseException | None = None) -> None:
        self._place.close(error)
