"""A run whose leader is on another host, of which this one sees the directory: its clocks and process ids are not
this machine's.
"""

import os
import socket
import time

import pytest
from msgspec.structs import replace

from dtrain.cluster import TaskId
from dtrain.config.choices import On
from dtrain.errors import RunError, RunNotFoundError
from dtrain.messages.membership import TaskStatus
from dtrain.process.life_line import started_s
from dtrain.runs.files import RunRecord, TaskRecord, write_record
from dtrain.runs.states import RunState, TaskState
from dtrain_cli.launch.run_elsewhere import run_elsewhere
from dtrain_cli.runs.ending import stop_launcher
from dtrain_cli.runs.faults import RunningTask
from dtrain_cli.runs.index import WhereRecord, find_run, locked_run_directory
from dtrain_cli.runs.report import launcher_lives, read_report
from dtrain_cli.targets import slurm_jobs

MONTHS_S = 1e7


@pytest.fixture
def led_there(tmp_path):
    """A run that is alive on machine-b, with the pid of this process there, and one status a second old."""
    with locked_run_directory(tmp_path / "r", resume=False) as files:
        tasks = [
            TaskRecord(task, TaskState.RUNNING, pid=os.getpid(), host="machine-b")
            for task in ("chief:0", "worker:0")
        ]
        record = RunRecord(
            "r",
            "r",
            RunState.RUNNING,
            launcher_pid=os.getpid(),
            launcher_started=started_s(os.getpid()),
            host="machine-b",
            tasks=tasks,
        )
        write_record(files.run, record)
        there_s = time.monotonic() + MONTHS_S
        for task, at_s in (("chief:0", there_s), ("worker:0", there_s - 30)):
            path = files.status(TaskId.parse(task))
            path.parent.mkdir(parents=True)
            write_record(path, TaskStatus(task, os.getpid(), "machine-b", monotonic_s=at_s))
            os.utime(path, (time.time() - 1, time.time() - 1))
        yield files


def test_how_long_ago_a_task_was_heard_goes_by_the_clock_that_is_told_there(led_there):
    report = read_report(led_there.directory)
    assert report["state"] == "running"
    chief, worker = report["tasks"]
    assert 1 <= chief["heartbeat_age_s"] < MONTHS_S / 2
    assert 29.9 < worker["heartbeat_age_s"] - chief["heartbeat_age_s"] < 30.1
    assert chief["memory_bytes"] is None  # that pid is this very process here


def test_a_process_here_with_the_pid_of_the_launcher_there_is_not_it(led_there):
    assert not launcher_lives(find_run("r", led_there.directory.parent).record)


def test_stop_names_the_host_where_it_has_to_be_given(led_there):
    with pytest.raises(RunError, match=rf"run r is led on machine-b \(process {os.getpid()} there\)"):
        stop_launcher(find_run("r", led_there.directory.parent), 1.0)


def test_chaos_signals_no_process_of_another_host(led_there):
    with pytest.raises(RunError, match="worker:0 runs on machine-b"):
        RunningTask(led_there.directory, TaskId.parse("worker:0")).signal("pause")


def test_a_name_that_no_run_here_has_may_be_that_of_a_run_elsewhere(tmp_path):
    with pytest.raises(RunNotFoundError, match=r"'digits'.*started by hand are on its leader's machine"):
        find_run("digits", tmp_path)


def test_this_machines_own_name_is_no_other_host(tmp_path):
    record = RunRecord("r", "r", launcher_pid=os.getpid(), launcher_started=started_s(os.getpid()))
    assert launcher_lives(record)
    record.host = socket.gethostname()
    assert launcher_lives(record)


@pytest.mark.parametrize("heard", [True, False])
def test_slurm_tells_the_launcher_of_a_job_to_stop(led_there, monkeypatch, heard):
    """The stop is noted before, so that the launcher does not take it for the end of its time."""
    write_record(led_there.where, WhereRecord(On.SLURM, ["machine-b"], "17"))
    run = find_run(str(led_there.directory), led_there.directory.parent)
    told: list[str] = []

    def tell(job):
        told.append(job)
        assert led_there.stop.exists()
        if heard:
            write_record(led_there.run, replace(run.record, state=RunState.STOPPED))

    monkeypatch.setattr(slurm_jobs, "tell_to_stop", tell)
    assert run_elsewhere(run).stop(0.0) is heard
    assert told == ["17"]


def test_what_slurm_answers_to_a_stop_is_said(led_there, monkeypatch):
    write_record(led_there.where, WhereRecord(On.SLURM, ["machine-b"], "17"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RunError, match="scancel: no such command"):
        run_elsewhere(find_run(str(led_there.directory), led_there.directory.parent)).stop(0.0)
