"""The status of a run: what the launcher knows and what tasks say, merged; truthful about runs whose launcher
is gone.
"""

import fcntl
import os
import socket
from pathlib import Path

import pytest

from dtrain.cluster import TaskId
from dtrain.errors import RunNotFoundError
from dtrain.messages.membership import TaskStatus
from dtrain.process.life_line import started_s
from dtrain.runs.files import FailureRecord, RunFiles, RunRecord, TaskRecord, write_record
from dtrain_cli.runs.report import ProcessMeter, ProcessUsage, build_report, is_alive, read_report

FILES = RunFiles(Path("/runs/r"))
RUN_FIELDS = (
    "run name state started ended exit_code global_step max_steps local_steps rolled_back_steps evaluation goodput "
    "failure stalled unsaved "
    "run_dir tasks"
)
TASK_FIELDS = (
    "task state pid host address stage step loss examples_per_s staleness_mean stale_gradients local_steps bytes_sent "
    "bytes_received cpu_percent "
    "memory_bytes restarts heartbeat_age_s waiting_for busy_with leads waiting_share input_share reading_s stalled_s exit_code message certificate_ends log"
)


def run_record(state: str = "running", **kwargs) -> RunRecord:
    tasks = [
        TaskRecord("chief:0", "running", pid=11, host="here", address="a:1", attempt=1, restarts=1),
        TaskRecord("worker:0", "restarting", address="a:2"),
        TaskRecord("evaluator:0", "running", pid=13),
    ]
    return RunRecord("r", "digits", state, started="2026-11-21T10:00:00+00:00", tasks=tasks, **kwargs)


STATUSES = {
    "chief:0": TaskStatus("chief:0", 11, "here", attempt=1, phase="running", monotonic_s=99.0, progress_monotonic_s=90.0,
                          step=40, max_steps=100, loss=0.5, waiting_for="ps:0", rolled_back_steps=7),
    "worker:0": TaskStatus("worker:0", 12, "here", monotonic_s=80.0, progress_monotonic_s=80.0, step=41),
    "evaluator:0": TaskStatus("evaluator:0", 13, "here", monotonic_s=98.0, evaluation={"global_step": 30, "accuracy": 0.9}),
}  # fmt: skip


def report(record: RunRecord, alive: bool = True, statuses=STATUSES) -> dict:
    return build_report(FILES, record, statuses, {"chief:0": ProcessUsage(50.0, 1000)}, alive, now_s=100.0)


def test_every_field_is_there_and_null_where_it_does_not_apply():
    empty = report(RunRecord("r", "digits", tasks=[TaskRecord("ps:0")]), statuses={})
    assert " ".join(empty) == RUN_FIELDS
    assert " ".join(empty["tasks"][0]) == TASK_FIELDS
    filled = {name for name, value in empty["tasks"][0].items() if value is not None}
    assert filled == {"task", "state", "restarts", "log"}
    assert {name for name in empty if empty[name] is None} == {
        "started", "ended", "exit_code", "global_step", "max_steps", "evaluation", "goodput", "failure", "stalled",
        "unsaved", "local_steps",
    }  # fmt: skip


def test_the_launchers_and_the_tasks_words_are_merged():
    merged = report(run_record())
    assert (merged["global_step"], merged["max_steps"], merged["rolled_back_steps"]) == (41, 100, 7)
    assert merged["evaluation"] == {"global_step": 30, "accuracy": 0.9}
    chief = merged["tasks"][0]
    assert (chief["pid"], chief["step"], chief["loss"], chief["waiting_for"]) == (11, 40, 0.5, "ps:0")
    assert (chief["heartbeat_age_s"], chief["stalled_s"], chief["cpu_percent"], chief["memory_bytes"]) == (
        1.0,
        10.0,
        50.0,
        1000,
    )
    assert chief["log"] == "/runs/r/tasks/chief-0/attempt-1/output.log"


def test_an_earlier_attempts_numbers_stay_but_are_no_sign_of_life():
    record = run_record()
    record.tasks[1].attempt = 1
    worker = report(record)["tasks"][1]
    assert (worker["step"], worker["heartbeat_age_s"], worker["stalled_s"]) == (41, None, None)


def test_a_run_whose_launcher_is_gone_is_stale():
    merged = report(run_record(), alive=False)
    assert merged["state"] == "stale"
    assert {task["state"] for task in merged["tasks"]} == {"stopped"}
    assert {task["heartbeat_age_s"] for task in merged["tasks"]} == {None}


@pytest.mark.parametrize("state", ["succeeded", "failed", "stopped"])
def test_an_ended_run_is_what_it_ended_as(state):
    assert report(run_record(state), alive=False)["state"] == state


def test_without_its_evaluator_a_run_has_no_evaluation():
    record = run_record()
    record.tasks[2].state = "failed"
    assert report(record)["evaluation"] is None


def test_the_failure_is_told_in_three_fields():
    failure = FailureRecord("worker:1", "boom", traceback="Traceback", exit_code=1, last_lines=["x"])
    assert report(run_record("failed", failure=failure))["failure"] == {
        "task": "worker:1",
        "message": "boom",
        "traceback": "Traceback",
    }


def test_why_a_task_was_lost_is_told_of_each():
    record = run_record()
    record.tasks[1].message = "ValueError: bad batch"
    assert [task["message"] for task in report(record)["tasks"]] == [None, "ValueError: bad batch", None]


def test_reading_measures_living_processes_only(tmp_path):
    files = RunFiles(tmp_path)
    record = run_record(launcher_pid=os.getpid(), launcher_started=started_s(os.getpid()))
    record.tasks[0].pid, record.tasks[0].host = os.getpid(), None
    record.tasks[2].pid = None
    write_record(files.run, record)
    (tmp_path / "tasks/chief-0").mkdir(parents=True)
    write_record(files.status(TaskId.parse("chief:0")), STATUSES["chief:0"])
    read = read_report(tmp_path)
    assert read["state"] == "running"
    assert read["tasks"][0]["memory_bytes"] > 1_000_000
    assert read["tasks"][0]["cpu_percent"] >= 0
    record.launcher_started -= 1000
    write_record(files.run, record)
    gone = read_report(tmp_path)
    assert (gone["state"], gone["tasks"][0]["memory_bytes"]) == ("stale", None)


def test_the_lock_alone_is_a_sign_of_life(tmp_path):
    files = RunFiles(tmp_path)
    record = RunRecord("r", "x", "running")
    assert not is_alive(files, record)
    with files.lock.open("w") as lock:
        assert not is_alive(files, record)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_alive(files, record)


def test_the_meter_knows_what_is_gone_and_measures_since_last_time():
    meter = ProcessMeter()
    assert meter.measure(2**22 + 1) is None
    first, second = meter.measure(os.getpid()), meter.measure(os.getpid())
    assert first.memory_bytes > 0
    assert second.cpu_percent is None or second.cpu_percent >= 0


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunNotFoundError):
        read_report(tmp_path)


def test_a_task_on_another_machine_says_itself_what_it_uses():
    """A pid is another process's on another machine."""
    record = run_record()
    record.tasks[2].host = "there"
    statuses = {
        **STATUSES,
        "evaluator:0": TaskStatus(
            "evaluator:0", 13, "there", monotonic_s=98.0, cpu_percent=7.5, memory_bytes=2000
        ),
    }
    evaluator = report(record, statuses=statuses)["tasks"][2]
    assert (evaluator["cpu_percent"], evaluator["memory_bytes"]) == (7.5, 2000)


def test_a_process_of_this_machine_with_a_pid_of_another_one_is_not_measured(tmp_path):
    files = RunFiles(tmp_path)
    tasks = [
        TaskRecord("chief:0", "running", pid=os.getpid(), host=socket.gethostname()),
        TaskRecord("worker:0", "running", pid=os.getpid(), host="there"),
    ]
    own = {"launcher_pid": os.getpid(), "launcher_started": started_s(os.getpid())}
    files.create()
    write_record(files.run, RunRecord("r", "digits", "running", tasks=tasks, **own))
    chief, worker = read_report(tmp_path)["tasks"]
    assert chief["memory_bytes"] > 0
    assert worker["memory_bytes"] is None


def test_where_no_logs_are_kept_none_are_named():
    assert report(run_record(keeps_logs=False))["tasks"][0]["log"] is None


def test_of_tasks_by_hand_whose_leader_has_died_nobody_knows_that_they_have_ended():
    by_hand = run_record(keeps_logs=False, host="here", launcher_pid=11)
    by_hand.tasks.append(TaskRecord("worker:1"))
    said = {task["task"]: task["message"] for task in report(by_hand, alive=False)["tasks"]}
    assert "has not reported since the leader of the run died" in said["evaluator:0"]
    assert said["chief:0"] is None, "it is the leader"
    assert said["worker:1"] is None, "it never came"
    launched = report(run_record(), alive=False)["tasks"]
    assert {task["message"] for task in launched} == {None}
