"""The choice of this process's strategy: by its environment, by the classic flags, or alone.

Alone, the cores that have nothing to do tell how many replicas there are. A load average still tells of
what ended a minute ago, and tells nothing yet of what has just begun; so the kernel's counts of busy time
are read twice.
"""

import contextlib
import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Unpack, cast

from msgspec.structs import replace

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import (
    AsyncSection,
    CentralStorageSection,
    InOneTask,
    MirroredSection,
    MultiWorkerMirroredSection,
    PipelineSection,
    PlainSettings,
    RunSpec,
    SingleSection,
    TrainingSection,
    TrainingSettings,
    kind_of,
    with_program,
)
from dtrain.config.resolution import checked_wishes, different_wish, refuse_new_layout
from dtrain.data.stores.remote import wait_for_stores
from dtrain.errors import SpecError
from dtrain.process.assignment import PLANNED, TaskAssignment, proven_secret
from dtrain.process.private_variables import own_environment
from dtrain.process.resources import keep_freed_memory, own_limits, share_cores
from dtrain.process.tensorflow import read_classic_flags
from dtrain.runs.files import RunFiles, write_record
from dtrain.strategies import local_servers
from dtrain.strategies.interface import Strategy, current_strategy, followed_by
from dtrain.strategies.single import SingleStrategy
from dtrain.variables.partitioning import Partitioner, partitioner_config

if TYPE_CHECKING:  # loaded for a task that trains so: see `strategy_of`
    from dtrain.learning.optimizers import SGD
    from dtrain.strategies.mirrored import BesideEvaluator

CONSTRUCTOR = "ParameterServerStrategy"
LAYOUT = ("strategy", "replicas")
"""Fields of `training` that say how many replicas there are, and where."""


class TrainingArguments(PlainSettings, total=False):
    """The fields of a spec's `training` section, as a program may give them; a partitioner may be one of
    `dt.distribute.partitioners`.
    """

    partitioner: dict[str, int] | Partitioner | None


def get_strategy() -> Strategy:
    """Return the strategy of the innermost ``with strategy.scope():``, else the one that this process's
    cluster asks for.

    The cluster comes from TF_CONFIG in the environment, or from the classic flags ``--ps_hosts --worker_hosts
    --job_name --task_index``; without either, one process trains alone. A ``ps`` task serves here and then
    raises SystemExit(0). Compare `tf.distribute.get_strategy`.

    Raises:
        SpecError: TF_CONFIG or the flags are wrong.
    """
    return current_strategy(lambda: _make({}, "dt.get_strategy()"))


class ParameterServerStrategy(Strategy):
    """``dt.ParameterServerStrategy(updates="sync", backup_workers=1)``: as `get_strategy`, with the program's
    own wishes.

    What it makes is an instance of it, also where one process trains alone. A process has one strategy: it is
    made at the first call, and a later one with the same wishes, or none, returns it. Compare
    `tf.distribute.ParameterServerStrategy`.

    Args:
        cluster_resolver: as of `MultiWorkerMirroredStrategy`.
        variable_partitioner: another name of the argument `partitioner`.
        outer_optimizer: a `dt.optimizers.SGD` of numbers, in the place of the argument `outer`; with
            ``updates="async"`` its momentum is delayed.
        training: see `TrainingArguments`. What the spec or the command line says of them, whatever it is,
            wins.

    Raises:
        SpecError: there is no such field, or its value is wrong; the process has a strategy with other
            wishes; the launcher has laid out another cluster.
    """

    def __new__(  # type: ignore[misc]
        cls,
        cluster_resolver: Any = None,
        variable_partitioner: dict[str, int] | Partitioner | None = None,
        outer_optimizer: "SGD | None" = None,
        **training: Unpack[TrainingArguments],
    ) -> Strategy:
        """Return the strategy of this process."""
        plain = _with_plain_partitioner(training, variable_partitioner)
        wishes = checked_wishes(_with_plain_outer(plain, outer_optimizer), CONSTRUCTOR)
        return strategy_of_process(wishes, CONSTRUCTOR, place_of(cluster_resolver, CONSTRUCTOR))


ParameterServerStrategy.register(SingleStrategy)


def strategy_of_process(
    wishes: TrainingSettings, who: str, place: tuple[ClusterSpec, TaskId] | None = None
) -> Strategy:
    """Return the strategy of this process, which the program's constructor `who` asks for.

    `place` are the cluster and the task where neither TF_CONFIG nor the flags name them.

    In a process that trains alone one of another kind, or with another number of replicas, takes its place;
    models that have been made stay with the one before.

    Raises:
        SpecError: the wishes make no sense here; the process has a strategy with other ones; the launcher has
            laid out another cluster.
    """
    said: Mapping[str, object] = wishes
    strategy = current_strategy(lambda: _make(wishes, who, place))
    name = different_wish(strategy.wishes, wishes)
    if name in LAYOUT and strategy.context.run_id is None:  # a program that compares them, alone
        return followed_by(lambda: _make(wishes, who, place))
    if name is not None:
        before = (
            f"{name}={strategy.wishes[name]!r}" if name in strategy.wishes else f"{name} left at its default"
        )
        raise SpecError(
            f"{who}: {name}={said[name]!r}, but this process has a strategy already, made with {before}; "
            "say it where the first is made (dt.get_strategy() makes one, and so does a model outside of any "
            "scope)"
        )
    return strategy


def place_of(resolver: Any, who: str) -> tuple[ClusterSpec, TaskId] | None:
    """Return the cluster and the task that a resolver names, or None; raise a `SpecError` for nonsense."""
    if resolver is None:
        return None
    if not hasattr(resolver, "cluster_spec"):
        raise SpecError(
            f"{who}: cluster_resolver: expected an object such as "
            f"dt.distribute.cluster_resolver.TFConfigClusterResolver(), found {type(resolver).__name__}"
        )
    jobs = resolver.cluster_spec().as_dict()
    if not jobs:
        return None
    try:
        roles = {Role(job): dict(enumerate(addresses)) for job, addresses in jobs.items()}
        task = TaskId(Role(resolver.task_type or Role.CHIEF), int(resolver.task_id or 0))
    except (ValueError, TypeError) as error:
        raise SpecError(f"{who}: cluster_resolver: expected roles of {', '.join(Role)}: {error}") from None
    return ClusterSpec(roles), task


def _with_plain_partitioner(
    training: Mapping[str, Any], variable_partitioner: dict[str, int] | Partitioner | None
) -> dict[str, Any]:
    """Name a partitioner as a spec does; TensorFlow's name for the argument is another one."""
    plain = dict(training)
    if variable_partitioner is not None:
        if "partitioner" in plain:
            raise SpecError(f"{CONSTRUCTOR}: give either partitioner or variable_partitioner, not both")
        plain["partitioner"] = variable_partitioner
    if (config := partitioner_config(plain.get("partitioner"))) is not None:
        plain["partitioner"] = config
    return plain


def _with_plain_outer(training: dict[str, Any], outer_optimizer: "SGD | None") -> dict[str, Any]:
    """Name an outer optimizer as a spec does."""
    if outer_optimizer is None:
        return training
    from dtrain.learning.optimizers import SGD
    from dtrain.learning.optimizers.schedules import LearningRateSchedule

    of, outer, plain = outer_optimizer, dict[str, Any](), False
    if type(of) is SGD and not isinstance(rate := of.learning_rate, LearningRateSchedule):
        outer = {"learning_rate": float(rate), "momentum": of.momentum, "nesterov": of.nesterov}
        plain = of.get_config() == SGD(**outer).get_config()
    if "outer" in training or not plain:
        given = "outer as well" if "outer" in training else repr(outer_optimizer)
        raise SpecError(
            f"{CONSTRUCTOR}: outer_optimizer: expected dt.optimizers.SGD with numbers for learning_rate, "
            f"momentum and nesterov, and none of its other arguments, found {given}"
        )
    delayed = issubclass(kind_of(cast(TrainingSettings, training)), AsyncSection)
    return {**training, "outer": {**outer, "delayed": delayed}}


def _make(wishes: TrainingSettings, who: str, place: tuple[ClusterSpec, TaskId] | None = None) -> Strategy:
    environment = own_environment()
    assignment = TaskAssignment.from_environment(environment)
    if assignment is None and (found := read_classic_flags(sys.argv[1:]) or place):
        assignment = TaskAssignment.by_hand(*found, environment)
    if assignment is None:
        # A program that trains alone leaves to the machine how many replicas there are: one for each core.
        own: TrainingSettings = {}
        if issubclass(kind_of(wishes), MirroredSection | CentralStorageSection):
            own = {"replicas": len(os.sched_getaffinity(0))}
        strategy = _alone(with_program(RunSpec(), {**own, **wishes}, who).training)
    elif PLANNED in environment:
        from dtrain.strategies.pipeline.planning import PlanningStrategy

        strategy = PlanningStrategy(replace(assignment, spec=with_program(assignment.spec, wishes, who)))
    else:
        assignment = local_servers.placed(assignment)
        security = assignment.spec.security
        secret = proven_secret(assignment.cluster, assignment.secret, security, by_command=False)
        spec = with_program(assignment.spec, wishes, who)
        if assignment.launched:
            refuse_new_layout(assignment.spec, wishes, who, sys.argv[0])
        assignment = replace(assignment, spec=spec, secret=secret)
        _write_down(assignment, wishes)
        wait_for_stores(spec.wait.server_s)
        strategy = strategy_of(assignment)
    strategy.wishes = wishes
    return strategy


def _alone(training: TrainingSection) -> Strategy:
    """Return the strategy of a process without a cluster."""
    share_cores(training, None, idle_cores())
    if isinstance(training, MirroredSection | CentralStorageSection):
        from dtrain.strategies.mirrored import threads_strategy

        return threads_strategy(training)
    return SingleStrategy(training=training)


def _write_down(assignment: TaskAssignment, wishes: TrainingSettings) -> None:
    """Leader of a launch: record the wishes, by which, not by the spec, a run survives a lost worker."""
    if (
        wishes
        and assignment.launched
        and assignment.run_dir is not None
        and assignment.task == assignment.cluster.leader
    ):
        with contextlib.suppress(OSError):  # a full disk under it
            write_record(RunFiles(assignment.run_dir).spec, assignment.spec)


def _beside_evaluator(
    assignment: TaskAssignment, training: MirroredSection | CentralStorageSection
) -> "BesideEvaluator | None":
    """Return the place of a task whose run has an evaluator; None: it has none."""
    if not assignment.spec.cluster.count(Role.EVALUATOR):
        if assignment.task.role is Role.EVALUATOR:
            raise SpecError(
                f"{assignment.task} would follow a task that knows of no evaluator: start both with a spec "
                f"that has cluster.evaluator: 1 (training.strategy: {training.strategy})"
            )
        return None
    from dtrain.strategies.mirrored import BesideEvaluator

    return BesideEvaluator(assignment, training)


def strategy_of(assignment: TaskAssignment) -> Strategy:
    """Return the strategy of a task; a ``ps`` task serves instead, and then raises SystemExit(0)."""
    training = assignment.spec.training
    if isinstance(training, InOneTask):
        share_cores(training, assignment)
        if isinstance(training, SingleSection):
            return SingleStrategy(assignment)
        for path, problem in assignment.spec.program_problems():
            raise SpecError(f"{'.'.join(map(str, path))}: {problem}")
        from dtrain.strategies.mirrored import threads_strategy

        return threads_strategy(training, assignment, _beside_evaluator(assignment, training))
    keep_freed_memory()
    # Only now grpc is loaded: training alone does not need it.
    if assignment.task.role is Role.PS:
        from dtrain.roles.parameter_server.serving import serve

        serve(assignment)
        raise SystemExit(0)
    share_cores(training, assignment)
    if isinstance(training, MultiWorkerMirroredSection):
        from dtrain.strategies.multi_worker_mirrored.strategy import MultiWorkerMirrored

        return MultiWorkerMirrored(assignment, training)
    if isinstance(training, PipelineSection):
        from dtrain.strategies.pipeline.strategy import StagesStrategy

        return StagesStrategy(assignment, training)
    from dtrain.strategies.parameter_server import strategy

    local_servers.serve_for(assignment)
    ParameterServerStrategy.register(strategy.ServersStrategy)
    return strategy.ServersStrategy(assignment)


WINDOW_S = 0.05
"""The kernel counts in hundredths of a second."""
USUAL = 0.25
"""The load, in cores, that other programs always cause. A core that is only this busy counts as idle."""


@cache
def idle_cores() -> int:
    """Return how many cores idle for `WINDOW_S`, measured once: from 1 to what the control groups allow."""
    import psutil  # not above: a task of a launch has its share of the cores

    busy = dict(enumerate(psutil.cpu_percent(WINDOW_S, percpu=True)))
    idle = USUAL + sum(1 - busy.get(core, 0) / 100 for core in os.sched_getaffinity(0))
    quotas = [int(quota) / int(period) for quota, period in own_limits("cpu.max")]
    return max(1, int(min([idle, *quotas])))
