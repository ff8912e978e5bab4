"""The folder of a study: what was asked for, and the journal of its trials, which is the authority.

<runs directory>/studies/<name>/    mode 0700
    lock                    held (flock) by the tuner while it lives
    study.json              `StudyRecord`
    journal.jsonl           an event of `trials` a line; each is on the disk before anything follows from it
    trial.json              the spec of every trial, if the study names one
    study.log               Optuna's file, where its sampler or pruner is used
    warm                    the socket of the fork server of all launches
    logs/                   what the launch of each trial has printed; files of hypertune
    trials/<name>-0000/     the run directory of each trial
"""

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dtrain.errors import RunError, RunNotFoundError
from dtrain.formats.bounded_reading import read_regular
from dtrain.runs.files import RunFiles, open_own
from dtrain.runs.json_file import read_record, replace_json
from dtrain.studies.study_spec import Scalar, StudySpec
from dtrain.studies.trials import Event, Trial

JOURNAL_BYTES_MAX = 1 << 30
_EVENTS = msgspec.json.Decoder(Event)


class StudyRecord(msgspec.Struct, frozen=True):
    """A study: its spec, the spec of its trials, and the command of each, in which folder."""

    spec: StudySpec
    trial: dict[str, Any] | None
    program: str | None
    arguments: tuple[str, ...]
    folder: str


def values_text(values: Mapping[str, Scalar]) -> str:
    """Return values for people; a program gets every digit."""
    texts = {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in values.items()}
    return " ".join(f"{name}={text}" for name, text in texts.items())


class StudyFiles(RunFiles, frozen=True):
    """Paths and records of the study in `directory`: lock, journal and spec are named as those of a run."""

    @property
    def record(self) -> Path:
        return self.directory / "study.json"

    @property
    def optuna(self) -> Path:
        return self.directory / "study.log"

    @property
    def socket(self) -> Path:
        return self.directory / "warm"

    def trial(self, number: int) -> RunFiles:
        return RunFiles(self.directory / "trials" / f"{self.directory.name}-{number:04d}")

    def output(self, number: int, ending: str) -> Path:
        return self.directory / "logs" / f"{number:04d}.{ending}"

    def launch_words(self, record: StudyRecord, trial: Trial) -> list[str]:
        """Return the words after `dtrain` that launch a trial: anew, or on from its last checkpoint."""
        run = self.trial(trial.number)
        words = ["launch", "--runs-dir", str(run.directory.parent), "--run-dir", str(run.directory)]
        words += ["--resume"] if run.run.exists() else []
        words += ["--timeout", str(record.spec.timeout_s)] if record.spec.timeout_s is not None else []
        return [*words, *self.command(record, trial)]

    def command(self, record: StudyRecord, trial: Trial) -> list[str]:
        """Return the spec, the program or command with its arguments, and the values of a trial as flags.

        Of a number every digit is written, so that nothing is rounded.
        """
        words = [str(self.spec)] if record.trial is not None else []
        words += [record.program] if record.program is not None else []
        flags = [word for name, value in trial.values.items() for word in (f"--{name}", str(value))]
        steps = ["--steps", str(trial.steps)] if trial.steps is not None else []
        return [*words, "--", *record.arguments, *flags, *steps]

    def read(self) -> StudyRecord:
        """Return what was asked for.

        Raises:
            RunNotFoundError: there is no such study.
            RunError: it is damaged, or not this user's alone.
        """
        try:
            os.close(open_own(self.directory))
            record = read_record(self.record, StudyRecord)
        except (FileNotFoundError, NotADirectoryError):
            record = None
        if record is None:
            above = self.directory.parent
            names = sorted(path.parent.name for path in above.glob("*/study.json")) or ["none"]
            there = f"there are: {', '.join(names[:20])}"
            raise RunNotFoundError(f"there is no study {self.directory.name} below {above}; {there}")
        return record

    def events(self) -> tuple[list[Event], int]:
        """Return all events, and the bytes that they have: a line that was cut by a kill is none.

        Raises:
            RunError: the journal is damaged.
        """
        try:
            data = read_regular(self.journal, JOURNAL_BYTES_MAX, follow=False)
        except FileNotFoundError:
            return [], 0
        *lines, rest = data.split(b"\n")
        events: list[Event] = []
        for number, line in enumerate(lines, 1):
            try:
                events.append(_EVENTS.decode(line))
            except (ValueError, RecursionError) as error:
                raise RunError(f"{self.journal}:{number}: the journal is damaged: {error!s:.200}") from None
        return events, len(data) - len(rest)

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the study's lock; raise a `RunInUseError` if another tuner holds it."""
        name = self.directory.name
        look = f"look at it with `dtrain tune status {name}`"
        return self.held(f"study {name} has a tuner already, which holds {self.lock}; {look}")

    def write(self, record: StudyRecord) -> None:
        for folder in ("trials", "logs"):
            (self.directory / folder).mkdir(mode=0o700, exist_ok=True)
        if record.trial is not None:
            replace_json(self.spec, record.trial, private=True)
        replace_json(self.record, record, private=True)


class StudyJournal:
    """The journal while its tuner lives. When `append` returns, its events are on the disk."""

    def __init__(self, files: StudyFiles, nbytes: int) -> None:
        """Open it behind its last whole line, at `nbytes`."""
        self._path = files.journal
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        self._nbytes = nbytes
        os.ftruncate(self._descriptor, nbytes)

    def append(self, events: Sequence[Event]) -> None:
        """Append a line an event; all of them, or none.

        Raises:
            RunError: the disk is full, or fails.
        """
        data = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        try:
            if os.pwrite(self._descriptor, data, self._nbytes) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._nbytes)
            raise RunError(
                f"{self._path}: cannot be written: {error.strerror}; nothing was lost: make room, then go on "
                f"with `dtrain tune --resume {self._path.parent.name}`"
            ) from None
        self._nbytes += len(data)
