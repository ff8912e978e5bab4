"""The record that a failing task leaves for the launcher, and its output for people."""

import contextlib
import linecache
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime

from dtrain.errors import DtrainError, PeerError
from dtrain.process.assignment import TaskAssignment
from dtrain.runs.failure.codes import SIGNALS, exit_code, exit_text
from dtrain.runs.failure.frames import is_theirs, users_frames
from dtrain.runs.failure.text import encodable, headline, shortened, text_of, traceback_text
from dtrain.runs.files import FailureRecord, RunFiles
from dtrain.runs.states import FailureKind

MESSAGE_MAX = 2_000
TRACEBACK_MAX = 6_000
"""Characters, each of at most six bytes: a record has to fit into the room that is held on a full disk."""


def show(error: BaseException) -> None:
    """Print on stderr what Python would; for a `DtrainError` only the message, which names the remedy."""
    if isinstance(error, SystemExit):
        code = error.code
        if isinstance(code, int) and exit_code(error) != code & 0xFF:
            print(exit_text(code), file=sys.stderr)  # noqa: T201
        elif code is not None and not isinstance(code, int):
            print(text_of(code), file=sys.stderr)  # noqa: T201 - as the interpreter does
    elif isinstance(error, DtrainError):
        print(f"{headline(error)}{_place(error)}", file=sys.stderr)  # noqa: T201
    elif not isinstance(error, KeyboardInterrupt):
        _show_as_python_does(error)


def show_alone(error: BaseException) -> None:
    """Print what ends a program that runs without a launcher: the traceback, of which the frames inside
    dtrain are left out unless DTRAIN_FULL_TRACEBACK is 1.
    """
    if os.environ.get("DTRAIN_FULL_TRACEBACK") == "1" or isinstance(error, KeyboardInterrupt):
        sys.__excepthook__(type(error), error, error.__traceback__)
    else:
        print((traceback_text(error) or headline(error)).rstrip(), file=sys.stderr)  # noqa: T201


def _show_as_python_does(error: BaseException) -> None:
    """Print the traceback, or let the program's own hook do so."""
    if sys.excepthook is not sys.__excepthook__ and sys.excepthook.__module__ != "dtrain":
        error.__traceback__ = users_frames(error.__traceback__)
        try:
            sys.excepthook(type(error), error, error.__traceback__)
            return
        except Exception as failed:
            print(  # noqa: T201
                "Error in sys.excepthook:",
                traceback_text(failed),
                "Original exception was:",
                sep="\n",
                file=sys.stderr,
            )
    print(traceback_text(error), end="", file=sys.stderr)  # noqa: T201


def record(error: BaseException, assignment: TaskAssignment) -> None:
    """Write a `FailureRecord` to the attempt's folder, if there is one and `error` is a failure."""
    if assignment.run_dir is None or exit_code(error) == 0:
        return
    with _undisturbed():
        files = RunFiles(assignment.run_dir)
        path = files.failure(assignment.task, assignment.attempt)
        failure = describe(error, assignment)
        failure.log = encodable(str(files.log(assignment.task, assignment.attempt)))
        with contextlib.suppress(OSError):  # a full disk; the traceback went to stderr as well
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_last_words(path, failure)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay SIGTERM: its exception would interrupt the record, and the record would be lost."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def describe(error: BaseException, assignment: TaskAssignment) -> FailureRecord:
    """Return the failure, for people and for the launcher, which looks for the earliest cause."""
    kind, message, text = _cause(error)
    return FailureRecord(
        task=str(assignment.task),
        message=shortened(message, MESSAGE_MAX),
        kind=kind,
        time=datetime.now(UTC).isoformat(),
        monotonic_s=time.monotonic(),
        attempt=assignment.attempt,
        traceback=None if text is None else shortened(text, TRACEBACK_MAX),
        exit_code=exit_code(error),
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        error_type=None if kind in (FailureKind.SIGNAL, FailureKind.EXIT) else type(error).__name__,
    )


def _cause(error: BaseException) -> tuple[FailureKind, str, str | None]:
    """Return kind, message and traceback."""
    code = exit_code(error)
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and code in SIGNALS):
        return FailureKind.SIGNAL, SIGNALS[code], None
    if isinstance(error, SystemExit):
        said = exit_text(error.code) if isinstance(error.code, int) else text_of(error.code)
        return FailureKind.EXIT, said, None
    return (
        FailureKind.PEER_LOST if isinstance(error, PeerError) else FailureKind.EXCEPTION,
        headline(error),
        traceback_text(error),
    )


def _place(error: DtrainError) -> str:
    """Return the deepest line outside dtrain that led to the error."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [(frame.filename, frame.lineno or 0) for frame in frames if is_theirs(frame.filename)]
    if not theirs:
        return ""
    file, number = theirs[-1]
    return encodable(f'\n  File "{file}", line {number}\n    {linecache.getline(file, number).strip()}')
