"""The `training` section: the strategy and its rules."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from dtrain.config.problems import STRICT, Problem, at_least

STRATEGIES = ("parameter_server", "single")
PARTITIONERS = {"fixed_shards": set(), "min_size": {"max_shards"}, "max_size": {"max_shards"}}


@dataclass(frozen=True)
class TrainingSection:
    """How the replicas' gradients become new variables. Names and defaults are CONTRACT section 3's."""

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    strategy: str = "parameter_server"
    updates: Literal["sync", "async"] = "async"
    backup_workers: int = 0
    replicas_to_aggregate: int | None = None
    weighting: Literal["replicas", "examples"] = "replicas"
    chief_trains: bool = True
    too_few: Literal["wait", "shrink", "fail"] = "wait"
    too_few_timeout_s: float = 60.0
    staleness_bound: int | None = None
    stale_gradients: Literal["apply", "drop", "scale", "compensate"] = "apply"
    max_staleness: int | None = None
    compensation: float = 0.04
    on_stale: Literal["skip", "retry_same_batch"] = "skip"
    warmup_steps: int = 0
    nan_policy: Literal["refuse", "skip", "fail"] = "refuse"
    deterministic: bool = False
    placement: Literal["round_robin", "greedy"] = "round_robin"
    partitioner: dict[str, int] | None = None
    compression: Literal["none", "bf16", "fp16"] | dict[str, float] = "none"
    transport: Literal["auto", "grpc", "local"] = "auto"
    validation: Literal["leader", "evaluator"] = "leader"
    seed: int = 0

    def problems(self) -> Iterator[Problem]:
        """What is wrong beyond types."""
        if self.strategy not in STRATEGIES:
            yield ("strategy",), f"this version has {' and '.join(STRATEGIES)}, found {self.strategy!r}"
        yield from at_least(
            self, 0, "backup_workers", "too_few_timeout_s", "staleness_bound", "max_staleness"
        )
        yield from at_least(self, 0, "compensation", "warmup_steps", "seed")
        yield from at_least(self, 1, "replicas_to_aggregate")
        if self.backup_workers and self.replicas_to_aggregate is not None:
            yield ("replicas_to_aggregate",), "give either backup_workers or replicas_to_aggregate, not both"
        if self.updates == "async" and (self.backup_workers or self.replicas_to_aggregate is not None):
            name = "backup_workers" if self.backup_workers else "replicas_to_aggregate"
            yield (name,), "backup replicas belong to updates: sync; this spec trains with updates: async"
        is_async = (
            self.strategy == "parameter_server" and self.updates == "async" and self.staleness_bound != 0
        )
        if is_async and self.weighting == "examples":
            yield (
                ("weighting",),
                "async applies each gradient by itself: expected updates: sync beside examples",
            )
        if self.updates == "sync" and self.staleness_bound:
            yield (
                ("staleness_bound",),
                "a staleness bound belongs to updates: async; this spec trains with updates: sync",
            )
        if self.deterministic and self.strategy == "parameter_server":
            yield from self._chance_problems()
        if self.stale_gradients == "drop" and self.max_staleness is None:
            yield ("stale_gradients",), "drop needs max_staleness: gradients staler than it are dropped"
        yield from self._partitioner_problems()
        if isinstance(self.compression, dict):
            fraction = self.compression.get("top_k", 0)
            if set(self.compression) != {"top_k"} or not 0 < fraction <= 1:
                yield (
                    ("compression",),
                    f"expected {{top_k: fraction}} with a fraction between 0 and 1, found {self.compression}",
                )

    def _chance_problems(self) -> Iterator[Problem]:
        """What would leave it to chance which contributions count; `RunSpec.problems` sees fewer of them than
        replicas.
        """
        if self.updates == "async" and self.staleness_bound != 0:
            yield (
                ("deterministic",),
                "async applies gradients as they arrive: expected updates: sync beside it",
            )
        elif self.backup_workers:
            yield (
                ("deterministic",),
                "which replicas are late is chance: expected no backup_workers beside it",
            )

    def _partitioner_problems(self) -> Iterator[Problem]:
        if self.partitioner is None:
            return
        kinds = set(self.partitioner) & set(PARTITIONERS)
        if len(kinds) != 1 or set(self.partitioner) - kinds - PARTITIONERS[min(kinds)]:
            expected = (
                "{fixed_shards: n}, {min_size: bytes, max_shards: n} or {max_size: bytes, max_shards: n}"
            )
            yield ("partitioner",), f"expected one of {expected}, found {self.partitioner}"
        for name, value in self.partitioner.items():
            if value < 1:
                yield ("partitioner", name), f"expected at least 1, found {value}"

    def problems_among(self, replicas: int) -> Iterator[Problem]:
        """What is wrong in synchronous training of so many replicas; 0: their number is not known."""
        if 0 < replicas <= self.backup_workers:
            text = (
                f"of {replicas} replicas at most {replicas - 1} can be backups, found {self.backup_workers}"
            )
            yield ("backup_workers",), text
        if (
            self.deterministic
            and self.replicas_to_aggregate is not None
            and self.replicas_to_aggregate < replicas
        ):
            text = (
                f"which {self.replicas_to_aggregate} of {replicas} replicas come first is chance: "
                "expected all of them beside it"
            )
            yield ("deterministic",), text

    def replicas_needed(self, replicas: int) -> int:
        """N of rule 1: how many contributions make one synchronous update when `replicas` train."""
        return self.replicas_to_aggregate or replicas - self.backup_workers

    def has_backups(self, replicas: int) -> bool:
        """Return whether a synchronous update does not wait for every replica."""
        return self.replicas_needed(replicas) < replicas
