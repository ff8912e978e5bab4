"""Tasks by hand that share a machine share its cores."""

import os
import subprocess
import sys
from functools import partial

import psutil
import pytest
from msgspec.structs import replace
from row_by_row import every_row

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import training_section
from dtrain.process.assignment import TaskAssignment
from dtrain.process.resources import NUMPY_LIMITS, own_limits, own_memory_bytes, threads, usable_cores
from dtrain.strategies import choice
from dtrain.strategies.choice import idle_cores

CLUSTER = ClusterSpec.from_lists(chief=["a:1"], worker=["a:2", "a:3", "b:1"], ps=["a:4", "b:2"])
SAME_BITS = {"updates": "sync", "deterministic": True}


def assignment(task, **training):
    made = TaskAssignment.by_hand(CLUSTER, TaskId.parse(task), {})
    return replace(made, spec=replace(made.spec, training=training_section(**training)))


def threads_of(task, cores, environment):
    return threads(task.spec.training, task, cores, environment)


@every_row(
    "task, training, expected",
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


@every_row(
    "environment, cores",
    [
        ({}, 8),
        ({"SLURM_CPUS_ON_NODE": "4"}, 4),
        ({"SLURM_CPUS_ON_NODE": "4", "SLURM_CPUS_PER_TASK": "2"}, 2),
        ({"SLURM_CPUS_ON_NODE": "64"}, 8),
        ({"SLURM_CPUS_ON_NODE": "many"}, 8),
        ({"SLURM_CPUS_ON_NODE": "0"}, 1),
    ],
)
def test_no_more_cores_are_used_than_slurm_has_given(monkeypatch, environment, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_cores(environment) == cores


def test_cores_that_slurm_gives_to_each_task_are_not_shared_again():
    assert threads_of(assignment("worker:0"), 2, {"SLURM_CPUS_PER_TASK": "2"}) == 2
    assert threads_of(assignment("worker:0"), 8, {"SLURM_CPUS_ON_NODE": "8"}) == 2


def test_a_process_alone_has_the_cores_that_it_is_given_unless_it_is_to_be_deterministic():
    assert threads(training_section(), None, 8, {}) == 8
    assert threads(training_section(), None, 1, {}) == 1
    assert threads(training_section(updates="sync", deterministic=True), None, 8, {}) == 1


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"])
def test_the_users_number_rules_a_process_alone(name):
    assert threads(training_section(), None, 8, {name: "6"}) is None


def test_replicas_in_threads_share_the_cores_of_their_task():
    mirrored = training_section(strategy="mirrored", replicas=4)
    assert threads(mirrored, None, 8, {}) == 2
    assert threads(mirrored, None, 2, {}) == 1
    assert threads(mirrored, None, 8, {"OMP_NUM_THREADS": "3"}) is None
    task = replace(assignment("worker:0"), launched=True)
    assert threads(mirrored, task, 8, {"OMP_NUM_THREADS": "4"}) == 2, "the program has more than was laid out"
    assert threads(mirrored, task, 8, {"OMP_NUM_THREADS": "1"}) is None
    assert threads(training_section(strategy="mirrored", deterministic=True), None, 8, {}) == 1


@pytest.mark.parametrize(("of_the_user", "expected"), [({}, 1), ({"OMP_NUM_THREADS": "2"}, 2)])
def test_a_program_alone_leaves_busy_cores_to_others(tmp_path, of_the_user, expected):
    program = tmp_path / "alone.py"
    program.write_text(
        "import os, psutil\n"
        "os.sched_getaffinity = lambda pid: {0, 1}\n"
        "psutil.cpu_percent = lambda interval, percpu: [100.0, 2.0]\n"
        "import threadpoolctl, dtrain as dt\n"
        "threadpoolctl.threadpool_limits(2)\n"
        "dt.get_strategy()\n"
        "print(*{pool['num_threads'] for pool in threadpoolctl.threadpool_info()})\n"
    )
    unset = {name: value for name, value in os.environ.items() if name not in NUMPY_LIMITS}
    done = subprocess.run(
        [sys.executable, program],
        env=unset | of_the_user,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [str(expected)]


@pytest.mark.parametrize(
    ("busy", "limits", "expected"),
    [
        ([0, 0, 0, 0], {}, 4),
        ([5, 3, 8, 4], {}, 4),
        ([100, 0, 0, 0], {}, 3),
        ([50, 50, 0, 0], {}, 3),
        ([100, 100, 100, 100], {}, 1),
        ([0, 0, 0, 0], {"cpu.max": "250000 100000\n"}, 2),
        ([0, 0, 0, 0], {"cpu.max": "max 100000\n"}, 4),
        ([0, 0, 0, 0], {"cpu.max": "300000 100000", "a/cpu.max": "50000 100000"}, 1),
    ],
)
def test_cores_are_idle_by_the_kernels_counts_and_control_groups(
    tmp_path, monkeypatch, busy, limits, expected
):
    (tmp_path / "groups/a").mkdir(parents=True)
    for name, words in limits.items():
        (tmp_path / "groups" / name).write_text(words)
    (tmp_path / "own").write_text("0::/a\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval, percpu: [float(each) for each in busy])
    limits_here = partial(own_limits, groups=tmp_path / "groups", own_group=tmp_path / "own")
    monkeypatch.setattr(choice, "own_limits", limits_here)
    assert idle_cores.__wrapped__() == expected


def test_the_memory_of_a_process_is_the_least_limit_of_its_control_groups(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    assert own_memory_bytes(tmp_path, own) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "outer" / "memory.max").write_text("1000000\n")
    (tmp_path / "outer" / "inner" / "memory.max").write_text("max\n")
    assert own_memory_bytes(tmp_path, own) == 1_000_000
