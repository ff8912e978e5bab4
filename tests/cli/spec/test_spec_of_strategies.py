"""What a spec says of strategies without servers, and what it cannot say of them."""

from dataclasses import replace

import msgspec
import pytest

from dtrain.config import (
    AsyncSection,
    CentralStorageSection,
    ClusterSection,
    MirroredSection,
    MultiWorkerMirroredSection,
    RunSpec,
    SyncSection,
    TrainingSettings,
    default_cluster,
    resolve,
    training_section,
    with_program,
)
from dtrain.config import training_rules as rules
from dtrain.errors import SpecError

ONE_TASK = {"chief": 1}
TASKS = {"chief": 1, "worker": 2}
KINDS = {
    "mirrored": MirroredSection,
    "central_storage": CentralStorageSection,
    "multi_worker_mirrored": MultiWorkerMirroredSection,
}
EVERY_KEY_BY_DEFAULT = {
    name: value
    for name, value in {
        **msgspec.structs.asdict(SyncSection()),
        **msgspec.structs.asdict(AsyncSection()),
    }.items()
    if name not in ("strategy", "updates")
}


@pytest.fixture(autouse=True)
def all_built(monkeypatch):
    """Let the rules between settings be seen, also of a strategy that cannot be run yet."""
    monkeypatch.setattr(rules, "NOT_BUILT", ())


def spec_of(cluster, **training) -> RunSpec:
    spec, problems = resolve({"cluster": cluster, "training": training}, trains=True)
    assert problems == []
    assert spec is not None
    return spec


def mistakes(cluster, **training) -> list[str]:
    _, problems = resolve({"cluster": cluster, "training": training}, trains=True)
    return [f"{'.'.join(map(str, path))}: {text}" for path, text in problems]


@pytest.mark.parametrize("strategy", KINDS)
def test_each_strategy_has_a_section_of_its_own(strategy):
    cluster = TASKS if strategy == "multi_worker_mirrored" else ONE_TASK
    section = spec_of(cluster, strategy=strategy, weighting="examples", nan_policy="fail").training
    assert type(section) is KINDS[strategy]
    assert (section.weighting, section.nan_policy, section.backup_workers) == ("examples", "fail", 0)
    assert (
        msgspec.json.decode(msgspec.json.encode(RunSpec(training=section)), type=RunSpec).training == section
    )


@pytest.mark.parametrize("strategy", KINDS)
def test_what_says_a_default_contradicts_nothing(strategy):
    cluster = TASKS if strategy == "multi_worker_mirrored" else ONE_TASK
    said = {**EVERY_KEY_BY_DEFAULT, "strategy": strategy, "updates": "sync"}
    assert isinstance(spec_of(cluster, **said).training, KINDS[strategy])


def test_replicas_are_threads_of_the_one_task_or_tasks():
    assert spec_of(ONE_TASK, strategy="mirrored").replicas == 2
    assert spec_of(ONE_TASK, strategy="central_storage", replicas=5).replicas == 5
    assert spec_of(TASKS, strategy="multi_worker_mirrored").replicas == 3


def test_too_few_shrinks_by_default_among_workers_that_reduce():
    section = spec_of(TASKS, strategy="multi_worker_mirrored").training
    assert (section.too_few, section.too_few_timeout_s) == ("shrink", 60.0)
    assert spec_of(TASKS, strategy="multi_worker_mirrored", too_few="wait").training.too_few == "wait"


@pytest.mark.parametrize(
    ("strategy", "key", "value", "reason"),
    [
        ("mirrored", "updates", "async", "mirrored makes every step with all replicas: expected sync"),
        ("multi_worker_mirrored", "staleness_bound", 3, "is synchronous; this belongs to updates: async"),
        ("central_storage", "warmup_steps", 3, "is synchronous; this belongs to updates: async"),
        ("mirrored", "stale_gradients", "scale", "is synchronous; this belongs to updates: async"),
        ("mirrored", "max_staleness", 1, "is synchronous; this belongs to updates: async"),
        ("mirrored", "compensation", 0.5, "is synchronous; this belongs to updates: async"),
        ("mirrored", "placement", "greedy", "has no parameter servers"),
        ("mirrored", "partitioner", {"fixed_shards": 2}, "has no parameter servers"),
        ("multi_worker_mirrored", "compression", "bf16", "has no parameter servers"),
        ("mirrored", "transport", "grpc", "has no parameter servers"),
        (
            "mirrored",
            "chief_trains",
            False,
            "trains in one task, and no other could train in its place: leave",
        ),
        ("central_storage", "chief_trains", False, "training.replicas says how many threads train"),
        ("central_storage", "too_few", "shrink", "are threads of one task"),
        ("mirrored", "too_few_timeout_s", 3.0, "are threads of one task"),
        ("mirrored", "replicas", 0, "expected a number of at least 1, found 0"),
        (
            "multi_worker_mirrored",
            "replicas",
            2,
            "are the tasks that train: expected their number in cluster",
        ),
        ("parameter_server", "replicas", 2, "are no threads, they are the tasks that train"),
        ("single", "replicas", 2, "are no threads, one process has one"),
        ("mirrored", "backup_workers", 2, "of 2 replicas at most 1 can be backups, found 2"),
        ("multi_worker_mirrored", "backup_workers", 3, "of 3 replicas at most 2 can be backups, found 3"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_sentence(strategy, key, value, reason):
    cluster = {**TASKS, "ps": 1} if strategy == "parameter_server" else TASKS
    cluster = cluster if strategy.startswith(("multi", "parameter")) else ONE_TASK
    (line,) = mistakes(cluster, strategy=strategy, **{key: value})
    assert line.startswith(f"training.{key}: ")
    assert reason in line


@pytest.mark.parametrize(("key", "value"), [("backup_workers", 1), ("replicas_to_aggregate", 2)])
def test_backups_are_refused_where_the_addresses_are_of_several_hosts(key, value):
    """Before anything starts; the addresses of this host are one host's."""
    chosen = {"strategy": "multi_worker_mirrored", key: value}
    here = {"chief": ["127.0.0.1:4100"], "worker": ["localhost:4101", "127.0.0.1:4102"]}
    assert mistakes(here, **chosen) == mistakes(TASKS, **chosen) == []
    (line,) = mistakes({**here, "worker": ["10.78.0.2:4101", "10.78.0.3:4101"]}, **chosen)
    assert line.startswith(f"training.{key}: in multi_worker_mirrored a step does without its last replicas")
    assert "this run has tasks on several" in line
    elsewhere = {"chief": ["10.78.0.1:4100"], "worker": ["10.78.0.2:4101", "10.78.0.3:4101"]}
    assert mistakes(elsewhere, strategy="multi_worker_mirrored", too_few="wait") == []
    on_servers = {key: value, "updates": "sync"}
    assert mistakes({**elsewhere, "ps": ["10.78.0.4:1"]}, **on_servers) == []


def test_chance_contradicts_determinism_and_two_counts_each_other():
    for strategy in ("mirrored", "central_storage"):
        (line,) = mistakes(ONE_TASK, strategy=strategy, deterministic=True, backup_workers=1)
        assert line.startswith("training.deterministic: which replicas are late is chance")
        (line,) = mistakes(ONE_TASK, strategy=strategy, deterministic=True, replicas_to_aggregate=1)
        assert line.startswith("training.deterministic: which 1 of 2 replicas come first is chance")
        (line,) = mistakes(ONE_TASK, strategy=strategy, replicas_to_aggregate=2, backup_workers=1)
        assert line.startswith("training.replicas_to_aggregate: give either backup_workers or")


@pytest.mark.parametrize("strategy", KINDS)
def test_servers_are_refused(strategy):
    lines = mistakes({"chief": 1, "ps": 2}, strategy=strategy)
    assert lines == [f"cluster.ps: {strategy} trains without parameter servers: expected 0 ps tasks, found 2"]


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_threads_train_in_one_task(strategy):
    (line,) = mistakes(TASKS, strategy=strategy)
    assert line.startswith(f"cluster.worker: {strategy} trains in one task, with training.replicas threads")
    assert "expected one chief or one worker, found 3 tasks that train" in line
    assert line.endswith("`--set training.replicas=3` asks for as many threads")
    assert mistakes({"worker": 1}, strategy=strategy) == []


def test_a_strategy_chooses_the_tasks_that_no_option_names():
    assert default_cluster("multi_worker_mirrored") == ClusterSection(chief=1, worker=2, ps=0, evaluator=1)
    for strategy in ("mirrored", "central_storage"):
        assert default_cluster(strategy) == ClusterSection(chief=1, evaluator=1)
    assert default_cluster("single") == ClusterSection(chief=1)
    assert default_cluster("parameter_server") == ClusterSection(chief=1, worker=2, ps=2, evaluator=1)


def test_a_wish_that_the_chosen_strategy_cannot_mean_is_left_out():
    program: TrainingSettings = {"updates": "async", "staleness_bound": 3, "weighting": "examples"}
    chosen = RunSpec(training=training_section(strategy="mirrored"))
    said = RunSpec(training=chosen.training, said={"training": {"strategy": "mirrored"}})
    spec = with_program(said, program, "ParameterServerStrategy")
    assert spec.training == MirroredSection(weighting="examples")
    with pytest.raises(SpecError, match=r"^MirroredStrategy: updates: mirrored makes every step with all"):
        with_program(RunSpec(), {"strategy": "mirrored", "updates": "async"}, "MirroredStrategy")


def test_a_task_refuses_more_replicas_than_reduce_among_themselves_whoever_has_chosen_the_strategy():
    """Tasks that were started by hand, or whose program chooses it, are told of no spec before."""
    spec = RunSpec(cluster=ClusterSection(chief=1, worker=54))
    text = r"^MultiWorkerMirroredStrategy: strategy: .* at most 54 chiefs and workers train, found 55: take away 1"
    with pytest.raises(SpecError, match=text):
        with_program(spec, {"strategy": "multi_worker_mirrored"}, "MultiWorkerMirroredStrategy")
    chosen = replace(spec, said={"training": {"strategy": "multi_worker_mirrored"}})
    with pytest.raises(SpecError, match=r"^dt.get_strategy\(\): strategy: .* found 55"):
        with_program(chosen, {}, "dt.get_strategy()")
    fits = replace(spec, cluster=ClusterSection(chief=1, worker=53))
    assert with_program(fits, {"strategy": "multi_worker_mirrored"}, "").replicas == 54


def test_what_both_kinds_on_servers_share_has_one_default():
    sync, other = msgspec.structs.asdict(SyncSection()), msgspec.structs.asdict(AsyncSection())
    shared = sync.keys() & other.keys() - {"updates"}
    assert {"placement", "compression", "too_few", "on_stale", "chief_trains"} <= shared
    assert {name: sync[name] for name in shared} == {name: other[name] for name in shared}


def test_what_replicas_of_several_tasks_do_not_do_is_said_before_any_starts():
    (line,) = mistakes(TASKS, strategy="multi_worker_mirrored", chief_trains=False)
    assert line == (
        "training.chief_trains: in multi_worker_mirrored every chief and worker is a replica: expected true"
    )
    for name, value in (("backup_workers", 1), ("replicas_to_aggregate", 2)):
        assert not mistakes(TASKS, strategy="multi_worker_mirrored", **{name: value})


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_the_one_task_of_threads_may_have_an_evaluator(strategy):
    spec = spec_of({**ONE_TASK, "evaluator": 1}, strategy=strategy, validation="evaluator")
    assert (spec.cluster.count("evaluator"), spec.replicas) == (1, 2)
