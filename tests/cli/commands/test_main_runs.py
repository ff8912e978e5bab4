"""status, logs, stop and runs on run directories as a launch leaves them, dead or alive."""

import json
import os
import signal
import subprocess
import sys
from io import StringIO

import pytest
from rich.console import Console

from dtrain.cluster import TaskId
from dtrain.messages.membership import TaskStatus
from dtrain.process.life_line import started_s
from dtrain.runs.files import FailureRecord, RunFiles, RunRecord, TaskRecord, read_record, write_record
from dtrain_cli.console.run_table import status_table
from dtrain_cli.console.watching import WatchScreen
from dtrain_cli.runs.report import build_report

DTRAIN = [sys.executable, "-m", "dtrain_cli.main"]
SLEEPER = """import fcntl, os, signal, sys
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
if sys.argv[2:]: signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
signal.pause()
"""


@pytest.fixture
def make_run(tmp_path):
    """Write a run's files; its launcher is `pid`, or gone."""

    def make(run: str = "r1", state: str = "succeeded", pid: int | None = None, **kwargs) -> RunFiles:
        files = RunFiles(tmp_path / run)
        tasks = [
            TaskRecord(name, "succeeded" if pid is None else "running")
            for name in ("chief:0", "worker:0", "ps:0")
        ]
        record = RunRecord(
            run, "digits", state, started=f"2026-11-21T10:00:00.{run[-1]}+00:00", tasks=tasks, **kwargs
        )
        if pid is not None:
            record.launcher_pid, record.launcher_started = pid, started_s(pid)
        for task in tasks:
            task_id = TaskId.parse(task.task)
            files.attempt(task_id, 0).mkdir(parents=True)
            files.log(task_id, 0).write_bytes(f"{task.task} begins\n{task.task} ends\n".encode())
            write_record(
                files.status(task_id), TaskStatus(task.task, 1, "here", step=7, max_steps=9, loss=0.25)
            )
        write_record(files.run, record)
        return files

    return make


def launcher_of(directory, *stubborn):
    """Start a process that holds the lock of a run, as a launcher does."""
    return subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(directory / "lock"), *stubborn], stdout=subprocess.PIPE
    )


@pytest.fixture
def sleeper(tmp_path):
    with launcher_of(tmp_path / "r1") as process:
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def dtrain(tmp_path):
    def run(*arguments: str, columns: int | None = 80) -> subprocess.CompletedProcess:
        environment = {**os.environ, "DTRAIN_RUNS_DIR": str(tmp_path), "NO_COLOR": "1"}
        environment.pop("COLUMNS", None)
        environment |= {"COLUMNS": str(columns)} if columns else {}
        return subprocess.run(
            [*DTRAIN, *arguments], capture_output=True, text=True, env=environment, check=False
        )

    return run


@pytest.mark.parametrize(
    ("state", "code"), [("pending", 1), ("running", 1), ("succeeded", 0), ("failed", 1), ("stopped", 4)]
)
def test_the_exit_code_of_status_tells_the_state_and_a_dead_launcher(make_run, dtrain, state, code):
    make_run(state=state)
    done = dtrain("status", "--json")
    report = json.loads(done.stdout)
    assert report["state"] == (state if state in ("succeeded", "failed", "stopped") else "stale")
    assert done.returncode == code
    assert report["global_step"] == 7


def test_a_living_run_is_running_and_ends_with_0(make_run, dtrain, sleeper):
    make_run(state="running", pid=sleeper.pid)
    done = dtrain("status", "--json")
    assert (json.loads(done.stdout)["state"], done.returncode) == ("running", 0)


def test_no_such_run_is_3(make_run, dtrain):
    assert dtrain("status").returncode == 3
    make_run()
    done = dtrain("status", "nothing")
    assert done.returncode == 3
    assert done.stderr.startswith("dtrain: no run with the id, name or path 'nothing'")


def test_the_table_fits_80_columns_and_names_the_failure(make_run, dtrain):
    failure = FailureRecord("worker:0", "ValueError: boom", kind="exception")
    make_run(state="failed", failure=failure, exit_code=1)
    done = dtrain("status")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "run r1  failed (exit code 1)  step 7 of 9"
    assert any(line.split()[:3] == ["worker:0", "succeeded", "7"] for line in lines)
    assert "worker:0 failed: ValueError: boom" in lines
    assert "\x1b" not in done.stdout


def test_status_says_why_each_task_was_lost_also_of_a_run_that_succeeded(make_run, dtrain):
    files = make_run(state="succeeded")
    record = read_record(files.run, RunRecord)
    for task in record.tasks[:2]:
        task.state, task.exit_code, task.message = "failed", 1, "ValueError: bad batch"
    record.tasks[2].exit_code = 143
    write_record(files.run, record)
    lines = dtrain("status", columns=None).stdout.splitlines()
    log = files.log(TaskId.parse("chief:0"), 0)
    assert f"chief:0 failed at step 7: ValueError: bad batch (log: {log}), likewise worker:0" in lines
    assert not any("143" in line for line in lines if line.startswith("ps:0")), "it was told to stop: no news"
    assert [task["message"] for task in json.loads(dtrain("status", "--json").stdout)["tasks"]] == [
        "ValueError: bad batch",
        "ValueError: bad batch",
        None,
    ]


def test_watch_ends_with_the_run(make_run, dtrain):
    make_run()
    assert dtrain("status", "--watch").returncode == 0


def test_logs_of_one_task_are_its_output_and_of_several_are_labelled(make_run, dtrain):
    files = make_run()
    assert dtrain("logs", "worker:0").stdout == "worker:0 begins\nworker:0 ends\n"
    assert dtrain("logs", "digits", "/job:ps/task:0", "-n", "1").stdout == "ps:0 ends\n"
    assert dtrain("logs", "-n", "1").stdout.splitlines() == [
        "chief:0  | chief:0 ends",
        "worker:0 | worker:0 ends",
        "ps:0     | ps:0 ends",
    ]
    files.attempt(TaskId.parse("worker:0"), 1).mkdir()
    files.log(TaskId.parse("worker:0"), 1).write_text("again")
    assert dtrain("logs", "r1", "worker:0", "-f").stdout == "worker:0 begins\nworker:0 ends\nagain"
    done = dtrain("logs", "worker:9")
    assert (done.returncode, done.stderr) == (2, "run r1 has no worker:9; it has chief:0, worker:0, ps:0\n")


def test_that_there_are_no_logs_of_tasks_by_hand_is_said(make_run, dtrain):
    files = make_run()
    log = files.log(TaskId.parse("worker:0"), 0)
    for leave_nothing in (lambda: log.write_bytes(b""), log.unlink):
        leave_nothing()
        done = dtrain("logs", "worker:0")
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "worker:0 of run r1: nothing printed so far\n"
    record = read_record(files.run, RunRecord)
    record.keeps_logs = False
    write_record(files.run, record)
    assert dtrain("logs", "worker:0").stderr.endswith(
        "; a task without a launcher prints on its own terminal\n"
    )
    assert dtrain("logs").stderr == ""


def test_logs_follow_until_the_launcher_is_gone(make_run, tmp_path, sleeper):
    files = make_run(state="running", pid=sleeper.pid)
    with subprocess.Popen(
        [*DTRAIN, "logs", "worker:0", "-f", "--runs-dir", str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout.readline() == "worker:0 begins\n"
        with files.log(TaskId.parse("worker:0"), 0).open("a") as log:
            log.write("more\n")
        assert [follower.stdout.readline() for _ in range(2)] == ["worker:0 ends\n", "more\n"]
        sleeper.kill()
        sleeper.wait()
        assert follower.stdout.read() == ""
    assert follower.returncode == 0


def test_logs_into_a_closed_pipe_are_silence(make_run, tmp_path):
    files = make_run()
    files.log(TaskId.parse("worker:0"), 0).write_bytes(b"x\n" * 1_000_000)
    process = subprocess.Popen(
        [*DTRAIN, "logs", "--runs-dir", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == (b"", 0)
    process.stderr.close()


@pytest.mark.parametrize("suspended", [False, True])
def test_stop_signals_the_launcher_and_waits(make_run, dtrain, sleeper, suspended):
    make_run(state="running", pid=sleeper.pid)
    if suspended:
        sleeper.send_signal(signal.SIGSTOP)  # what Ctrl-Z comes to
    done = dtrain("stop")
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == "stopping run r1"
    assert sleeper.wait() == -signal.SIGTERM


def test_stop_of_what_has_ended_says_so(make_run, dtrain):
    make_run()
    assert dtrain("stop", "r1").stderr == "run r1 is not running: it has succeeded\n"
    make_run("r2", state="running")
    assert dtrain("stop").stderr == "run r2 is not running: its launcher has died, and its tasks with it\n"
    assert dtrain("stop", "r9").returncode == 3


def test_stop_never_signals_a_stranger_with_the_same_pid(make_run, dtrain, sleeper):
    files = make_run("r2", state="running", pid=sleeper.pid)
    record = json.loads(files.run.read_text())
    record["launcher_started"] -= 1000
    files.run.write_text(json.dumps(record))
    assert "launcher has died" in dtrain("stop").stderr
    assert sleeper.poll() is None


def test_stop_gives_up_waiting_after_a_while(make_run, dtrain, tmp_path):
    with launcher_of(tmp_path / "r1", "stubborn") as process:
        process.stdout.readline()
        make_run(state="running", pid=process.pid)
        done = dtrain("stop", "--wait", "0.05")
        process.kill()
    assert done.returncode == 1
    assert "still stopping after 0.05 s" in done.stderr


def test_runs_are_listed_newest_first(make_run, dtrain):
    assert dtrain("runs").stderr.startswith("no run below")
    make_run("r1", state="failed", exit_code=1)
    make_run("r2")
    listed = json.loads(dtrain("runs", "--json").stdout)
    assert [(run["run"], run["state"], run["exit_code"]) for run in listed] == [
        ("r2", "succeeded", None),
        ("r1", "failed", 1),
    ]
    assert "2026-11-21" in dtrain("runs").stdout
    assert [line.split()[0] for line in dtrain("runs").stdout.splitlines() if line.startswith("r")] == [
        "run",
        "r2",
        "r1",
    ]


def test_the_name_gives_way_where_there_is_little_room_and_nothing_does_in_a_pipe(make_run, dtrain):
    run = "20261121-183848-a-rather-long-name-0001"
    make_run(run)
    [_, _, row] = dtrain("runs").stdout.splitlines()
    assert row.split()[0] == run
    assert "succeeded" in row
    assert "…" not in dtrain("runs", columns=None).stdout
    assert "digits" in dtrain("runs", columns=None).stdout


@pytest.mark.parametrize("height", [16, 13])
def test_watching_shows_no_more_tasks_than_there_are_lines(tmp_path, height):
    names = ["chief:0", *(f"worker:{index}" for index in range(30)), "ps:0", "ps:1", "evaluator:0"]
    record = RunRecord("r1", "digits", "running", tasks=[TaskRecord(name, "running") for name in names])
    statuses = {name: TaskStatus(name, 1, "here", step=100, loss=0.25) for name in names}
    statuses["worker:17"].waiting_for = "ps:1"
    statuses["worker:23"].step = 50
    report = build_report(RunFiles(tmp_path), record, statuses, {}, True, 0.0)
    console = Console(file=StringIO(), width=60, height=height)
    console.print(WatchScreen(lambda task, count: []).render(report, console, 0.0))
    lines = console.file.getvalue().splitlines()
    assert len(lines) < height
    assert lines[0].startswith("run r1  running  step 100")
    shown = [line.split()[0] for line in lines if ":" in line.split()[0]]
    assert {"chief:0", "worker:17", "worker:23", "ps:0"} <= set(shown)
    assert f"and {len(names) - len(shown)} more tasks" in lines
    assert len(status_table(report, 60).renderables[1].rows) == len(names), "a pipe gets them all"


def test_in_local_steps_rounds_and_traffic_have_their_place_at_80_columns(tmp_path):
    record = RunRecord("r1", "digits", "running", tasks=[TaskRecord("worker:0", "running")])
    own = TaskStatus("worker:0", 1, "here", step=100, max_steps=300, loss=0.25, cpu_percent=91.0)
    own.local_steps, own.bytes_sent, own.bytes_received, own.memory_bytes = (
        2000,
        4_040_000,
        4_450_000,
        1 << 30,
    )
    report = build_report(RunFiles(tmp_path), record, {"worker:0": own}, {}, True, 0.0)
    console = Console(file=StringIO(), width=80)
    console.print(status_table(report, 80))
    headline, heading, _, row, *_ = console.file.getvalue().splitlines()
    assert "round 100 of 300" in headline
    words = heading.split("  ")
    assert {"round", "local steps", "sent", "received"} <= {word.strip() for word in words}
    assert [word for word in ("2000", "4.0 MB", "4.5 MB") if word not in row] == []
    assert max(map(len, (headline, heading, row))) <= 80
