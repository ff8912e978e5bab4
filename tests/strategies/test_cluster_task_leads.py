"""A task that leads from some moment on, because the leader has died: what it keeps for the run."""

import os

import pytest
from msgspec.structs import replace

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import ClusterSection, RunSpec, training_section
from dtrain.errors import LeftBehindError, PeerLostError, RunError, RunInUseError
from dtrain.messages import HeartbeatReply
from dtrain.messages.membership import TaskStatus
from dtrain.process.assignment import TaskAssignment
from dtrain.runs.files import RunFiles, RunRecord, read_record
from dtrain.runs.standalone import HandRun
from dtrain.strategies import cluster_task
from dtrain.strategies.cluster_task import ClusterTask

SECTION = training_section(strategy="multi_worker_mirrored")
SPEC = RunSpec(cluster=ClusterSection(chief=1, worker=2), training=SECTION)
CLUSTER = ClusterSpec.from_lists(chief=["127.0.0.1:1"], worker=["127.0.0.1:2", "127.0.0.1:3"])
CHIEF, WORKER = map(TaskId.parse, ("chief:0", "worker:0"))


@pytest.fixture
def made():
    tasks = []

    def make(assignment):
        tasks.append(ClusterTask(assignment, SECTION))
        return tasks[-1]

    yield make
    for task in tasks:
        task.close(None, [], lambda for_good: None)


def assigned(task, **fields):
    return TaskAssignment(task, CLUSTER, SPEC, "run", **fields)


def test_under_launch_it_reports_that_it_leads_and_keeps_the_metrics(made, tmp_path):
    task = made(assigned(WORKER, run_dir=tmp_path, launched=True))
    files = RunFiles(tmp_path)
    assert not task.context.is_leader
    assert not read_record(files.status(WORKER), TaskStatus).leads
    task.lead()
    assert task.context.is_leader
    assert read_record(files.status(WORKER), TaskStatus).leads
    status = TaskStatus("worker:1", 7, "here", step=3, loss=0.5)
    task.write_down(HeartbeatReply(incarnation=1, generation=1, version=3, ended=False, statuses=(status,)))
    task.close(None, [], lambda for_good: None)
    assert '"global_step":3' in files.metrics.read_text()


def test_by_hand_a_leader_that_waits_for_the_others_is_starting_and_named(tmp_path):
    hand = HandRun(assigned(CHIEF, run_dir=tmp_path))
    chief, *others = read_record(hand.files.run, RunRecord).tasks
    assert (chief.task, chief.state, chief.pid) == ("chief:0", "starting", os.getpid())
    assert chief.host
    assert {task.state for task in others} == {"pending"}
    hand.close(None)


def test_by_hand_it_goes_on_in_the_directory_of_the_one_that_died(made, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = HandRun(assigned(CHIEF))
    task = made(assigned(WORKER))
    assert task.run_dir is None
    before.close(KeyboardInterrupt())  # its lock goes as with its process
    task.lead(str(before.files.directory))
    assert task.run_dir == before.files.directory
    assert read_record(before.files.status(WORKER), TaskStatus).leads
    assert read_record(before.files.run, RunRecord).state == "running"


def test_by_hand_one_that_is_started_again_in_the_directory_of_its_heir_takes_part(made, tmp_path):
    successor = HandRun(assigned(WORKER, run_dir=tmp_path))
    task = made(assigned(CHIEF, run_dir=tmp_path))
    task.follow_another()
    assert not task.context.is_leader
    assert task.run_dir is None
    successor.close(None)


def test_by_hand_a_directory_that_another_run_holds_is_refused_to_a_leader(made, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_task, "LEAVING_S", 0.1)
    other = HandRun(assigned(WORKER, run_dir=tmp_path))
    task = made(assigned(CHIEF, run_dir=tmp_path))
    with pytest.raises(RunInUseError, match="is in use by another run; give another --run-dir"):
        task.lead()
    other.close(None)


def test_by_hand_a_silent_leader_that_keeps_its_directory_leaves_the_next_one_another(
    made, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(cluster_task, "LEAVING_S", 0.1)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = HandRun(assigned(CHIEF, run_dir=tmp_path / "before"))
    task = made(assigned(WORKER))
    task.lead(str(before.files.directory))
    assert task.run_dir.is_relative_to(tmp_path / "state")
    said = capsys.readouterr().err
    assert f"which is silent, keeps {before.files.directory}" in said
    assert f"its files are in {task.run_dir}" in said
    assert read_record(before.files.run, RunRecord).launcher_pid == os.getpid()
    before.close(None)


def test_by_hand_nobody_goes_on_with_a_run_that_has_succeeded(tmp_path):
    before = HandRun(assigned(CHIEF, run_dir=tmp_path))
    before.close(None)
    task = ClusterTask(assigned(WORKER), SECTION)
    with pytest.raises(RunError, match=f"the run in {tmp_path} has succeeded without"):
        task.lead(str(tmp_path))
    task.close(RunError("as above"), [], lambda for_good: None)
    (tmp_path / "left_behind.txt").touch()
    with pytest.raises(RunError, match="has succeeded without"):
        ClusterTask(assigned(CHIEF, run_dir=tmp_path, attempt=1), SECTION)
    assert read_record(before.files.run, RunRecord).state == "succeeded"


@pytest.mark.parametrize("error", [LeftBehindError("the others go on"), PeerLostError("another one")])
def test_by_hand_one_that_was_left_behind_leaves_word_of_it(made, tmp_path, error):
    """So that the process that is started in its place does not make the same steps again, alone."""
    task = ClusterTask(assigned(CHIEF, run_dir=tmp_path), SECTION)
    task.lead()
    task.close(error, [], lambda for_good: None)
    word = made(assigned(CHIEF, run_dir=tmp_path, attempt=1)).left_behind
    assert word.exists() is isinstance(error, LeftBehindError)
    assert not word.exists() or word.read_text() == "the others go on\n"


def test_by_hand_the_last_line_names_the_newest_step_of_the_leader(tmp_path, capsys):
    """Also where it has led so late that the others have told nothing of it."""
    task = ClusterTask(assigned(CHIEF, run_dir=tmp_path), SECTION)
    task.lead()
    task.reporter.progress(40)
    task.close(None, [], lambda for_good: None)
    assert "succeeded" in (said := capsys.readouterr().err)
    assert "at step 40" in said


def test_by_hand_one_that_follows_leaves_no_directory_of_its_own(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    task = made(assigned(CHIEF))
    task.follow_another()
    task.reporter.write()
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]
    assert "leads the run" not in capsys.readouterr().err


def test_by_hand_on_another_machine_it_makes_a_directory(made, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    task = made(assigned(WORKER))
    task.lead("/nowhere/on/this/machine")
    assert task.run_dir is not None
    assert task.run_dir.is_relative_to(tmp_path)


def test_the_first_leader_says_so_too(made, tmp_path):
    task = made(replace(assigned(CHIEF), run_dir=tmp_path, launched=True))
    task.lead()
    assert read_record(RunFiles(tmp_path).status(CHIEF), TaskStatus).leads
