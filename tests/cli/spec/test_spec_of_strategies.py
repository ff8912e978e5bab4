"""What a spec says of strategies without servers, and what it cannot say of them."""

import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from net.spec_keys import IN_STRATEGIES

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
from dtrain.config.plain_data import keys_of
from dtrain.config.training_section import DEFAULTS, PlainSettings
from dtrain.config.training_section import KINDS as SECTIONS
from dtrain.errors import SpecError

ROOT = Path(__file__).parents[3]
VALUES = {**IN_STRATEGIES, "updates": "sync"}
"""A value of every key that is not its default."""
ONE_TASK = {"chief": 1}
TASKS = {"chief": 1, "worker": 2}
SERVED = {**TASKS, "ps": 1, "evaluator": 1}
CHOICES = {
    "async": ({}, SERVED),
    "sync": ({"updates": "sync"}, SERVED),
    "single": ({"strategy": "single"}, {**ONE_TASK, "evaluator": 1}),
    "mirrored": ({"strategy": "mirrored"}, {**ONE_TASK, "evaluator": 1}),
    "central_storage": ({"strategy": "central_storage"}, {**ONE_TASK, "evaluator": 1}),
    "multi_worker_mirrored": ({"strategy": "multi_worker_mirrored"}, {**TASKS, "evaluator": 1}),
    "pipeline": ({"strategy": "pipeline"}, {**TASKS, "evaluator": 1}),
}
"""Each class of settings: what chooses it, and a cluster that it has."""
WHERE = {
    "every strategy": set(CHOICES),
    "servers": {"async", "sync"},
    "async": {"async"},
    "sync": {"sync", "mirrored", "central_storage", "multi_worker_mirrored"},
    "threads": {"mirrored", "central_storage"},
    "sync servers": {"sync"},
    "tasks": {"multi_worker_mirrored"},
    "single": {"single"},
    "pipeline": {"pipeline"},
}
"""What the second column of the page's table means."""
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


def spec_of(cluster, **training) -> RunSpec:
    spec, problems = resolve({"cluster": cluster, "training": training}, trains=True)
    assert problems == []
    assert spec is not None
    return spec


def mistakes(cluster, **training) -> list[str]:
    _, problems = resolve({"cluster": cluster, "training": training}, trains=True)
    return [f"{'.'.join(map(str, path))}: {text}" for path, text in problems]


def where_keys_have_a_meaning() -> dict[str, set[str]]:
    """Return the choices in which each key has a meaning, as docs/reference/spec.md says."""
    page = (ROOT / "docs/reference/spec.md").read_text().partition("\n## training\n")[2].partition("\n## ")[0]
    return {
        key: set().union(*(WHERE[word] for word in where.split(", ")))
        for keys, where in re.findall(r"^\| (`[^|]+`) \| ([a-z, ]+) \|", page, re.MULTILINE)
        for key in re.findall(r"`(\w+)`", keys)
    }


MEANINGS = where_keys_have_a_meaning()


def test_the_page_says_of_every_key_where_it_has_a_meaning():
    assert MEANINGS.keys() == {*VALUES, "strategy"}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("key", sorted(MEANINGS.keys() - {"strategy", "updates"}))
def test_a_key_is_taken_where_the_page_says_and_elsewhere_refused_by_name(choice, key):
    chosen, cluster = CHOICES[choice]
    beside = {"local_steps": 2} if key in ("outer", "merge") and choice in MEANINGS[key] else {}
    if choice == "pipeline" and key in ("stale_gradients", "vertical_sync"):
        beside = {"schedule": "pipedream"}
    lines = mistakes(cluster, **{**chosen, **beside, key: VALUES[key]})
    if choice in MEANINGS[key]:
        assert lines == []
        return
    (line,) = lines
    assert line.startswith(f"training.{key}: has no meaning with `")
    homes = line.partition("it belongs to ")[2]
    of_servers = MEANINGS[key] & {"async", "sync"}
    named = MEANINGS[key] if choice not in ("async", "sync") or not of_servers else of_servers
    for home in named - {"async", "sync"}:
        assert home in homes
    if of_servers == {"async", "sync"}:
        assert "parameter_server" in homes
    elif of_servers:
        assert f"updates: {min(of_servers)}" in homes


def test_every_key_without_a_meaning_is_refused_at_once_each_with_where_it_has_one():
    lines = mistakes(
        SERVED, updates="sync", warmup_steps=5, stale_gradients="scale", compensation=0.9, max_staleness=2
    )
    assert lines == [
        f"training.{key}: has no meaning with `updates: sync`: an update is made of gradients of the same "
        "step; it belongs to `updates: async` (`--updates async`)"
        for key in ("warmup_steps", "stale_gradients", "compensation", "max_staleness")
    ]


@pytest.mark.parametrize("key", ["warmup_steps", "max_staleness"])
def test_what_a_program_says_beside_its_own_updates_is_refused_too(key):
    wishes = {"updates": "sync", key: VALUES[key]}
    with pytest.raises(
        SpecError, match=f"^ParameterServerStrategy: {key}: has no meaning with `updates: sync`"
    ):
        with_program(RunSpec(), wishes, "ParameterServerStrategy")


def test_no_staleness_is_training_without_backups():
    for key in ("backup_workers", "replicas_to_aggregate"):
        (line,) = mistakes(SERVED, staleness_bound=0, **{key: 1})
        assert line.startswith(f"training.{key}: a staleness bound of 0 is training without backups")


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


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("stages", 2, "expected 3, as many as chiefs and workers, found 2; with a chief, `--workers 1`"),
        ("stages", 4, "expected 3, as many as chiefs and workers, found 4"),
        ("stages", ["dense", "dense_1"], "expected 3, as many as chiefs and workers, found 2"),
        ("stages", [], "expected auto, a number, or names of layers, found an empty list"),
        ("microbatches", 2, "expected at least as many as stages, 3, found 2"),
        ("schedule", "pipedrean", "expected gpipe, 1f1b, pipedream or pipedream_2bw"),
        ("vertical_sync", True, "with schedule: 1f1b all stages use one version already: expected pipedream"),
        ("stale_gradients", "scale", "with schedule: 1f1b each stage has the same staleness"),
        ("backup_workers", 1, "each chief and worker computes one stage of the model"),
        ("updates", "async", "pipeline makes every step with all replicas"),
    ],
)
def test_what_no_pipeline_can_be_is_refused_before_anything_starts(key, value, reason):
    (line,) = mistakes(TASKS, strategy="pipeline", **{key: value})
    assert line.startswith(f"training.{key}: ")
    assert reason in line


@pytest.mark.parametrize(
    ("schedule", "key", "value", "reason"),
    [
        ("pipedream", "stale_gradients", "drop", "drop would lose a part of a batch: expected apply, scale"),
        ("pipedream_2bw", "stale_gradients", "compensate", "with schedule: pipedream_2bw each stage has"),
        ("pipedream_2bw", "vertical_sync", True, "with schedule: pipedream_2bw all stages use one version"),
        ("pipedream_2bw", "microbatches", 2, "3, found 2: with fewer a stage would need more than two"),
        ("pipedream", "max_staleness", 2, "each chief and worker computes one stage of the model"),
    ],
)
def test_what_no_asynchronous_pipeline_can_be_is_refused_too(schedule, key, value, reason):
    (line,) = mistakes(TASKS, strategy="pipeline", schedule=schedule, **{key: value})
    assert line.startswith(f"training.{key}: ")
    assert reason in line


def test_a_batch_is_a_microbatch_in_pipedream_if_nothing_is_said():
    cut = [
        spec_of(TASKS, strategy="pipeline", schedule=each).training.blocks for each in ("1f1b", "pipedream")
    ]
    assert cut == [8, 1]
    assert spec_of(TASKS, strategy="pipeline", schedule="pipedream", microbatches=2).training.blocks == 2


def test_stages_say_how_many_tasks_a_launch_without_a_spec_starts():
    assert default_cluster("pipeline").worker == 2
    assert default_cluster("pipeline", 4).worker == 3
    assert default_cluster("pipeline", ["a", "b"]).worker == 1
    assert default_cluster("pipeline", 4).ps == 0


def test_too_few_shrinks_by_default_among_workers_that_reduce():
    section = spec_of(TASKS, strategy="multi_worker_mirrored").training
    assert (section.too_few, section.too_few_timeout_s) == ("shrink", 60.0)
    assert spec_of(TASKS, strategy="multi_worker_mirrored", too_few="wait").training.too_few == "wait"


@pytest.mark.parametrize(
    ("strategy", "key", "value", "reason"),
    [
        ("mirrored", "updates", "async", "mirrored makes every step with all replicas: expected sync"),
        ("mirrored", "chief_trains", False, "its replicas are threads of one task"),
        ("central_storage", "too_few", "shrink", "its replicas are threads of one task"),
        ("mirrored", "replicas", 0, "expected a number of at least 1, found 0"),
        ("multi_worker_mirrored", "replicas", 2, "its replicas are all chiefs and workers of the cluster"),
        ("parameter_server", "replicas", 2, "its replicas are the chief and the workers of the cluster"),
        ("single", "replicas", 2, "one process has one replica"),
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
def test_backups_mean_the_same_where_the_addresses_are_of_several_hosts(key, value):
    elsewhere = {"chief": ["10.78.0.1:4100"], "worker": ["10.78.0.2:4101", "10.78.0.3:4101"]}
    assert mistakes(elsewhere, strategy="multi_worker_mirrored", **{key: value}) == []
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
    spec = RunSpec(cluster=ClusterSection(chief=1, worker=500))
    text = r"^MultiWorkerMirroredStrategy: strategy: .* at most 500 chiefs and workers train, found 501: take away 1"
    with pytest.raises(SpecError, match=text):
        with_program(spec, {"strategy": "multi_worker_mirrored"}, "MultiWorkerMirroredStrategy")
    chosen = replace(spec, said={"training": {"strategy": "multi_worker_mirrored"}})
    with pytest.raises(SpecError, match=r"^dt.get_strategy\(\): strategy: .* found 501"):
        with_program(chosen, {}, "dt.get_strategy()")
    fits = replace(spec, cluster=ClusterSection(chief=1, worker=499))
    assert with_program(fits, {"strategy": "multi_worker_mirrored"}, "").replicas == 500


def test_a_program_may_write_every_key_and_each_has_one_default():
    written = keys_of(TrainingSettings)
    assert written.keys() == DEFAULTS.keys()
    assert written.keys() - keys_of(PlainSettings).keys() == {"partitioner"}
    for kind in SECTIONS:
        hints = keys_of(kind)
        ranges = {name: hint for name, hint in hints.items() if "Meta(" in str(hint)}
        assert {name: written[name] for name in ranges} == ranges, "a range is written once"


def test_what_both_kinds_on_servers_share_has_one_default():
    sync, other = msgspec.structs.asdict(SyncSection()), msgspec.structs.asdict(AsyncSection())
    shared = sync.keys() & other.keys() - {"updates"}
    assert {"placement", "compression", "too_few", "on_stale", "chief_trains"} <= shared
    assert {name: sync[name] for name in shared} == {name: other[name] for name in shared}


def test_what_replicas_of_several_tasks_do_not_do_is_said_before_any_starts():
    (line,) = mistakes(TASKS, strategy="multi_worker_mirrored", replicas=3)
    assert line == (
        "training.replicas: has no meaning with `strategy: multi_worker_mirrored`: its replicas are all chiefs and "
        "workers of the cluster, without servers; it belongs to `strategy: mirrored` or `strategy: central_storage`"
    )
    for name, value in (("backup_workers", 1), ("replicas_to_aggregate", 2)):
        assert not mistakes(TASKS, strategy="multi_worker_mirrored", **{name: value})


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_the_one_task_of_threads_may_have_an_evaluator(strategy):
    spec = spec_of({**ONE_TASK, "evaluator": 1}, strategy=strategy, validation="evaluator")
    assert (spec.cluster.count("evaluator"), spec.replicas) == (1, 2)
