"""The mistakes in settings of `training` beyond their types: ranges, forms, and contradictions."""

from collections.abc import Iterator
from typing import Any

from dtrain.config.choices import StaleGradients, Weighting
from dtrain.config.problems import Problem, too_little
from dtrain.config.training_section import DEFAULTS, STRATEGIES, SyncSection, TrainingSettings

PARTITIONERS = {"fixed_shards": set(), "min_size": {"max_shards"}, "max_size": {"max_shards"}}
MINIMA = {
    "backup_workers": 0,
    "replicas_to_aggregate": 1,
    "too_few_timeout_s": 0,
    "staleness_bound": 0,
    "max_staleness": 0,
    "compensation": 0,
    "warmup_steps": 0,
    "seed": 0,
}
PROGRAM_MAY_SAY: tuple[TrainingSettings, ...] = ({}, {"updates": "sync"}, {"max_staleness": 0})
"""Settings that a program's constructor can add so that settings which lack them make sense."""


def problems(settings: TrainingSettings) -> Iterator[Problem]:
    """Yield what is wrong, each with its key; keys that are not there have their defaults."""
    meant: dict[str, Any] = {**DEFAULTS, **settings}
    if meant["strategy"] not in STRATEGIES:
        yield ("strategy",), f"this version has {' and '.join(STRATEGIES)}, found {meant['strategy']!r}"
    for name, minimum in MINIMA.items():
        if text := too_little(meant[name], minimum):
            yield (name,), text
    yield from contradictions(settings)
    yield from _partitioner_problems(meant["partitioner"])
    compression = meant["compression"]
    if isinstance(compression, dict):
        fraction = compression.get("top_k", 0)
        if set(compression) != {"top_k"} or not 0 < fraction <= 1:
            text = f"expected {{top_k: fraction}} with a fraction between 0 and 1, found {compression}"
            yield ("compression",), text


def what_the_program_must_say(settings: TrainingSettings) -> TrainingSettings | None:
    """Return what a program's constructor has to say so that these settings make sense; None: nothing helps.

    An empty answer: they make sense as they are.
    """
    return next((each for each in PROGRAM_MAY_SAY if not any(contradictions({**each, **settings}))), None)


def contradictions(settings: TrainingSettings) -> Iterator[Problem]:
    """Yield what no training can be, by the key that has no place beside the others."""
    meant: dict[str, Any] = {**DEFAULTS, **settings}
    is_async = meant["updates"] == "async"
    applies_as_they_come = is_async and meant["staleness_bound"] != 0
    on_servers = meant["strategy"] == "parameter_server"
    backups = meant["backup_workers"]
    needed = meant["replicas_to_aggregate"]
    if backups and needed is not None:
        yield ("replicas_to_aggregate",), "give either backup_workers or replicas_to_aggregate, not both"
    if is_async and (backups or needed is not None):
        name = "backup_workers" if backups else "replicas_to_aggregate"
        yield (name,), "backup replicas belong to updates: sync; this spec trains with updates: async"
    if on_servers and applies_as_they_come and meant["weighting"] == Weighting.EXAMPLES:
        text = "async applies each gradient by itself: expected updates: sync beside examples"
        yield ("weighting",), text
    if not is_async and meant["staleness_bound"]:
        text = "a staleness bound belongs to updates: async; this spec trains with updates: sync"
        yield ("staleness_bound",), text
    if on_servers and meant["deterministic"] and applies_as_they_come:
        text = "async applies gradients as they arrive: expected updates: sync beside it"
        yield ("deterministic",), text
    elif on_servers and meant["deterministic"] and backups:
        yield ("deterministic",), "which replicas are late is chance: expected no backup_workers beside it"
    if meant["stale_gradients"] == StaleGradients.DROP and meant["max_staleness"] is None:
        yield ("stale_gradients",), "drop needs max_staleness: gradients staler than it are dropped"


def _partitioner_problems(partitioner: dict[str, int] | None) -> Iterator[Problem]:
    if partitioner is None:
        return
    kinds = set(partitioner) & set(PARTITIONERS)
    if len(kinds) != 1 or set(partitioner) - kinds - PARTITIONERS[min(kinds)]:
        expected = "{fixed_shards: n}, {min_size: bytes, max_shards: n} or {max_size: bytes, max_shards: n}"
        yield ("partitioner",), f"expected one of {expected}, found {partitioner}"
    for name, value in partitioner.items():
        if value < 1:
            yield ("partitioner", name), f"expected at least 1, found {value}"


def replicas_problems(training: SyncSection, replicas: int) -> Iterator[Problem]:
    """Yield what is wrong in synchronous training of so many replicas; 0: their number is not known."""
    if 0 < replicas <= training.backup_workers:
        most = replicas - 1
        text = f"of {replicas} replicas at most {most} can be backups, found {training.backup_workers}"
        yield ("backup_workers",), text
    needed = training.replicas_to_aggregate
    if training.deterministic and needed is not None and needed < replicas:
        text = f"which {needed} of {replicas} replicas come first is chance: expected all of them beside it"
        yield ("deterministic",), text
