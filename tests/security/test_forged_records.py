"""Run directories that another user has made, may write to, or has filled: nothing in them is believed."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dtrain.cluster import TaskId
from dtrain.errors import RunError, RunNotFoundError
from dtrain.process.life_line import started_s
from dtrain.runs.files import JoinRecord, RunFiles, RunRecord, TaskRecord, offer_to_join, write_record
from dtrain.runs.json_file import keep_room
from dtrain_cli.main import cli
from dtrain_cli.runs.ending import stop_launcher
from dtrain_cli.runs.index import find_run, known_runs, locked_run_directory, register_run, survey

PATIENT = [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"]


def run_of(directory: Path, started: str = "2026-11-21T10:00:00+00:00", **fields) -> RunFiles:
    directory.mkdir(exist_ok=True, mode=0o700)
    files = RunFiles(directory)
    write_record(files.run, RunRecord(directory.name, "digits", started=started, **fields))
    return files


@pytest.fixture
def other_user(monkeypatch):
    """Be another user than the one who has made the files of the test."""

    def become():
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)

    return become


@pytest.fixture
def stranger():
    with subprocess.Popen(PATIENT, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def dtrain(*arguments: str, runs_dir: Path):
    return CliRunner().invoke(cli, [*arguments, "--runs-dir", str(runs_dir)])


def test_a_folder_in_which_others_may_write_is_refused_also_without_a_launcher(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(RunError, match=r"others may write to it \(mode 0777; `chmod go-w` corrects it\)"):
        RunFiles(tmp_path).create()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o777


def test_another_users_folder_is_refused_also_without_a_launcher(tmp_path, other_user):
    other_user()
    with pytest.raises(RunError, match="belongs to another user"):
        RunFiles(tmp_path).create()


def test_an_own_folder_becomes_private(tmp_path):
    tmp_path.chmod(0o755)
    RunFiles(tmp_path).create()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_no_file_is_written_through_a_link_and_each_is_its_owners_alone(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    run = tmp_path / "run"
    run.mkdir()
    for name in ("lock", "join.json", f".join.json.{os.getpid()}", "reserve-run.json-0"):
        (run / name).symlink_to(victim)
    files = RunFiles(run)
    keep_room(run)
    offer_to_join(files, JoinRecord("r", True, {}, "secret"))
    with pytest.raises(OSError, match="symbolic links"), locked_run_directory(run, resume=False):
        pass
    assert victim.read_text() == "kept"
    assert stat.S_IMODE(files.join.lstat().st_mode) == 0o600
    assert stat.S_ISREG(files.join.lstat().st_mode)


def test_a_record_that_is_a_link_or_a_fifo_is_not_followed_and_not_waited_for(tmp_path):
    files = run_of(tmp_path / "a")
    files.run.rename(tmp_path / "elsewhere")
    files.run.symlink_to(tmp_path / "elsewhere")
    os.mkfifo(run_of(tmp_path / "b").directory / "fifo")
    (tmp_path / "b/fifo").replace(tmp_path / "b/run.json")
    found = survey(tmp_path)
    assert found.runs == []
    assert len(found.unread) == 2, found.unread
    assert "found a FIFO" in found.unread[1]


def test_another_users_record_is_not_believed(tmp_path, other_user):
    run_of(tmp_path / "a")
    other_user()
    assert known_runs(tmp_path) == []
    with pytest.raises(RunNotFoundError, match="a may not be read by this user, or belong to another one"):
        find_run(None, tmp_path)
    with pytest.raises(RunError, match="belongs to another user"):
        find_run(str(tmp_path / "a"), tmp_path)


@pytest.mark.parametrize("open_to_others", ["", "run.json"])
def test_a_record_that_others_may_write_is_not_believed(tmp_path, open_to_others):
    run_of(tmp_path / "a")
    (tmp_path / "a" / open_to_others).chmod(0o666 if open_to_others else 0o777)
    found = survey(tmp_path)
    assert found.runs == []
    assert "others may write to it" in found.unread[0]
    assert "chmod go-w" in found.unread[0]


def test_stop_ends_no_process_that_does_not_hold_the_lock(tmp_path, stranger):
    run_of(
        tmp_path / "a", state="running", launcher_pid=stranger.pid, launcher_started=started_s(stranger.pid)
    ).lock.touch()
    with pytest.raises(RunError, match=f"{stranger.pid} is not the launcher of run a: it does not hold"):
        stop_launcher(find_run(None, tmp_path), 1.0)
    by_another = locked_run_directory(tmp_path / "a", resume=True)
    with by_another, pytest.raises(RunError, match="does not hold"):
        stop_launcher(find_run(None, tmp_path), 1.0)
    assert stranger.poll() is None
    stranger.send_signal(signal.SIGKILL)


def test_a_damaged_run_hides_no_other_and_is_named_in_one_line(tmp_path):
    run_of(tmp_path / "good")
    run_of(tmp_path / "bad").run.write_text('{"run": 7}')
    run_of(tmp_path / "odd", tasks=[TaskRecord("nonsense")])
    for command in (("runs",), ("status",), ("logs",)):
        done = dtrain(*command, runs_dir=tmp_path)
        assert done.exit_code == 0, done.output
    done = dtrain("runs", "--json", runs_dir=tmp_path)
    assert [line.split()[1] for line in done.stderr.splitlines()] == [
        str(tmp_path / "bad/run.json"),
        str(tmp_path / "odd/run.json"),
    ]


def test_a_damaged_status_costs_its_own_task_alone(tmp_path):
    files = run_of(tmp_path / "a", state="succeeded", tasks=[TaskRecord("ps:0"), TaskRecord("worker:0")])
    (tmp_path / "a/tasks/worker-0").mkdir(parents=True)
    (tmp_path / "a/tasks/worker-0/status.json").write_text("{")
    (tmp_path / "a/tasks/foo-bar").mkdir()
    (tmp_path / "a/tasks/worker-x").mkdir()
    done = dtrain("status", runs_dir=tmp_path)
    assert done.exit_code == 0, done.output
    assert "ps:0" in done.stdout
    assert done.stderr.count("\n") == 1
    assert f"{files.directory}/tasks/worker-0/status.json is damaged" in done.stderr
    assert files.tasks() == [TaskId.parse("worker:0")]
    assert dtrain("runs", runs_dir=tmp_path).exit_code == 0


@pytest.mark.parametrize("time", ["yesterday", "0001-01-01T00:00:00", "9999-12-31T23:59:59", ""])
def test_a_start_that_is_no_time_ends_no_command(tmp_path, time):
    run_of(tmp_path / "a", started=time, state="succeeded", ended=time)
    run_of(tmp_path / "b")
    for command in (("runs",), ("status", "a"), ("rm", "--older-than", "1d", "--dry-run")):
        done = dtrain(*command, runs_dir=tmp_path)
        assert done.exit_code == 0, (command, done.output, done.exception)


def test_a_directory_that_is_used_again_is_listed_once(tmp_path):
    own = tmp_path / "own"
    runs_dir = tmp_path / "runs"
    for run in ("r1", "r2"):
        register_run(run_of(own), runs_dir, run)
    assert len(list(runs_dir.iterdir())) == 2
    assert len(known_runs(runs_dir)) == 1
