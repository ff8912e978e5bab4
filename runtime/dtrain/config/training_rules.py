"""The mistakes in settings of `training` beyond their types: ranges, forms, and contradictions."""

from collections.abc import Iterator
from typing import Any

from dtrain.config.choices import StaleGradients, Weighting
from dtrain.config.plain_data import Problem, too_little
from dtrain.config.training_section import (
    DEFAULTS,
    RANKS_MAX,
    SPARE_RANKS,
    STRATEGIES,
    AsyncSection,
    MultiWorkerMirroredSection,
    ServerSection,
    SingleSection,
    SynchronousSection,
    SyncSection,
    TrainingSection,
    TrainingSettings,
    defaults_of,
    kind_of,
)

NOT_BUILT: tuple[str, ...] = ()
"""The strategies whose settings are known and which this version cannot run."""
PARTITIONERS = {"fixed_shards": set(), "min_size": {"max_shards"}, "max_size": {"max_shards"}}
MINIMA = {
    "backup_workers": 0,
    "replicas": 1,
    "replicas_to_aggregate": 1,
    "too_few_timeout_s": 0,
    "staleness_bound": 0,
    "max_staleness": 0,
    "compensation": 0,
    "warmup_steps": 0,
    "seed": 0,
}
_OF_SERVERS = frozenset({"placement", "partitioner", "compression", "transport"})
_OF_ASYNC = frozenset({"staleness_bound", "stale_gradients", "max_staleness", "compensation", "warmup_steps"})
_OF_TASKS = frozenset({"chief_trains", "too_few", "too_few_timeout_s"})


def problems(settings: TrainingSettings) -> Iterator[Problem]:
    """Yield what is wrong, each with its key; keys that are not there have their defaults."""
    meant: dict[str, Any] = {**defaults_of(settings), **settings}
    has = [name for name in STRATEGIES if name not in NOT_BUILT]
    if meant["strategy"] not in has:
        yield ("strategy",), f"this version has {', '.join(has)}, found {meant['strategy']!r}"
    for name, minimum in MINIMA.items():
        if text := too_little(meant[name], minimum):
            yield (name,), text
    yield from contradictions(settings)
    yield from _partitioner_problems(meant["partitioner"])


def contradictions(settings: TrainingSettings) -> Iterator[Problem]:
    """Yield what no training can be, by the key that has no place beside the others."""
    meant: dict[str, Any] = {**defaults_of(settings), **settings}
    kind = kind_of(settings)
    yield from (((name,), text) for name, text in without_meaning(settings).items())
    backups = meant["backup_workers"]
    if backups and meant["replicas_to_aggregate"] is not None:
        yield ("replicas_to_aggregate",), "give either backup_workers or replicas_to_aggregate, not both"
    if _chooses_updates(kind):
        yield from _contradictions_of_updates(meant, on_servers=kind is not SingleSection)
    if issubclass(kind, SynchronousSection) and meant["deterministic"] and backups:
        yield ("deterministic",), "which replicas are late is chance: expected no backup_workers beside it"


def _chooses_updates(kind: type[TrainingSection]) -> bool:
    """Return whether a strategy takes `updates: async`; one process takes it for what it is elsewhere."""
    return kind in (SingleSection, SyncSection, AsyncSection)


def _contradictions_of_updates(meant: dict[str, Any], *, on_servers: bool) -> Iterator[Problem]:
    is_async = meant["updates"] == "async"
    applies_as_they_come = is_async and meant["staleness_bound"] != 0
    backups = meant["backup_workers"]
    if is_async and (backups or meant["replicas_to_aggregate"] is not None):
        name = "backup_workers" if backups else "replicas_to_aggregate"
        yield (name,), "backup replicas belong to updates: sync (`--updates sync`); this is updates: async"
    if on_servers and applies_as_they_come and meant["weighting"] == Weighting.EXAMPLES:
        text = "async applies each gradient by itself: expected updates: sync beside examples"
        yield ("weighting",), text
    if not is_async and meant["staleness_bound"]:
        text = "a staleness bound belongs to updates: async; this spec trains with updates: sync"
        yield ("staleness_bound",), text
    if on_servers and meant["deterministic"] and applies_as_they_come:
        text = "async applies gradients as they arrive: expected updates: sync beside it (`--updates sync`)"
        yield ("deterministic",), text
    if meant["stale_gradients"] == StaleGradients.DROP and meant["max_staleness"] is None:
        yield ("stale_gradients",), "drop needs max_staleness: gradients staler than it are dropped"


def without_meaning(settings: TrainingSettings) -> dict[str, str]:
    """Return each key that says what its strategy cannot mean, with the reason.

    A key with its default contradicts nothing, except `updates`. One process takes what others mean, as the
    same spec and program serve both.
    """
    kind = kind_of(settings)
    strategy = settings.get("strategy", "parameter_server")
    if _chooses_updates(kind):
        if "replicas" not in settings:
            return {}
        what = "one process has one" if kind is SingleSection else "they are the tasks that train"
        expected = "expected strategy: mirrored or central_storage beside it"
        return {"replicas": f"the replicas of {strategy} are no threads, {what}; {expected}"}
    reasons: dict[str, str] = {}
    if settings.get("updates") == "async":
        reasons["updates"] = f"{strategy} makes every step with all replicas: expected sync, found async"
    for name in (name for name, value in settings.items() if value != DEFAULTS[name]):
        if name in kind.__struct_fields__:
            continue
        if name in _OF_SERVERS:
            reasons[name] = f"{strategy} has no parameter servers, to which this belongs"
        elif name in _OF_ASYNC:
            reasons[name] = f"{strategy} is synchronous; this belongs to updates: async on parameter servers"
        elif name in _OF_TASKS:
            reasons[name] = _of_several_tasks(name, strategy)
    if "replicas" in settings and kind is MultiWorkerMirroredSection:
        text = f"the replicas of {strategy} are the tasks that train: expected their number in cluster"
        reasons["replicas"] = text
    return reasons


def unused(settings: TrainingSettings) -> Iterator[Problem]:
    """Yield each key that says what the strategy and the updates have no use for, and that harms nothing.

    A key with its default says nothing.
    """
    kind = kind_of(settings)
    choice = "updates" if issubclass(kind, ServerSection) else "strategy"
    for name, value in settings.items():
        if name not in (*kind.__struct_fields__, "updates") and value != DEFAULTS[name]:
            yield (name,), f"not used by `{choice}: {getattr(kind(), choice)}`"


def _of_several_tasks(name: str, strategy: str) -> str:
    """Return why a key of several tasks that train means nothing where one task trains, in threads."""
    if name == "chief_trains":
        return (
            f"{strategy} trains in one task, and no other could train in its place: leave it out (true); "
            "training.replicas says how many threads train"
        )
    return f"the replicas of {strategy} are threads of one task, which live and end together"


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


def replicas_problems(training: SynchronousSection, replicas: int) -> Iterator[Problem]:
    """Yield what is wrong in synchronous training of so many replicas; 0: their number is not known."""
    if 0 < replicas <= training.backup_workers:
        most = replicas - 1
        text = f"of {replicas} replicas at most {most} can be backups, found {training.backup_workers}"
        yield ("backup_workers",), text
    needed = training.replicas_to_aggregate
    if training.deterministic and needed is not None and needed < replicas:
        text = f"which {needed} of {replicas} replicas come first is chance: expected all of them beside it"
        yield ("deterministic",), text


def backups_over_hosts(training: MultiWorkerMirroredSection, replicas: int) -> Iterator[Problem]:
    """Yield what is wrong with backups of so many replicas whose tasks are on several hosts."""
    if training.has_backups(replicas):
        name = "backup_workers" if training.backup_workers else "replicas_to_aggregate"
        text = (
            "in multi_worker_mirrored a step does without its last replicas where all tasks are on one host, "
            "and this run has tasks on several: leave it out, or train with strategy: parameter_server"
        )
        yield (name,), text


def too_many_together(training: TrainingSection, replicas: int) -> Iterator[Problem]:
    """Yield what is wrong with so many replicas that reduce among themselves."""
    most = RANKS_MAX - SPARE_RANKS
    if isinstance(training, MultiWorkerMirroredSection) and replicas > most:
        text = (
            f"in multi_worker_mirrored at most {most} chiefs and workers train, found {replicas}: take away "
            f"{replicas - most}, or train with strategy: parameter_server"
        )
        yield ("strategy",), text


def together_problems(training: MultiWorkerMirroredSection, replicas: int) -> Iterator[Problem]:
    """Yield what replicas of several tasks that make every step together do not do, on `replicas` tasks."""
    if not training.chief_trains:
        yield ("chief_trains",), "in multi_worker_mirrored every chief and worker is a replica: expected true"
