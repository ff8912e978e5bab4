"""Which directories a run may take."""

import errno
import os
from pathlib import Path

import pytest

from dtrain.errors import RunError, RunInUseError, SpecError
from dtrain.runs import files, json_file
from dtrain.runs.files import RunFiles, RunRecord, default_runs_dir, read_record, write_record
from dtrain_cli.runs.index import locked_run_directory


def refusal(directory: Path, resume: bool = False) -> str:
    before = sorted(directory.iterdir())
    with pytest.raises(SpecError) as caught, locked_run_directory(directory, resume):
        pass
    assert sorted(directory.iterdir()) == before, "nothing was written"
    return str(caught.value)


def test_a_new_or_empty_directory_is_taken_and_is_its_owners_alone(tmp_path):
    (tmp_path / "empty").mkdir(mode=0o755)
    for name in ("new", "empty"):
        with locked_run_directory(tmp_path / name, resume=False):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


def test_who_finds_a_run_in_use_leaves_it_the_room_that_it_keeps_on_the_disk(tmp_path):
    with locked_run_directory(tmp_path, resume=False):
        kept = sorted(tmp_path.glob("reserve-*"))
        assert kept
        with (
            pytest.raises(RunInUseError, match="in use by another launch"),
            locked_run_directory(tmp_path, True),
        ):
            pass
        assert sorted(tmp_path.glob("reserve-*")) == kept


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "a.py").touch()
    (tmp_path / "b.py").touch()
    assert (
        "it holds a.py and 1 more, which no run has made; give a new or empty one with --run-dir"
        in refusal(tmp_path)
    )
    assert "it holds a.py" in refusal(tmp_path, resume=True)


def test_a_directory_in_which_others_may_write_is_refused(tmp_path):
    tmp_path.chmod(0o775)
    assert "others may write to it (mode 0775; `chmod go-w` corrects it)" in refusal(tmp_path)


def test_another_users_directory_is_refused_although_it_holds_a_run(tmp_path, monkeypatch):
    write_record(RunFiles(tmp_path).run, RunRecord("r", "n"))
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert f"it belongs to another user (uid {own})" in refusal(tmp_path, resume=True)


def test_a_run_is_resumed_also_where_its_program_has_left_files(tmp_path):
    write_record(RunFiles(tmp_path).run, RunRecord("r", "n"))
    (tmp_path / "of_the_program").touch()
    with locked_run_directory(tmp_path, resume=True) as files:
        assert files.run.exists()
    assert "already holds a run" in refusal(tmp_path)


def test_what_a_launch_leaves_that_was_killed_as_it_began_is_taken(tmp_path):
    with locked_run_directory(tmp_path, resume=False) as files:
        for name in ("spec.json", "plan.json", "join.json", ".run.json.4711"):
            (files.directory / name).touch()
    with locked_run_directory(tmp_path, resume=False):
        pass


def test_a_home_that_cannot_be_written_is_said_with_the_way_out(tmp_path, monkeypatch):
    (tmp_path / "home").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DTRAIN_RUNS_DIR", raising=False)
    said = "Not a directory; say where runs are to be kept with --runs-dir or DTRAIN_RUNS_DIR"
    with pytest.raises(RunError, match=said), locked_run_directory(default_runs_dir() / "run", resume=False):
        pass


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_record_is_overwritten_where_the_disk_has_no_room_for_a_new_one(tmp_path, monkeypatch):
    write_record(tmp_path / "run.json", RunRecord("r", "a-long-name"))
    monkeypatch.setattr(files, "replace_json", full)
    for name in ("b", "one-that-is-longer-than-before"):
        write_record(tmp_path / "run.json", RunRecord("r", name))
        assert read_record(tmp_path / "run.json", RunRecord) == RunRecord("r", name)
    with pytest.raises(OSError, match="No space left"):
        write_record(tmp_path / "other.json", RunRecord("r", "n"))
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_record_that_finds_no_room_even_in_its_place_stays_as_it_was(tmp_path, monkeypatch):
    write_record(tmp_path / "run.json", RunRecord("r", "n"))
    monkeypatch.setattr(files, "replace_json", full)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        write_record(tmp_path / "run.json", RunRecord("r", "a-longer-name"))
    assert read_record(tmp_path / "run.json", RunRecord) == RunRecord("r", "n")


def test_a_record_that_is_being_overwritten_is_read_again(tmp_path, monkeypatch):
    """The first look finds half of the new record and half of the old one."""
    write_record(tmp_path / "run.json", RunRecord("r", "n"))
    whole = (tmp_path / "run.json").read_bytes()
    looks = iter([whole[: len(whole) // 2] + whole, whole])
    monkeypatch.setattr(json_file, "read_regular", lambda path, *_, **__: next(looks))
    assert read_record(tmp_path / "run.json", RunRecord) == RunRecord("r", "n")
