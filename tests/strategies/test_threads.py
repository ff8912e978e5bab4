"""Tasks by hand that share a machine share its cores."""

from dataclasses import replace

import pytest

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import training_section
from dtrain.process.assignment import TaskAssignment
from dtrain.process.threads import threads

CLUSTER = ClusterSpec.from_lists(chief=["a:1"], worker=["a:2", "a:3", "b:1"], ps=["a:4", "b:2"])
SAME_BITS = {"updates": "sync", "deterministic": True}


def assignment(task, **training):
    made = TaskAssignment.by_hand(CLUSTER, TaskId.parse(task), {})
    return replace(made, spec=replace(made.spec, training=training_section(**training)))


def threads_of(task, cores, environment):
    return threads(task.spec.training, task, cores, environment)


@pytest.mark.parametrize(
    ("task", "training", "expected"),
    [
        ("chief:0", {}, 2),
        ("worker:0", {}, 2),
        ("worker:2", {}, 8),
        ("worker:0", {"chief_trains": False}, 4),
        ("evaluator:0", {}, 2),
        ("worker:7", {}, 2),
        ("worker:2", SAME_BITS, 1),
    ],
)
def test_the_training_tasks_on_one_machine_share_its_cores(task, training, expected):
    assert threads_of(assignment(task, **training), 8, {}) == expected


def test_there_is_always_one_and_what_the_user_or_the_launcher_says_stays():
    task = assignment("worker:0")
    assert threads_of(task, 2, {}) == 1
    assert threads_of(task, 8, {"OMP_NUM_THREADS": "3"}) is None
    assert threads_of(replace(task, launched=True), 8, {}) is None
    assert threads_of(assignment("worker:0", **SAME_BITS), 8, {"OMP_NUM_THREADS": "3"}) == 1
    assert threads_of(replace(assignment("worker:0", **SAME_BITS), launched=True), 8, {}) == 1


def test_a_process_alone_has_all_cores_unless_it_is_to_be_deterministic():
    assert threads(training_section(), None, 8, {}) is None
    assert threads(training_section(updates="sync", deterministic=True), None, 8, {}) == 1


def test_replicas_in_threads_share_the_cores_of_their_task():
    mirrored = training_section(strategy="mirrored", replicas=4)
    assert threads(mirrored, None, 8, {}) == 2
    assert threads(mirrored, None, 2, {}) == 1
    assert threads(mirrored, None, 8, {"OMP_NUM_THREADS": "3"}) is None
    task = replace(assignment("worker:0"), launched=True)
    assert threads(mirrored, task, 8, {"OMP_NUM_THREADS": "4"}) == 2, "the program has more than was laid out"
    assert threads(mirrored, task, 8, {"OMP_NUM_THREADS": "1"}) is None
    assert threads(training_section(strategy="mirrored", deterministic=True), None, 8, {}) == 1
