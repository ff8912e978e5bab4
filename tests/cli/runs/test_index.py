"""Finding the run that a person means."""

import os
from pathlib import Path

import pytest

from dtrain.errors import RunError, RunNotFoundError
from dtrain.runs.files import RunFiles, RunRecord, default_runs_dir, write_record
from dtrain_cli.runs.index import find_run, known_runs, register_run


@pytest.fixture
def runs(tmp_path):
    for name, run, hour in [
        ("digits", "a1-digits", 9),
        ("digits", "a2-digits", 11),
        ("line", "b1-line", 10),
        ("x", "b1", 8),
    ]:
        (tmp_path / run).mkdir()
        write_record(
            tmp_path / run / "run.json",
            RunRecord(run, name, "succeeded", started=f"2026-11-21T{hour:02}:00:00+00:00"),
        )
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/run.json").write_text("{")
    return tmp_path


def ids(runs_dir):
    return [run.record.run for run in known_runs(runs_dir)]


def test_newest_first_and_damaged_ones_passed_by(runs):
    assert ids(runs) == ["a2-digits", "b1-line", "a1-digits", "b1"]
    assert ids(runs / "nowhere") == []


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        (None, "a2-digits"),
        ("digits", "a2-digits"),
        ("a1-digits", "a1-digits"),
        ("a1", "a1-digits"),
        ("b1", "b1"),
        ("b1-", "b1-line"),
    ],
)
def test_by_id_name_prefix_or_nothing(runs, reference, found):
    assert find_run(reference, runs).record.run == found


def test_by_path_also_outside_the_runs_directory(runs, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert find_run(str(runs / "a1-digits"), elsewhere).record.run == "a1-digits"
    monkeypatch.chdir(runs / "b1")
    assert find_run(".", elsewhere).files.directory == runs / "b1"
    with pytest.raises(RunError, match="damaged"):
        find_run(str(runs / "damaged"), elsewhere)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("a", "2 runs begin with 'a': a2-digits, a1-digits; write more"),
        ("zz", "no run with the id, name or path 'zz'"),
        ("", "no run"),
    ],
)
def test_none_or_several_is_said(runs, reference, said):
    with pytest.raises(RunNotFoundError, match=said) as caught:
        find_run(reference, runs)
    assert caught.value.exit_code == 3


def test_no_run_at_all(tmp_path):
    with pytest.raises(RunNotFoundError, match="start one with"):
        find_run(None, tmp_path)


def test_runs_that_may_not_be_read_are_said(runs, monkeypatch):
    for name in ("a1-digits", "a2-digits", "b1-line", "damaged"):
        (runs / name / "run.json").unlink()
    opened = os.open

    def refused(path, *arguments, **options):
        if Path(path).name == "b1":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refused)
    said = "b1 may not be read by this user, or belong to another one"
    with pytest.raises(RunNotFoundError, match=f"can be read: {said}; say where your own are"):
        find_run(None, runs)
    with pytest.raises(RunNotFoundError, match=rf"'digits' below .*; {said}"):
        find_run("digits", runs)


def test_a_directory_of_runs_that_cannot_be_read_is_said(runs, monkeypatch):
    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(
        RunError,
        match="cannot be read: Permission denied; say where your runs are with --runs-dir or DTRAIN_RUNS",
    ):
        find_run(None, runs)


def test_a_run_with_its_own_directory_is_known_by_a_link(runs, tmp_path_factory):
    own = tmp_path_factory.mktemp("own")
    write_record(own / "run.json", RunRecord("c1", "own", started="2026-11-22T00:00:00+00:00"))
    for _ in range(2):
        register_run(RunFiles(own), runs, "c1")
    assert find_run(None, runs).files.directory == own
    (own / "run.json").unlink()
    assert "c1" not in ids(runs)


def test_where_runs_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("DTRAIN_RUNS_DIR", raising=False)
    assert default_runs_dir() == tmp_path / ".local/state/dtrain/runs"
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_runs_dir() == Path("/state/dtrain/runs")
    monkeypatch.setenv("DTRAIN_RUNS_DIR", "~/runs")
    assert default_runs_dir() == tmp_path / "runs"
