"""dtrain rm: what it removes, what it spares, and what it says."""

import fcntl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dtrain.config.choices import On
from dtrain.runs.files import RunFiles, RunRecord, write_record
from dtrain_cli.main import cli
from dtrain_cli.runs.index import WhereRecord, register_run


@pytest.fixture
def runs_dir(tmp_path):
    """Runs r0 to r3, which ended so many days ago, of 100 kB each."""
    for days in range(4):
        make_run(tmp_path / "runs" / f"r{days}", days)
    return tmp_path / "runs"


def make_run(directory: Path, days: int) -> RunFiles:
    files = RunFiles(directory)
    files.checkpoints.mkdir(parents=True)
    (files.checkpoints / "arrays").write_bytes(b"x" * 100_000)
    when = datetime.now(UTC) - timedelta(days=days, hours=1)
    write_record(
        files.run,
        RunRecord(directory.name, "digits", "succeeded", started=when.isoformat(), ended=when.isoformat()),
    )
    return files


def rm(runs_dir: Path, *words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, ["rm", "--runs-dir", str(runs_dir), *words])
    error = done.exception
    assert (getattr(error, "exit_code", None) or getattr(error, "code", 0)) == code, done.output
    return done


def left(runs_dir: Path) -> list[str]:
    return sorted(path.name for path in runs_dir.iterdir())


@pytest.mark.parametrize(
    ("words", "stay"),
    [
        (["r1"], ["r0", "r2", "r3"]),
        (["r1", "r3"], ["r0", "r2"]),
        (["digits"], ["r1", "r2", "r3"]),
        (["--older-than", "2d"], ["r0", "r1"]),
        (["--older-than", "36h"], ["r0", "r1"]),
        (["--keep", "1"], ["r0"]),
        (["--keep", "0"], []),
        (["--older-than", "2d", "--keep", "3"], ["r0", "r1", "r2"]),
        (["--older-than", "2d", "r1", "r3"], ["r0", "r1", "r2"]),
        (["--older-than", "9w"], ["r0", "r1", "r2", "r3"]),
        (["--keep", "1", "--dry-run"], ["r0", "r1", "r2", "r3"]),
    ],
)
def test_which_runs_go(runs_dir, words, stay):
    rm(runs_dir, *words)
    assert left(runs_dir) == stay


def test_what_goes_is_said_with_its_space(runs_dir):
    done = rm(runs_dir, "--keep", "2")
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["removing", str(runs_dir / run)] for run in ("r2", "r3")
    ]
    assert all("kB" in line for line in done.stdout.splitlines())
    assert done.stderr.startswith("2 runs removed, 2")
    done = rm(runs_dir, "--keep", "1", "--dry-run")
    assert done.stdout.startswith("would remove ")
    assert done.stderr.startswith("1 run would be removed, 1")


def test_a_run_that_lives_is_never_removed(runs_dir):
    with (runs_dir / "r2" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "run r2 is still running; stop it first with `dtrain stop r2`" in str(
            rm(runs_dir, "r1", "r2", code=2).exception
        )
        assert left(runs_dir) == ["r0", "r1", "r2", "r3"]
        assert "1 run still running, not removed" in rm(runs_dir, "--keep", "0").stderr
        assert left(runs_dir) == ["r2"]
        assert (runs_dir / "r2" / "checkpoints" / "arrays").exists()


def test_of_a_directory_elsewhere_only_what_dtrain_has_written_goes(runs_dir, tmp_path):
    for name in ("mine", "shared"):
        register_run(make_run(tmp_path / name, 9), runs_dir, name)
    (tmp_path / "shared" / "notes.txt").touch()
    rm(runs_dir, "mine", "shared")
    assert left(runs_dir) == ["r0", "r1", "r2", "r3"]
    assert not (tmp_path / "mine").exists()
    assert left(tmp_path / "shared") == ["notes.txt"]


@pytest.mark.parametrize(
    ("words", "code"), [([], 2), (["--older-than", "soon"], 2), (["--keep", "-1"], 2), (["r9"], 3)]
)
def test_what_is_not_understood_removes_nothing(runs_dir, words, code):
    rm(runs_dir, *words, code=code)
    assert left(runs_dir) == ["r0", "r1", "r2", "r3"]


def test_runs_says_what_all_of_them_use(runs_dir):
    done = CliRunner().invoke(cli, ["runs", "--runs-dir", str(runs_dir)])
    assert done.stderr.startswith("4 runs in 4")
    assert f"kB below {runs_dir}; `dtrain rm --older-than 7d` removes old ones" in done.stderr


def test_what_a_run_left_on_slurm_s_nodes_goes_where_this_machine_sees_it(runs_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DTRAIN_RUNS_DIR", raising=False)
    for run in ("r1", "r2"):
        write_record(RunFiles(runs_dir / run).where, WhereRecord(On.SLURM, ["n1", "n2"], "7"))
    for folder in ("slurm-0/r1", "slurm-1/r1", "slurm-0/r0"):
        (tmp_path / "state" / "dtrain" / "hosts" / folder).mkdir(parents=True)
    assert "on nodes" not in rm(runs_dir, "r1", "--dry-run").output
    rm(runs_dir, "r1")
    assert {str(path.relative_to(tmp_path / "state")) for path in tmp_path.glob("state/*/hosts/*/*")} == {
        "dtrain/hosts/slurm-0/r0"
    }
    done = rm(runs_dir, "r2", code=1)
    assert "what run r2 left on its nodes (n1, n2) cannot be seen from here" in done.stderr
    assert left(runs_dir) == ["r0", "r3"]
