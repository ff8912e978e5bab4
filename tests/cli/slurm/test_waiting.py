"""A run whose job has not begun: seen, stopped and removed as every other. No Slurm is needed."""

import json

import pytest
from click.testing import CliRunner

from dtrain.errors import RunError, SpecError
from dtrain.runs.files import RunFiles, SavedRecord, write_record
from dtrain_cli.launch import slurm
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.main import cli
from dtrain_cli.runs.index import locked_run_directory, own_record
from dtrain_cli.targets import slurm_jobs
from dtrain_cli.targets.slurm_jobs import JobReport

WAITS = JobReport("PENDING", "Resources", 0, 0, "2026-11-22T10:00:30", "/x.err")


@pytest.fixture
def waiting(tmp_path, monkeypatch):
    """Submit a job; return a function that gives a command on its run, and what Slurm is told of and asked."""
    slurms = {"17": WAITS}
    monkeypatch.setattr(slurm_jobs, "submit", lambda _: "17")
    monkeypatch.setattr(slurm_jobs, "show", slurms.get)
    monkeypatch.setattr(
        slurm_jobs, "cancel", lambda job: slurms.update({job: JobReport("CANCELLED", "None", 0, 0)})
    )
    monkeypatch.setenv("DTRAIN_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (tmp_path / "p.py").write_text("")
    options = LaunchOptions(program=tmp_path / "p.py", sets=("on=slurm",), detach=True)
    assert slurm.launch(options) == 0

    def command(*words):
        done = CliRunner().invoke(cli, words, standalone_mode=False)
        return done.return_value or 0, done.stdout, done.stderr

    return command, slurms


def test_status_says_why_it_waits_and_until_when(waiting):
    command, _ = waiting
    code, out, _ = command("status")
    assert code == 0
    assert "pending" in out
    # The table breaks its lines where the terminal ends.
    assert "job 17 is PENDING (Resources); it may begin at 2026-11-22T10:00:30" in " ".join(out.split())
    report = json.loads(command("status", "--json")[1])
    assert report["state"] == "pending"
    assert {task["state"] for task in report["tasks"]} == {"pending"}
    assert report["tasks"][0]["task"] == "chief:0"


def test_stop_takes_it_out_of_the_queue_and_rm_away(waiting):
    command, slurms = waiting
    assert "still running" in str(CliRunner().invoke(cli, ["rm", "--keep", "0"]).stderr)
    _, _, err = command("stop")
    assert "has stopped" in err
    assert slurms["17"].state == "CANCELLED"
    assert command("status")[0] == 4
    _, _, err = command("rm", "--keep", "0")
    assert "1 run removed" in err


def test_a_run_that_is_resumed_waits_again_and_keeps_its_name_and_its_last_step(waiting, tmp_path):
    command, slurms = waiting
    command("stop")
    (folder,) = (tmp_path / "runs").iterdir()
    record = own_record(folder)
    record.saved = SavedRecord(308, "on h1")
    write_record(RunFiles(folder).run, record)
    slurms["17"] = WAITS
    given = ("--resume=", "p.py")
    options = LaunchOptions(
        program=tmp_path / "p.py", sets=("on=slurm",), detach=True, resume="", given=given
    )
    assert slurm.launch(options) == 0
    assert json.loads(command("status", "--json")[1])["state"] == "pending"
    again = own_record(folder)
    assert (again.run, again.saved, again.exit_code) == (record.run, record.saved, None)


def test_a_job_that_ends_before_its_run_began_has_failed_and_status_says_so(waiting):
    command, slurms = waiting
    slurms["17"] = JobReport("FAILED", "NonZeroExitCode", 127, 0, None, "/x.err")
    code, out, _ = command("status")
    assert code == 1
    assert "exit code 127; its words are in /x.err" in " ".join(out.split())


def test_its_folder_is_its_job_s_alone(waiting, tmp_path):
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-p-17")
    with pytest.raises(SpecError, match="already holds a run"), locked_run_directory(folder, False, "18"):
        pass
    with locked_run_directory(folder, False, "17") as files:
        record = own_record(folder)
        record.launcher_pid = 1
        write_record(files.run, record)
    with pytest.raises(SpecError, match="already holds a run"), locked_run_directory(folder, False, "17"):
        pass


def test_a_slurm_that_does_not_answer_is_said(waiting, monkeypatch):
    def silent(_):
        raise RunError("scontrol has not answered within 60 s")

    monkeypatch.setattr(slurm_jobs, "show", silent)
    assert "has not answered" in str(CliRunner().invoke(cli, ["status"], standalone_mode=False).exception)
