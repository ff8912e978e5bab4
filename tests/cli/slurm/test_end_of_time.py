"""A job that is told to stop begins again, unless it was cancelled or `dtrain stop` has ended its run.

No Slurm is needed.
"""

import os

import pytest

from dtrain.config import RunSpec, SlurmSection
from dtrain.process.life_line import started_s
from dtrain.runs.files import RunFiles, RunRecord, write_record
from dtrain_cli.launch import slurm
from dtrain_cli.launch.launcher import Scene
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.runs import ending
from dtrain_cli.runs.index import KnownRun
from dtrain_cli.targets.slurm_jobs import JobReport

BATCH = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "ENVIRONMENT": "BATCH"}


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """Let a launch in a job at the end of its time end with 143; return the jobs that were requeued."""
    files = RunFiles(tmp_path / "r1")
    files.create()
    requeued: list[str] = []
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "ENVIRONMENT"):
        monkeypatch.setenv(name, BATCH[name])
    monkeypatch.setattr(slurm, "fleet_target", lambda *_: None)
    monkeypatch.setattr(slurm, "_with_addresses", lambda hosts, _: hosts)
    monkeypatch.setattr(slurm.slurm_jobs, "requeue", requeued.append)

    def ended(during, requeue=True, state="RUNNING"):
        report = state and JobReport(state, "None", 0, 0)
        monkeypatch.setattr(slurm.slurm_jobs, "show", lambda _: report)

        def run(options, target_of, job):
            assert not options.detach, "the job's script has it from the command that has submitted it"
            spec = RunSpec(slurm=SlurmSection(requeue=requeue))
            scene = Scene(spec, None, files, "r1", None, print)
            target_of(scene)
            during(files)
            return 143

        monkeypatch.setattr(slurm.launcher, "run", run)
        assert slurm.launch(LaunchOptions(program=tmp_path / "p.py", detach=True)) == 143
        return requeued

    return ended


def asked(files, pid=0, started=0.0):
    """Do as `dtrain stop` does before it signals the launcher."""
    record = RunRecord(files.directory.name, "r", launcher_pid=pid or os.getpid())
    record.launcher_started = started or started_s(os.getpid())
    write_record(files.run, record)
    ending.note(KnownRun(files, record))


def test_a_run_that_slurm_has_told_to_stop_begins_again(ended):
    assert ended(lambda _: None) == ["7"]


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PENDING", "TIMEOUT", None])
def test_a_job_that_was_cancelled_or_that_slurm_has_requeued_itself_is_left_alone(ended, state):
    assert ended(lambda _: None, state=state) == []


def test_a_run_that_dtrain_stop_has_ended_stays_so(ended):
    assert ended(asked) == []


def test_a_stop_of_an_earlier_launch_of_the_run_does_not_count(ended):
    assert ended(lambda files: asked(files, started=1.0)) == ["7"]


def test_a_spec_that_wants_no_requeue_gets_none(ended):
    assert ended(lambda _: None, requeue=False) == []
