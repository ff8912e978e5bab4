"""The `training` section: as it is written, flat and with any key left out, and as it is resolved.

What is resolved is one of the types of `TrainingSection`, each with the fields that mean something to it, so
that no value of them can say two things that contradict each other. `training_rules` says why what was
written makes none of them.
"""

from typing import Any, ClassVar, Literal, TypedDict, Unpack

import msgspec

from dtrain.config.choices import (
    NanPolicy,
    NumberFormat,
    OnStale,
    Placement,
    StaleGradients,
    TooFew,
    Transport,
    Validation,
    Weighting,
)

STRATEGIES = ("parameter_server", "single", "mirrored", "central_storage", "multi_worker_mirrored")
REPLICAS = 2
"""The default number of replica threads in one task."""
RANKS_MAX = 62
"""The number of ranks that fit into one word of shared memory, of which a membership is made."""
SPARE_RANKS = 8
"""The number of workers that may join `multi_worker_mirrored` beside those that the cluster names."""


class PlainSettings(TypedDict, total=False):
    """The keys of `training` that a program writes as a spec does; see `TrainingSettings`."""

    strategy: str
    updates: Literal["sync", "async"]
    backup_workers: int
    replicas_to_aggregate: int | None
    replicas: int
    weighting: Literal["replicas", "examples"]
    chief_trains: bool
    too_few: Literal["wait", "shrink", "fail"]
    too_few_timeout_s: float
    staleness_bound: int | None
    stale_gradients: Literal["apply", "drop", "scale", "compensate"]
    max_staleness: int | None
    compensation: float
    on_stale: Literal["skip", "retry_same_batch"]
    warmup_steps: int
    nan_policy: Literal["refuse", "skip", "fail"]
    deterministic: bool
    placement: Literal["round_robin", "greedy"]
    compression: Literal["none", "bf16", "fp16"]
    transport: Literal["auto", "grpc", "local"]
    validation: Literal["leader", "evaluator"]
    seed: int


class TrainingSettings(PlainSettings, total=False):
    """The section as written: a key that is not there is unset, whatever its default."""

    partitioner: dict[str, int] | None


class _EverySection(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The settings of every strategy. `kind` tells the types apart in JSON."""

    nan_policy: NanPolicy = NanPolicy.REFUSE
    validation: Validation = Validation.LEADER
    seed: int = 0


class SingleSection(_EverySection, frozen=True, kw_only=True, tag="single"):
    """One process, without servers."""

    chief_trains: ClassVar[bool] = True
    strategy: Literal["single"] = "single"
    deterministic: bool = False


class SynchronousSection(_EverySection, frozen=True, kw_only=True):
    """The settings of every strategy in which N contributions make an update."""

    backup_workers: int = 0
    replicas_to_aggregate: int | None = None
    weighting: Weighting = Weighting.REPLICAS
    on_stale: OnStale = OnStale.SKIP
    deterministic: bool = False

    def replicas_needed(self, replicas: int) -> int:
        """Return N: how many contributions make one update when `replicas` train."""
        return self.replicas_to_aggregate or replicas - self.backup_workers

    def has_backups(self, replicas: int) -> bool:
        """Return whether an update does not wait for every replica."""
        return self.replicas_needed(replicas) < replicas

    @property
    def repeats_late(self) -> bool:
        """Return whether a part whose gradient came too late is computed again.

        It always is where this run has no backups. Gradients then come too late only if an earlier launch
        began the fit with backups: its steps are still made of any parts, and no part may be lost.
        """
        return self.on_stale != OnStale.SKIP or not (self.backup_workers or self.replicas_to_aggregate)


class MirroredSection(SynchronousSection, frozen=True, kw_only=True, tag="mirrored"):
    """One task whose replicas are threads."""

    chief_trains: ClassVar[bool] = True
    strategy: Literal["mirrored"] = "mirrored"
    replicas: int = REPLICAS


class CentralStorageSection(SynchronousSection, frozen=True, kw_only=True, tag="central_storage"):
    """One task whose replicas are threads; one thread makes the updates."""

    chief_trains: ClassVar[bool] = True
    strategy: Literal["central_storage"] = "central_storage"
    replicas: int = REPLICAS


class MultiWorkerMirroredSection(SynchronousSection, frozen=True, kw_only=True, tag="multi_worker_mirrored"):
    """Chief and workers are a replica each, and reduce among themselves."""

    strategy: Literal["multi_worker_mirrored"] = "multi_worker_mirrored"
    chief_trains: bool = True
    too_few: TooFew = TooFew.SHRINK
    too_few_timeout_s: float = 60.0


class SyncSection(SynchronousSection, frozen=True, kw_only=True, tag="parameter_server_sync"):
    """N contributions make an update on parameter servers.

    A struct has one base: what it shares with `AsyncSection` stands in both.
    """

    strategy: Literal["parameter_server"] = "parameter_server"
    updates: Literal["sync"] = "sync"
    chief_trains: bool = True
    too_few: TooFew = TooFew.WAIT
    too_few_timeout_s: float = 60.0
    placement: Placement = Placement.ROUND_ROBIN
    partitioner: dict[str, int] | None = None
    compression: NumberFormat = NumberFormat.NONE
    transport: Transport = Transport.AUTO


class AsyncSection(_EverySection, frozen=True, kw_only=True, tag="parameter_server_async"):
    """Every gradient is an update of parameter servers, as it arrives; which comes first is chance."""

    deterministic: ClassVar[bool] = False
    strategy: Literal["parameter_server"] = "parameter_server"
    updates: Literal["async"] = "async"
    chief_trains: bool = True
    too_few: TooFew = TooFew.WAIT
    too_few_timeout_s: float = 60.0
    on_stale: OnStale = OnStale.SKIP
    placement: Placement = Placement.ROUND_ROBIN
    partitioner: dict[str, int] | None = None
    compression: NumberFormat = NumberFormat.NONE
    transport: Transport = Transport.AUTO
    staleness_bound: int | None = None
    stale_gradients: StaleGradients = StaleGradients.APPLY
    max_staleness: int | None = None
    compensation: float = 0.04
    warmup_steps: int = 0


ServerSection = SyncSection | AsyncSection
InOneTask = SingleSection | MirroredSection | CentralStorageSection
"""The strategies with one task that trains, and without servers."""
ClusterTraining = ServerSection | MultiWorkerMirroredSection | MirroredSection | CentralStorageSection
"""The strategies of several tasks, of which one may evaluate alone."""
TrainingSection = InOneTask | MultiWorkerMirroredSection | ServerSection
_KINDS: dict[str, type[InOneTask | MultiWorkerMirroredSection]] = {
    "single": SingleSection,
    "mirrored": MirroredSection,
    "central_storage": CentralStorageSection,
    "multi_worker_mirrored": MultiWorkerMirroredSection,
}
"""The type of each strategy without servers."""


def on_servers(training: TrainingSection) -> ServerSection:
    """Return the section of a run that trains on parameter servers; only such a run asks."""
    assert isinstance(training, ServerSection), "this run trains without parameter servers"
    return training


def _settings_of(training: TrainingSection) -> dict[str, Any]:
    return {name: getattr(training, name) for name in training.__struct_fields__}


DEFAULTS: dict[str, Any] = {
    **_settings_of(MirroredSection()),
    **_settings_of(SyncSection()),
    **_settings_of(AsyncSection()),
}
"""The default of every key on parameter servers, and of those that mean nothing there."""


def kind_of(settings: TrainingSettings) -> type[TrainingSection]:
    """Return which of the types was written; a staleness bound of 0 is synchronous training."""
    if (kind := _KINDS.get(settings.get("strategy", ""))) is not None:
        return kind
    is_sync = settings.get("updates") == "sync" or settings.get("staleness_bound") == 0
    return SyncSection if is_sync else AsyncSection


def defaults_of(settings: TrainingSettings) -> dict[str, Any]:
    """Return the default of every key beside what was written."""
    return {**DEFAULTS, **_settings_of(kind_of(settings)())}


def training_section(**settings: Unpack[TrainingSettings]) -> TrainingSection:
    """Return what was written as one of the types, without the keys that mean nothing to it.

    A staleness bound of 0 is synchronous training without backups.

    Args:
        settings: of the right types; where they contradict each other (`training_rules`) the result has only
            some of them.
    """
    kind = kind_of(settings)
    left_out = {"strategy", "updates"}
    if kind is SyncSection and settings.get("updates") != "sync":
        left_out |= {"backup_workers", "replicas_to_aggregate"}
    names = set(kind.__struct_fields__) - left_out
    values: dict[str, Any] = {**settings}
    chosen = {name: value for name, value in values.items() if name in names}
    return msgspec.convert({"kind": kind.__struct_config__.tag, **chosen}, kind)
