"""The exit code of a command that follows a job and gets Ctrl-C: as on every engine. No Slurm is needed."""

import os
import signal

import pytest

from dtrain.runs.files import RunFiles
from dtrain_cli.launch import run_elsewhere, slurm
from dtrain_cli.targets import slurm_jobs
from dtrain_cli.targets.slurm_jobs import JobReport


class Signals:
    """An inbox in which one signal lies."""

    def __init__(self, number: int) -> None:
        self._numbers = [number]
        self._reader, writer = os.pipe()
        os.close(writer)  # so that it can be read

    def fileno(self) -> int:
        return self._reader

    def read(self) -> list[int]:
        numbers, self._numbers = self._numbers, []
        return numbers


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """Follow a job that runs until it is cancelled; return the exit code, and the jobs that were cancelled."""

    def follow(number: int, cancels: bool, end: JobReport) -> tuple[int, list[str]]:
        cancelled: list[str] = []
        monkeypatch.setattr(run_elsewhere, "asked_to_cancel", lambda *_: cancels)
        monkeypatch.setattr(run_elsewhere, "_LOOK_EVERY_S", (0.0, 0.0))
        monkeypatch.setattr(slurm_jobs, "cancel", cancelled.append)
        monkeypatch.setattr(
            slurm_jobs, "show", lambda _: end if cancelled else JobReport("RUNNING", "None", 0, 0)
        )
        for name in ("out", "err"):
            (tmp_path / name).touch()
        job = slurm.JobOfRun(RunFiles(tmp_path / "run"), "7", (tmp_path / "out", tmp_path / "err"))
        return run_elsewhere.follow(job, Signals(number))[1], cancelled

    return follow


CANCELLED = JobReport("CANCELLED", "None", 143, 0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_job_that_is_left_ends_the_command_with_the_code_of_the_signal(follow, number, code):
    assert follow(number, False, CANCELLED) == (code, [])


def test_a_job_that_is_cancelled_by_ctrl_c_ends_it_with_130_too(follow):
    assert follow(signal.SIGINT, True, CANCELLED) == (130, ["7"])


def test_a_job_that_was_faster_than_its_cancelling_has_succeeded(follow):
    assert follow(signal.SIGINT, True, JobReport("COMPLETED", "None", 0, 0)) == (0, ["7"])
