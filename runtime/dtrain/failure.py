"""How a task ends when it does not end well: its exit code, what it prints, and the record it leaves.

No decorator is needed in the program: every way out of it passes through here.
"""

import contextlib
import linecache
import resource
import sys
import sysconfig
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from dtrain.assignment import TaskAssignment
from dtrain.errors import DtrainError, PeerError
from dtrain.run_files import FailureRecord, RunFiles

_PACKAGE = Path(__file__).parent
_PYTHON = sysconfig.get_path("stdlib")
_RUNNERS = (f"{_PACKAGE / 'task'}/", "<frozen runpy>")
_SIGNALS = {130: "interrupted (SIGINT)", 143: "asked to stop (SIGTERM)"}


def exit_code(error: BaseException) -> int:
    """What `python PROGRAM` would exit with, had it raised `error`; a `DtrainError` knows its own code."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return error.exit_code if isinstance(error, DtrainError) else 1


def show(error: BaseException) -> None:
    """Print on stderr what Python would; a `DtrainError` without the traceback: its message says what to do."""
    if isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    elif isinstance(error, DtrainError):
        print(f"{type(error).__name__}: {error}{_place(error)}", file=sys.stderr)  # noqa: T201
    elif not isinstance(error, KeyboardInterrupt):
        error.__traceback__ = users_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)


def record(error: BaseException, assignment: TaskAssignment) -> None:
    """Leave a `FailureRecord` in the attempt's folder, if this task has one and `error` is a failure."""
    if assignment.run_dir is None or exit_code(error) == 0:
        return
    files = RunFiles(assignment.run_dir)
    path = files.failure(assignment.task, assignment.attempt)
    failure = describe(error, assignment)
    failure.log = str(files.log(assignment.task, assignment.attempt))
    with contextlib.suppress(OSError):  # a full disk; the traceback went to stderr as well
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_last_words(path, failure)


def describe(error: BaseException, assignment: TaskAssignment) -> FailureRecord:
    """What went wrong, for people and for the launcher, which looks for the earliest cause."""
    kind, message, text = _cause(error)
    return FailureRecord(
        task=str(assignment.task),
        message=message,
        kind=kind,
        time=datetime.now(UTC).isoformat(),
        monotonic_s=time.monotonic(),
        attempt=assignment.attempt,
        traceback=text,
        exit_code=exit_code(error),
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _cause(error: BaseException) -> tuple[str, str, str | None]:
    """Kind, message and traceback."""
    code = exit_code(error)
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and code in _SIGNALS):
        return "signal", _SIGNALS[code], None
    if isinstance(error, SystemExit):
        return "exit", f"exited with code {code}" if isinstance(error.code, int) else str(error.code), None
    whole = traceback.TracebackException(type(error), error, users_frames(error.__traceback__))
    kind = "peer_lost" if isinstance(error, PeerError) else "exception"
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, DtrainError):  # raised on purpose: where in dtrain tells the user nothing
        _leave_out_ours(whole)
        if not whole.stack:
            return kind, message, None
    return kind, message, "".join(whole.format())


def _leave_out_ours(whole: traceback.TracebackException) -> None:
    """Keep the program's lines alone, and of earlier exceptions those that have one."""
    whole.stack = traceback.StackSummary.from_list([frame for frame in whole.stack if _is_theirs(frame.filename)])
    for earlier in (whole.__cause__, whole.__context__):
        if earlier is not None:
            _leave_out_ours(earlier)
    whole.__cause__ = whole.__cause__ if whole.__cause__ and whole.__cause__.stack else None
    whole.__context__ = whole.__context__ if whole.__context__ and whole.__context__.stack else None


def users_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's (or the server's) first line on: what ran it tells the user nothing."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_RUNNERS):
        trace = trace.tb_next
    return trace


def _place(error: DtrainError) -> str:
    """The deepest line outside dtrain that led to the error."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [(frame.filename, frame.lineno or 0) for frame in frames if _is_theirs(frame.filename)]
    if not theirs:
        return ""
    file, number = theirs[-1]
    return f'\n  File "{file}", line {number}\n    {linecache.getline(file, number).strip()}'


def _is_theirs(file: str) -> bool:
    """Whether a line is the program's: neither dtrain's, nor one of Python's own library, through which dtrain goes."""
    if file.startswith((f"{_PACKAGE}/", "<frozen")):
        return False
    return not file.startswith(f"{_PYTHON}/") or "/site-packages/" in file
