import pytest
from msgspec.structs import replace

from dtrain.cluster import TaskId
from dtrain.config import ClusterSection, RunSpec, training_section
from dtrain_cli.launch.policies.outcomes import has_succeeded, survives_without

SPEC = RunSpec(cluster=ClusterSection(chief=1, worker=3, ps=1, evaluator=1))
LEADER = TaskId.parse("chief:0")


def states(**by_task: str) -> dict[TaskId, str]:
    names = ["chief:0", "worker:0", "worker:1", "worker:2", "ps:0", "evaluator:0"]
    return {TaskId.parse(name): by_task.get(name.replace(":", ""), "running") for name in names}


def test_success_is_the_leaders_or_everybodys():
    all_workers = replace(SPEC, success="all_workers")
    assert has_succeeded(SPEC, LEADER, states(chief0="succeeded"))
    assert not has_succeeded(SPEC, LEADER, states(worker0="succeeded", worker1="succeeded"))
    assert not has_succeeded(
        all_workers, LEADER, states(chief0="succeeded", worker0="succeeded", worker1="succeeded")
    )
    done = states(chief0="succeeded", worker0="succeeded", worker1="succeeded", worker2="succeeded")
    assert has_succeeded(all_workers, LEADER, done)


@pytest.mark.parametrize(
    ("training", "failed", "survives"),
    [
        (training_section(), ["worker:0"], True),
        (training_section(), ["worker:0", "worker:1", "worker:2"], True),
        (training_section(chief_trains=False), ["worker:0", "worker:1", "worker:2"], False),
        (training_section(), ["chief:0"], False),
        (training_section(), ["ps:0"], False),
        (training_section(), ["evaluator:0"], True),
        (training_section(strategy="single"), ["worker:0"], False),
        (training_section(updates="sync"), ["worker:0"], False),
        (training_section(updates="sync", too_few="shrink"), ["worker:0"], True),
        (training_section(updates="sync", backup_workers=1), ["worker:0"], True),
        (training_section(updates="sync", backup_workers=1), ["worker:0", "worker:1"], False),
    ],
)
def test_which_failures_a_run_survives(training, failed, survives):
    spec = replace(SPEC, training=training)
    now = states(**{name.replace(":", ""): "failed" for name in failed})
    assert survives_without(spec, LEADER, TaskId.parse(failed[-1]), now, foreign=False) is survives


MULTI = replace(SPEC, training=training_section(strategy="multi_worker_mirrored"))
EVERY = ["chief:0", "worker:0", "worker:1", "worker:2"]


@pytest.mark.parametrize(
    ("training", "failed", "survives"),
    [
        ({}, ["chief:0"], True),
        ({}, ["worker:0"], True),
        ({}, ["worker:1", "chief:0", "worker:0"], True),
        ({}, EVERY, False),
        ({"too_few": "wait"}, ["chief:0"], False),
        ({"too_few": "wait", "backup_workers": 1}, ["chief:0"], True),
        ({"too_few": "fail"}, ["worker:2"], False),
    ],
)
def test_replicas_that_reduce_among_themselves_survive_their_leader(training, failed, survives):
    spec = replace(SPEC, training=training_section(strategy="multi_worker_mirrored", **training))
    now = states(**{name.replace(":", ""): "failed" for name in failed})
    for leader in (LEADER, TaskId.parse("worker:0")):
        assert survives_without(spec, leader, TaskId.parse(failed[-1]), now, foreign=False) is survives
    assert not survives_without(spec, LEADER, TaskId.parse(failed[-1]), now, foreign=True)


def test_all_workers_may_lose_a_chief_that_led_and_no_worker():
    spec = replace(MULTI, success="all_workers")
    leader = TaskId.parse("worker:0")
    assert survives_without(spec, leader, LEADER, states(chief0="failed"), foreign=False)
    assert not survives_without(spec, leader, leader, states(worker0="failed"), foreign=False)


def test_the_one_that_leads_at_the_end_decides():
    successor = TaskId.parse("worker:0")
    assert has_succeeded(MULTI, successor, states(chief0="failed", worker0="succeeded"), successors=True)
    assert not has_succeeded(MULTI, successor, states(chief0="failed", worker1="succeeded"), successors=True)
    ended = states(chief0="failed", worker0="succeeded", worker1="succeeded", worker2="failed")
    assert has_succeeded(MULTI, LEADER, ended, successors=True), (
        "the others had nothing left to do when their leader died"
    )
    assert not has_succeeded(MULTI, LEADER, ended)
    assert not has_succeeded(MULTI, LEADER, dict.fromkeys(ended, "failed"), successors=True)


def test_a_foreign_run_survives_only_the_evaluator():
    now = states(worker1="failed")
    assert not survives_without(SPEC, LEADER, TaskId.parse("worker:1"), now, foreign=True)
    assert survives_without(SPEC, LEADER, TaskId.parse("evaluator:0"), now, foreign=True)


def test_all_workers_means_none_may_fail():
    spec = replace(SPEC, success="all_workers")
    assert not survives_without(
        spec, LEADER, TaskId.parse("worker:1"), states(worker1="failed"), foreign=False
    )


@pytest.mark.parametrize("lost", ["ps:0", "worker:0"])
def test_whoever_dies_after_the_leaders_success_changes_nothing(lost):
    known = states(chief0="succeeded", worker1="succeeded", worker2="succeeded") | {
        TaskId.parse(lost): "failed"
    }
    assert survives_without(SPEC, LEADER, TaskId.parse(lost), known, foreign=False)
    assert not survives_without(
        replace(SPEC, success="all_workers"), LEADER, TaskId.parse(lost), known, foreign=False
    )
