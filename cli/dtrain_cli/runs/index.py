"""The runs that this machine knows, and finding the one that a person means.

A run is known if its directory, or a link to it, lies below the runs directory. Newest means: started last.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dtrain.errors import RunError, RunNotFoundError
from dtrain.runs.files import RUNS_DIR, RunFiles, RunRecord, read_record

_NAMED_MAX = 5


@dataclass(frozen=True)
class KnownRun:
    """One run with its record."""

    files: RunFiles
    record: RunRecord

    @property
    def started(self) -> str:
        """Return the ISO time of the start, or of the directory where the start was not recorded yet."""
        if self.record.started is not None:
            return self.record.started
        return datetime.fromtimestamp(self.files.directory.stat().st_ctime, UTC).isoformat()


def known_runs(runs_dir: Path) -> list[KnownRun]:
    """Return all readable runs, the newest first."""
    runs = []
    for directory in _entries(runs_dir):
        try:
            record = read_record(directory / "run.json", RunRecord)
        except (RunError, OSError):  # damaged, or another user's: it can still be named by its path
            continue
        if record is not None:
            runs.append(KnownRun(RunFiles(directory.resolve()), record))
    return sorted(runs, key=lambda run: (instant(run.started), run.record.run), reverse=True)


def find_run(reference: str | None, runs_dir: Path) -> KnownRun:
    """Return the run of an id, a name (the newest), a unique prefix of an id, or a path; None: the newest.

    Raises:
        RunNotFoundError: there is none, or more than one begins so.
        RunError: its record is damaged.
    """
    runs = known_runs(runs_dir)
    if reference is None:
        if not runs:
            raise RunNotFoundError(no_run_below(runs_dir))
        return runs[0]
    for matches in (
        [run for run in runs if run.record.run == reference],
        [run for run in runs if run.record.name == reference][:1],
        [run for run in runs if run.record.run.startswith(reference)] if reference else [],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise RunNotFoundError(
                f"{len(matches)} runs begin with {reference!r}: {_names(matches)}; write more of the id"
            )
    record = read_record(Path(reference) / "run.json", RunRecord)
    if record is not None:
        return KnownRun(RunFiles(Path(reference).resolve()), record)
    newest = f"the newest are {_names(runs)}" if runs else unreadable(runs_dir) or "there are none"
    raise RunNotFoundError(f"no run with the id, name or path {reference!r} below {runs_dir}; {newest}")


def no_run_below(runs_dir: Path) -> str:
    """Say that no run is known, and what to do."""
    if strange := unreadable(runs_dir):
        return (
            f"no run below {runs_dir} can be read: {strange}; say where your own are with --runs-dir or "
            f"{RUNS_DIR}"
        )
    return f"no run below {runs_dir} yet; start one with `dtrain launch PROGRAM.py`"


def unreadable(runs_dir: Path) -> str:
    """Name the directories that this user may not read; nothing where there are none."""
    names = []
    for directory in _entries(runs_dir):
        try:
            (directory / "run.json").stat()
        except PermissionError:
            names.append(directory.name)
        except OSError:
            continue
    more = f" and {len(names) - 1} more" if names[1:] else ""
    return f"{names[0]}{more} may not be read by this user" if names else ""


def _entries(runs_dir: Path) -> list[Path]:
    try:
        return sorted(runs_dir.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        text = (
            f"{runs_dir} cannot be read: {error.strerror}; say where your runs are with --runs-dir or "
            f"{RUNS_DIR}"
        )
        raise RunError(text) from None


def register_run(files: RunFiles, runs_dir: Path, run_id: str) -> None:
    """Make a run with a directory of its own (`--run-dir`) known, by a link below the runs directory.

    A link that cannot be made is no reason not to train: the run is then found by its path alone.
    """
    link = runs_dir / run_id
    try:
        runs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(files.directory.resolve(), target_is_directory=True)
    except OSError:
        return


def instant(text: str) -> datetime:
    """Read an ISO time; what is none is long ago, and what names no zone is local."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return instant if instant.tzinfo else instant.astimezone()


def _names(runs: list[KnownRun]) -> str:
    more = f" and {len(runs) - _NAMED_MAX} more" if len(runs) > _NAMED_MAX else ""
    return ", ".join(run.record.run for run in runs[:_NAMED_MAX]) + more
