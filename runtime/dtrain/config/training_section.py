"""The `training` section: one class of settings for each strategy, and for each way of updating servers.

Rule *Meaning*: a key that the chosen class does not have is refused, with the classes that have it, unless
its value is its default, which says nothing. How to add a setting: CONTRIBUTING.md.
"""

import math
import re
from collections.abc import Container, Iterator
from typing import Any, ClassVar, Literal, TypedDict, Unpack, cast

import msgspec

from dtrain.config.choices import (
    Merge,
    NanPolicy,
    NumberFormat,
    OnStale,
    Placement,
    Schedule,
    StaleGradients,
    TooFew,
    Transport,
    Validation,
    Weighting,
)
from dtrain.config.plain_data import AtLeast0, AtLeast1, Problem, below

MANNER_OF_SERVERS = "its replicas are the chief and the workers of the cluster"
REPLICAS_MAX = 500
"""The largest number of replicas in the simulation of the round machine; all of them send to the leader."""


Stages = Literal["auto"] | AtLeast1[int] | tuple[str, ...]
LocalSteps = AtLeast1[int] | dict[Literal["by_speed"], AtLeast1[int]]


class OuterSection(msgspec.Struct, frozen=True):
    """How servers update variables from rounds of local steps: by SGD, of which the differences are
    gradients.

    The defaults are DiLoCo's; a learning rate of 1 without momentum takes the mean of the replicas.
    """

    optimizer: Literal["sgd"] = "sgd"
    learning_rate: float = 0.7
    momentum: AtLeast0[float] = 0.9
    nesterov: bool = True
    delayed: bool = False  # async: the momentum moves the variables once for as many pushes as replicas train


class PlainSettings(TypedDict, total=False):
    """The keys of `training` that a program writes as a spec does; see `TrainingSettings`."""

    strategy: str
    updates: Literal["sync", "async"]
    backup_workers: AtLeast0[int]
    replicas_to_aggregate: AtLeast1[int] | None
    replicas: AtLeast1[int]
    weighting: Literal["replicas", "examples"]
    chief_trains: bool
    too_few: Literal["wait", "shrink", "fail"]
    too_few_timeout_s: AtLeast0[float]
    staleness_bound: AtLeast0[int] | None
    stale_gradients: Literal["apply", "drop", "scale", "compensate"]
    max_staleness: AtLeast0[int] | None
    compensation: AtLeast0[float]
    on_stale: Literal["skip", "retry_same_batch"]
    warmup_steps: AtLeast0[int]
    nan_policy: Literal["refuse", "skip", "fail"]
    deterministic: bool
    local_steps: LocalSteps
    outer: OuterSection | None
    merge: Literal["mean", "rda"]
    placement: Literal["round_robin", "greedy"]
    compression: Literal["none", "bf16", "fp16"]
    transport: Literal["auto", "grpc", "local"]
    validation: Literal["leader", "evaluator"]
    seed: AtLeast0[int]
    stages: Stages
    schedule: Literal["gpipe", "1f1b", "pipedream", "pipedream_2bw"]
    microbatches: AtLeast1[int] | None
    stage_replicas: dict[str, AtLeast1[int]]
    vertical_sync: bool


class TrainingSettings(PlainSettings, total=False):
    """The section as written: a key that is not there is unset, whatever its default."""

    partitioner: dict[str, int] | None


class _EverySection(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The settings of every strategy. `kind` tells the classes apart in JSON."""

    manner: ClassVar[str]  # why keys of other strategies have no meaning here
    nan_policy: NanPolicy = NanPolicy.REFUSE  # what becomes of a gradient that is not finite
    validation: Validation = Validation.LEADER  # the task that computes `val_*`
    seed: AtLeast0[int] = 0

    @property
    def weighs_examples(self) -> bool:
        """Whether a step is the mean over its examples, not that of its parts' means."""
        return False

    @property
    def chief_has_rank(self) -> bool:
        """Whether the chief is one of those that have ranks: those that train, or that reduce together."""
        chief_trains: bool = self.chief_trains  # type: ignore[attr-defined]  # every section says it
        return chief_trains


class SingleSection(_EverySection, frozen=True, kw_only=True, tag="single"):
    """One process, without servers."""

    manner: ClassVar[str] = "one process has one replica"
    chief_trains: ClassVar[bool] = True
    strategy: Literal["single"] = "single"
    deterministic: bool = False  # one thread computes, so that the bits are the same on every machine


class SynchronousSection(_EverySection, frozen=True, kw_only=True):
    """The settings of every strategy in which N contributions make an update."""

    backup_workers: AtLeast0[int] = 0  # of the replicas, so many are not waited for
    replicas_to_aggregate: AtLeast1[int] | None = None  # N itself, instead of `backup_workers`
    weighting: Weighting = Weighting.REPLICAS  # the mean of means, or the mean of one big batch
    on_stale: OnStale = OnStale.SKIP  # what becomes of a part whose gradient came too late
    deterministic: bool = False  # the same bits on any cluster and after any death

    @property
    def weighs_examples(self) -> bool:
        return self.weighting == Weighting.EXAMPLES

    def replicas_needed(self, replicas: int) -> int:
        """Return N: how many contributions make one update when `replicas` train."""
        return self.replicas_to_aggregate or replicas - self.backup_workers

    def has_backups(self, replicas: int) -> bool:
        return self.replicas_needed(replicas) < replicas

    @property
    def repeats_late(self) -> bool:
        """Whether a part whose gradient came too late is computed again.

        It always is where this run has no backups. Gradients then come too late only if an earlier launch
        began the fit with backups: its steps are still made of any parts, and no part may be lost.
        """
        return self.on_stale != OnStale.SKIP or not (self.backup_workers or self.replicas_to_aggregate)


class MirroredSection(SynchronousSection, frozen=True, kw_only=True, tag="mirrored"):
    """One task whose replicas are threads."""

    manner: ClassVar[str] = "its replicas are threads of one task"
    chief_trains: ClassVar[bool] = True
    strategy: Literal["mirrored"] = "mirrored"
    replicas: AtLeast1[int] = 2  # threads that train


class CentralStorageSection(SynchronousSection, frozen=True, kw_only=True, tag="central_storage"):
    """One task whose replicas are threads; one thread makes the updates."""

    manner: ClassVar[str] = MirroredSection.manner
    chief_trains: ClassVar[bool] = True
    strategy: Literal["central_storage"] = "central_storage"
    replicas: AtLeast1[int] = 2  # threads that train


class MultiWorkerMirroredSection(SynchronousSection, frozen=True, kw_only=True, tag="multi_worker_mirrored"):
    """Chief and workers reduce among themselves. Each is a replica, but for a chief that only leads."""

    manner: ClassVar[str] = "its replicas are all chiefs and workers of the cluster, without servers"
    strategy: Literal["multi_worker_mirrored"] = "multi_worker_mirrored"
    chief_trains: bool = True  # the chief is a replica
    too_few: TooFew = TooFew.SHRINK  # what happens when fewer replicas live than a step needs
    too_few_timeout_s: AtLeast0[float] = 60.0  # how long they are waited for first

    @property
    def chief_has_rank(self) -> bool:
        return True


class PipelineSection(_EverySection, frozen=True, kw_only=True, tag="pipeline"):
    """The model is cut into stages, one for each chief and worker."""

    manner: ClassVar[str] = "each chief and worker computes one stage of the model"
    chief_trains: ClassVar[bool] = True
    deterministic: ClassVar[bool] = False
    replicas: ClassVar[int] = 1  # all stages together are one
    strategy: Literal["pipeline"] = "pipeline"
    stages: Stages = "auto"  # their number, or the layers that begin them
    schedule: Schedule = Schedule.ONE_F_ONE_B  # the order in which a stage computes microbatches
    microbatches: AtLeast1[int] | None = None  # into which each batch is cut; null: `blocks`
    stage_replicas: dict[str, AtLeast1[int]] = {}  # how many tasks compute a stage, by its number; else one
    vertical_sync: bool = False  # pipedream: all stages use the version that the first one uses
    stale_gradients: StaleGradients = StaleGradients.APPLY
    compensation: AtLeast0[float] = 0.04

    @property
    def blocks(self) -> int:
        """Into how many microbatches each batch is cut; in pipedream a batch is one, if nothing is said."""
        return self.microbatches or (1 if self.schedule is Schedule.PIPEDREAM else 8)

    @property
    def chooses(self) -> bool:
        """Whether it says in front of which layers the model is cut, or how many tasks compute a stage."""
        return bool(self.named_stages or self.stage_replicas)

    @property
    def named_stages(self) -> tuple[str, ...]:
        """The layers that begin the stages; none if the model is cut by measured time."""
        return self.stages if isinstance(self.stages, tuple) else ()

    @property
    def more_replicas(self) -> int:
        """How many tasks there are more than stages."""
        return sum(self.stage_replicas.values()) - len(self.stage_replicas)

    def n_stages(self, tasks: int) -> int:
        """Return how many stages there are, where so many tasks train."""
        if self.stages == "auto":
            return max(1, tasks - self.more_replicas)
        return self.stages if isinstance(self.stages, int) else len(self.stages)

    def replicas_by_stage(self, tasks: int) -> list[int]:
        """Return how many tasks compute each stage."""
        return [self.stage_replicas.get(str(stage), 1) for stage in range(self.n_stages(tasks))]


class SyncSection(SynchronousSection, frozen=True, kw_only=True, tag="parameter_server_sync"):
    """N contributions make an update on parameter servers.

    A struct has one base: what it shares with `AsyncSection` stands in both.
    """

    manner: ClassVar[str] = "an update is made of gradients of the same step"
    strategy: Literal["parameter_server"] = "parameter_server"
    updates: Literal["sync"] = "sync"
    chief_trains: bool = True  # the chief is a replica
    too_few: TooFew = TooFew.WAIT  # what happens when fewer replicas live than a step needs
    too_few_timeout_s: AtLeast0[float] = 60.0  # how long they are waited for first
    local_steps: LocalSteps = 1  # steps of a replica by itself, from one push to the next
    outer: OuterSection | None = None  # how servers update variables from these
    merge: Merge = Merge.MEAN  # of what replicas push after local steps
    placement: Placement = Placement.ROUND_ROBIN  # of variables on servers
    partitioner: dict[str, int] | None = None  # how large variables are cut into shards
    compression: NumberFormat = NumberFormat.NONE  # the numbers that travel
    transport: Transport = Transport.AUTO


class AsyncSection(_EverySection, frozen=True, kw_only=True, tag="parameter_server_async"):
    """Every gradient is an update of parameter servers, as it arrives; which comes first is chance."""

    manner: ClassVar[str] = "each gradient is an update by itself, as it arrives"
    deterministic: ClassVar[bool] = False
    strategy: Literal["parameter_server"] = "parameter_server"
    updates: Literal["async"] = "async"
    chief_trains: bool = True
    too_few: TooFew = TooFew.WAIT
    too_few_timeout_s: AtLeast0[float] = 60.0
    on_stale: OnStale = OnStale.SKIP
    local_steps: LocalSteps = 1
    outer: OuterSection | None = None
    placement: Placement = Placement.ROUND_ROBIN
    partitioner: dict[str, int] | None = None
    compression: NumberFormat = NumberFormat.NONE
    transport: Transport = Transport.AUTO
    staleness_bound: AtLeast0[int] | None = None  # the most steps from the slowest replica to the fastest
    stale_gradients: StaleGradients = StaleGradients.APPLY  # what is done with a gradient of an older version
    max_staleness: AtLeast0[int] | None = None  # a gradient staler than that is dropped
    compensation: AtLeast0[float] = 0.04  # the strength of `stale_gradients: compensate`
    warmup_steps: AtLeast0[int] = 0  # the first steps are made by replica 0 alone


ServerSection = SyncSection | AsyncSection
InOneTask = SingleSection | MirroredSection | CentralStorageSection
"""The strategies with one task that trains, and without servers."""
ClusterTraining = (
    ServerSection | MultiWorkerMirroredSection | MirroredSection | CentralStorageSection | PipelineSection
)
"""The strategies of several tasks, of which one may evaluate alone."""
TrainingSection = InOneTask | MultiWorkerMirroredSection | ServerSection | PipelineSection
KINDS: tuple[type[TrainingSection], ...] = (
    *(AsyncSection, SyncSection, SingleSection),
    *(MirroredSection, CentralStorageSection, MultiWorkerMirroredSection, PipelineSection),
)
_KIND_OF_STRATEGY: dict[str, type[TrainingSection]] = {kind().strategy: kind for kind in KINDS}
DEFAULTS: dict[str, Any] = {
    name: value for kind in reversed(KINDS) for name, value in msgspec.structs.asdict(kind()).items()
}
"""The default of every key: on parameter servers, or where it has a meaning."""
PARTITIONERS = {"fixed_shards": set(), "min_size": {"max_shards"}, "max_size": {"max_shards"}}


def on_servers(training: TrainingSection) -> ServerSection:
    """Return the section of a run that trains on parameter servers; only such a run asks."""
    assert isinstance(training, ServerSection), "this run trains without parameter servers"
    return training


def outer_of(training: TrainingSection) -> OuterSection | None:
    """Return how servers update variables from rounds of local steps; None: replicas push gradients.

    By default they take the mean of the replicas, in async a step towards each.
    """
    if not isinstance(training, ServerSection) or (training.local_steps == 1 and training.outer is None):
        return None
    plain = OuterSection(
        learning_rate=1.0, momentum=0.0, nesterov=False, delayed=isinstance(training, AsyncSection)
    )
    return training.outer or plain


def local_steps_of(training: TrainingSection) -> int:
    """Return how many steps replicas make by themselves in a round; 0: they push gradients."""
    if outer_of(training) is None or not isinstance(training, ServerSection):
        return 0
    steps = training.local_steps
    return steps if isinstance(steps, int) else steps["by_speed"]


def shares_by_speed(training: ServerSection) -> bool:
    """Return whether replicas share a round by their speed, and have H of its steps on the mean."""
    return not isinstance(training.local_steps, int)


def kind_of(settings: TrainingSettings) -> type[TrainingSection]:
    """Return the class that the settings choose.

    A staleness bound of 0 is synchronous training, and so are local steps, unless `updates` says otherwise:
    those that come one by one cost accuracy (docs/guide/local_steps.md).
    """
    kind = _KIND_OF_STRATEGY.get(settings.get("strategy", ""), AsyncSection)
    if not issubclass(kind, ServerSection):
        return kind
    local = "updates" not in settings and settings.get("local_steps", 1) != 1
    is_sync = local or settings.get("updates") == "sync" or settings.get("staleness_bound") == 0
    return SyncSection if is_sync else AsyncSection


def training_section(**settings: Unpack[TrainingSettings]) -> TrainingSection:
    """Return the settings as the class that they choose, without the keys that it does not have.

    Args:
        settings: of the right types; see `problems` for what else may be wrong with them.
    """
    kind = kind_of(settings)
    names = set(kind.__struct_fields__) - {"strategy", "updates"}
    chosen = {name: value for name, value in settings.items() if name in names}
    return msgspec.convert({"kind": kind.__struct_config__.tag, **chosen}, kind)


def without_meaning(settings: TrainingSettings) -> dict[str, str]:
    """Return each key that breaks rule *Meaning*, with the reason.

    The number of replicas is refused with its default, too: it would seem to count tasks. One process makes
    the same of both `updates`, and a staleness bound of 0 is how synchronous training may be written.
    """
    kind = kind_of(settings)
    reasons = {
        name: _reason(name, kind)
        for name, value in settings.items()
        if name not in (*kind.__struct_fields__, "updates")
        and (value != DEFAULTS[name] or name == "replicas")
        and not (name == "staleness_bound" and value == 0 and kind is SyncSection)
    }
    if settings.get("updates") == "async" and not issubclass(kind, ServerSection | SingleSection):
        strategy = kind().strategy
        reasons["updates"] = f"{strategy} makes every step with all replicas: expected sync, found async"
    return reasons


def _reason(name: str, kind: type[TrainingSection]) -> str:
    """Return why a key has no meaning in a class, and where it has one."""
    section, homes = kind(), [each() for each in KINDS if name in each.__struct_fields__]
    updates = [each.updates for each in homes if isinstance(each, ServerSection)]
    if isinstance(section, ServerSection) and updates:
        there = f"`updates: {updates[0]}` (`--updates {updates[0]}`)"
        return f"has no meaning with `updates: {section.updates}`: {section.manner}; it belongs to {there}"
    places = {each.strategy: f"`strategy: {each.strategy}`" for each in homes}
    if len(updates) == 1:
        places["parameter_server"] = f"`updates: {updates[0]}` on parameter servers"
    manner = MANNER_OF_SERVERS if isinstance(section, ServerSection) else section.manner
    there = " or ".join(places.values())
    if name == "local_steps" and kind is MultiWorkerMirroredSection:
        manner = "rounds of replicas without servers are not there yet"
    return f"has no meaning with `strategy: {section.strategy}`: {manner}; it belongs to {there}"


def meaningful(settings: TrainingSettings, kept: Container[str] = ()) -> TrainingSettings:
    """Return the settings without those that break rule *Meaning*, but for the ones to be `kept`."""
    out = without_meaning(settings)
    left = {name: value for name, value in settings.items() if name in kept or name not in out}
    return cast(TrainingSettings, left)


def problems(settings: TrainingSettings) -> Iterator[Problem]:
    """Yield what no training can be, by the key that has no place beside the others."""
    strategy = settings.get("strategy", "parameter_server")
    if strategy not in _KIND_OF_STRATEGY:
        yield ("strategy",), f"this version has {', '.join(_KIND_OF_STRATEGY)}, found {strategy!r}"
    yield from (((name,), text) for name, text in without_meaning(settings).items())
    section = training_section(**settings)
    bounded = settings.get("updates") != "sync" and settings.get("staleness_bound") == 0
    if isinstance(section, SynchronousSection):
        yield from _problems_of_backups(section, bounded=bounded)
    drops = isinstance(section, AsyncSection) and section.stale_gradients == StaleGradients.DROP
    if drops and settings.get("max_staleness") is None:
        yield ("stale_gradients",), "drop needs max_staleness: gradients staler than it are dropped"
    if isinstance(section, ServerSection):
        yield from _problems_of_local_steps(section, said="local_steps" in settings)
        if section.partitioner is not None:
            yield from _partitioner_problems(section.partitioner)
    if isinstance(section, PipelineSection) and section.schedule is not Schedule.PIPEDREAM:
        if section.vertical_sync:
            text = f"with schedule: {section.schedule} all stages use one version already: expected pipedream"
            yield ("vertical_sync",), text
        if section.stale_gradients != StaleGradients.APPLY:
            text = f"with schedule: {section.schedule} each stage has the same staleness: expected pipedream"
            yield ("stale_gradients",), text
    elif isinstance(section, PipelineSection) and section.stale_gradients == StaleGradients.DROP:
        text = "in one stage alone, drop would lose a part of a batch: expected apply, scale or compensate"
        yield ("stale_gradients",), text


def _problems_of_backups(section: SynchronousSection, *, bounded: bool) -> Iterator[Problem]:
    """Yield what is wrong; `bounded`: a staleness bound of 0 is all that makes it synchronous on servers."""
    backups, needed = section.backup_workers, section.replicas_to_aggregate
    if backups and needed is not None:
        yield ("replicas_to_aggregate",), "give either backup_workers or replicas_to_aggregate, not both"
    if backups and section.deterministic:
        yield ("deterministic",), "which replicas are late is chance: expected no backup_workers beside it"
    if bounded and isinstance(section, SyncSection) and (backups or needed is not None):
        name = "backup_workers" if backups else "replicas_to_aggregate"
        text = "a staleness bound of 0 is training without backups: expected updates: sync instead of it"
        yield (name,), text


def _problems_of_local_steps(section: ServerSection, *, said: bool) -> Iterator[Problem]:
    outer, steps = section.outer, section.local_steps
    if isinstance(steps, dict):
        yield from _problems_of_speed(section, steps)
    elif steps == 1 and outer is None:
        if isinstance(section, SyncSection) and section.merge != Merge.MEAN:
            yield ("merge",), "gradients are added up: expected local_steps of at least 2 beside it, found 1"
        return
    if isinstance(section, AsyncSection) and section.stale_gradients == StaleGradients.COMPENSATE:
        text = "compensate corrects gradients, and local steps push none: expected apply, drop or scale"
        yield ("stale_gradients",), text
    if outer is not None and said:
        yield from below(("outer",), _problems_of_outer(section, outer))
    elif outer is not None:
        yield ("outer",), "it is the rule of servers in local steps: expected local_steps beside it"


def _problems_of_speed(section: ServerSection, steps: dict[Literal["by_speed"], int]) -> Iterator[Problem]:
    if "by_speed" not in steps:
        yield ("local_steps",), "expected a number or {by_speed: a number}, found {}"
    elif not isinstance(section, SyncSection):
        text = "with updates: async a slow replica just pushes less often: expected a number, found by_speed"
        yield ("local_steps",), text
    elif section.backup_workers or section.replicas_to_aggregate is not None:
        text = "by_speed shares a round among all replicas, and backups leave some out: expected one of them"
        yield ("local_steps",), text
    elif section.deterministic:
        yield (
            ("deterministic",),
            "how fast replicas are is chance: expected a number for local_steps beside it",
        )


def _problems_of_outer(section: ServerSection, outer: OuterSection) -> Iterator[Problem]:
    if not 0 < outer.learning_rate < math.inf:
        yield ("learning_rate",), f"expected a number above 0, found {outer.learning_rate}"
    if outer.momentum >= 1:
        yield ("momentum",), f"expected a number of at least 0 and below 1, found {outer.momentum}"
    if isinstance(section, SyncSection) and outer.delayed:
        yield ("delayed",), "it is for pushes that come one by one: expected updates: async, or false"
    if isinstance(section, AsyncSection) and outer.momentum and not outer.delayed:
        text = (
            "with updates: async each push would move all variables by the momentum of the others at once, "
            "which diverges (digits, 8 replicas of unequal speed: 16% accuracy against 90%): expected "
            "delayed: true, or momentum: 0"
        )
        yield ("momentum",), text


def _partitioner_problems(partitioner: dict[str, int]) -> Iterator[Problem]:
    kinds = set(partitioner) & set(PARTITIONERS)
    if len(kinds) != 1 or set(partitioner) - kinds - PARTITIONERS[min(kinds)]:
        expected = "{fixed_shards: n}, {min_size: bytes, max_shards: n} or {max_size: bytes, max_shards: n}"
        yield ("partitioner",), f"expected one of {expected}, found {partitioner}"
    for name, value in partitioner.items():
        if value < 1:
            yield ("partitioner", name), f"expected at least 1, found {value}"


def replicas_problems(training: TrainingSection, replicas: int) -> Iterator[Problem]:
    """Yield what is wrong in training of so many replicas; 0: their number is not known."""
    if not isinstance(training, SynchronousSection):
        return
    if 0 < replicas <= training.backup_workers:
        most = replicas - 1
        text = f"of {replicas} replicas at most {most} can be backups, found {training.backup_workers}"
        yield ("backup_workers",), text
    needed = training.replicas_to_aggregate
    if training.deterministic and needed is not None and needed < replicas:
        text = f"which {needed} of {replicas} replicas come first is chance: expected all of them beside it"
        yield ("deterministic",), text


def _names_a_stage(key: str, stages: int) -> bool:
    return re.fullmatch(r"0|[1-9][0-9]{0,8}", key) is not None and int(key) < stages


def stages_problems(training: TrainingSection, tasks: int) -> Iterator[Problem]:
    """Yield what is wrong with the stages of a pipeline, for which so many tasks train."""
    if not isinstance(training, PipelineSection):
        return
    stages = training.n_stages(tasks)
    needed = stages + training.more_replicas
    if training.stages == ():
        yield ("stages",), "expected auto, a number, or names of layers, found an empty list"
    elif unknown := [key for key in training.stage_replicas if not _names_a_stage(key, stages - 1)]:
        text = (
            f"expected numbers of stages below {stages - 1}, found {min(unknown)}: the last of {stages} "
            "stages has one replica, as it computes the loss and metrics of the whole batch"
        )
        yield ("stage_replicas",), text
    elif training.stage_replicas and training.schedule not in (Schedule.GPIPE, Schedule.ONE_F_ONE_B):
        text = f"replicas of a stage go with schedule gpipe or 1f1b, found {training.schedule}"
        yield ("stage_replicas",), text
    elif needed != tasks:
        each = "replica of a stage" if training.stage_replicas else "stage"
        text = (
            f"each {each} is one task: expected {tasks}, as many as chiefs and workers, found {needed}; with "
            f"a chief, `--workers {needed - 1}` or `worker: {needed - 1}` in `cluster` makes as many tasks"
        )
        yield ("stages",), text
    elif training.blocks < stages and training.schedule is not Schedule.PIPEDREAM:
        why = "some stage waits at any moment"
        if training.schedule is Schedule.PIPEDREAM_2BW:
            why = "a stage would need more than two versions"
        text = f"expected at least as many as stages, {stages}, found {training.blocks}: with fewer {why}"
        yield ("microbatches",), text


def too_many_together(training: TrainingSection, replicas: int) -> Iterator[Problem]:
    """Yield what is wrong with so many replicas that reduce among themselves."""
    most = REPLICAS_MAX
    if isinstance(training, MultiWorkerMirroredSection) and replicas > most:
        text = (
            f"in multi_worker_mirrored at most {most} chiefs and workers train, found {replicas}: take away "
            f"{replicas - most}, or train with strategy: parameter_server"
        )
        yield ("strategy",), text
