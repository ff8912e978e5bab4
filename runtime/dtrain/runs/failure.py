"""The end of a task that fails: its exit code, its last output, and the record that it leaves.

No decorator is needed in the program: every way out of it passes through here. An error is the user's own
object: its text, its notes and its causes may raise, never end, or be no UTF-8. None of that may hide the
error itself.
"""

import contextlib
import linecache
import os
import re
import resource
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from dtrain.errors import DtrainError, PeerError
from dtrain.formats.remote_files import masked
from dtrain.process.assignment import TaskAssignment
from dtrain.process.plain_text import plain
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
        print(f"{headline(error)}{_user_line(error)}", file=sys.stderr)  # noqa: T201
    elif not isinstance(error, KeyboardInterrupt):
        _show_as_python_does(error)


def show_alone(error: BaseException) -> None:
    """Print what ends a program without a launcher; DTRAIN_FULL_TRACEBACK=1 shows dtrain's frames too."""
    if os.environ.get("DTRAIN_FULL_TRACEBACK") == "1" or isinstance(error, KeyboardInterrupt):
        sys.__excepthook__(type(error), error, error.__traceback__)
    else:
        print((traceback_text(error) or headline(error)).rstrip(), file=sys.stderr)  # noqa: T201


def _show_as_python_does(error: BaseException) -> None:
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


def _user_line(error: DtrainError) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [(frame.filename, frame.lineno or 0) for frame in frames if is_theirs(frame.filename)]
    if not theirs:
        return ""
    file, number = theirs[-1]
    return encodable(f'\n  File "{file}", line {number}\n    {linecache.getline(file, number).strip()}')


LEFT_OUT = "<left out>"
"""The file of a frame that stands for frames of dtrain's own; its line is their number."""
_PACKAGE = Path(__file__).parents[1]
_PYTHON = sysconfig.get_path("stdlib")
_RUNNERS = (f"{_PACKAGE / 'task'}/", "<frozen runpy>")


def users_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first line of the program (or the server) on."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_RUNNERS):
        trace = trace.tb_next
    return trace


def is_theirs(file: str) -> bool:
    if file.startswith((f"{_PACKAGE}/", "<frozen")):
        return False
    return not file.startswith(f"{_PYTHON}/") or "/site-packages/" in file


def choose_frames(error: traceback.TracebackException, on_purpose: bool) -> None:
    """Remove lines that do not help the user, in place, also from the causes. Of an error `on_purpose`,
    which dtrain's message explains, only the program's lines are kept, and the causes that have one;
    else dtrain's lines are left out between those of the program.
    """
    waiting = [error]
    seen = {id(error)}
    while waiting:
        each = waiting.pop()
        frames = (
            [frame for frame in each.stack if is_theirs(frame.filename)]
            if on_purpose
            else _between_left_out(each.stack)
        )
        each.stack = traceback.StackSummary.from_list(frames)
        for earlier in (each.__cause__, each.__context__, *(each.exceptions or ())):
            if earlier is not None and id(earlier) not in seen:
                seen.add(id(earlier))
                waiting.append(earlier)
    if on_purpose:
        _drop_those_without_lines(error)


def _between_left_out(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Return the frames without dtrain's between two of the program; those after the last one stay."""
    theirs = [number for number, frame in enumerate(stack) if is_theirs(frame.filename)]
    kept = []
    begun = 0
    for number, frame in enumerate(stack):
        if not theirs or number > theirs[-1] or not frame.filename.startswith(f"{_PACKAGE}/"):
            kept.append(frame)
        elif kept and kept[-1].filename == LEFT_OUT:
            begun += 1
            kept[-1] = _placeholder(begun)
        else:
            begun = 1
            kept.append(_placeholder(begun))
    return kept


def _placeholder(count: int) -> traceback.FrameSummary:
    return traceback.FrameSummary(LEFT_OUT, count, "dtrain", lookup_line=False, line="")


def _drop_those_without_lines(error: traceback.TracebackException) -> None:
    """Remove causes without a line of the program: the message of dtrain's error has their text."""
    each: traceback.TracebackException | None = error
    while each is not None:
        while each.__cause__ is not None and not each.__cause__.stack:
            each.__cause__ = each.__cause__.__cause__
        while each.__context__ is not None and not each.__context__.stack:
            each.__context__ = each.__context__.__context__
        each = each.__cause__ or each.__context__


HINTS = {
    "RuntimeError: can't start new thread": (
        "the system allows no more threads or processes: raise the limit (`ulimit -u`, pids.max of the "
        "group), or start fewer tasks"
    ),
    "BdbQuit": "a task has no terminal for breakpoint(): run the program alone, by `python PROGRAM`",
}
"""Remedies by the first words of an error, where Python names none."""
_MARK = re.compile(rf'  File "{re.escape(LEFT_OUT)}", line (\d+), in .*\n')


def text_of(value: object) -> str:
    """Return `str(value)` as text that can be encoded; where there is none, words that say so."""
    try:
        text = str.__str__(str(value))  # not of a subclass, whose methods may do anything
    except BaseException as refusal:  # SystemExit as well: the program is at its end already
        return f"(its text cannot be had: {type(refusal).__name__})"
    return encodable(text)


def encodable(text: str) -> str:
    """Return the text with what is no plain Unicode as escapes, and without the passwords of URLs."""
    return masked(plain(text))


def shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def headline(error: BaseException) -> str:
    words = _words(error)
    hint = _hint(error)
    return f"{words}; {hint}" if hint else words


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}".rstrip(": ")


def _hint(error: BaseException) -> str | None:
    words = _words(error)
    return next((hint for begin, hint in HINTS.items() if words.startswith(begin)), None)


def traceback_text(error: BaseException) -> str | None:
    """Return the traceback as Python prints it, without dtrain's frames between those of the program.

    It is None for an error that dtrain raised on purpose and that no line of the program led to.
    """
    on_purpose = isinstance(error, DtrainError)
    try:
        whole = traceback.TracebackException(type(error), error, users_frames(error.__traceback__))
        if hint := _hint(error):
            whole.__notes__ = [*(whole.__notes__ or ()), hint]
        choose_frames(whole, on_purpose)
        if on_purpose and not whole.stack:
            return None
        text = encodable("".join(whole.format()))
    except BaseException:  # the notes, causes or source of a syntax error are of a wrong type
        return None if on_purpose else _plain(error)
    return _MARK.sub(rf"  ... \1 calls inside {re.escape(_PACKAGE.name)} ...\n", text)


def _plain(error: BaseException) -> str:
    try:
        frames = "".join(traceback.format_tb(users_frames(error.__traceback__)))
    except BaseException:
        frames = ""
    return f"Traceback (most recent call last):\n{encodable(frames)}{headline(error)}\n"


SIGNALS = {130: "interrupted (SIGINT)", 143: "asked to stop (SIGTERM)"}


def exit_code(error: BaseException) -> int:
    """Return the exit code of `python PROGRAM` after `error`; a `DtrainError` knows its own code.

    The system keeps 8 bits of an exit code, so that ``sys.exit(256)`` would end as success. Here it is a
    failure.
    """
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return _kept(error.code) or int(error.code != 0) if isinstance(error.code, int) else 1
    code = error.exit_code if isinstance(error, DtrainError) else 1
    return (_kept(code) if isinstance(code, int) else 0) or 1  # a subclass of the user's may say anything


def exit_text(code: int) -> str:
    if code != 0 and _kept(code) == 0:
        return (
            f"exited with code {_short(code)}, of which the system would keep 0: it counts as a failure, "
            "exit code 1"
        )
    return f"exited with code {_kept(code)}"


def _kept(code: int) -> int:
    return code & 0xFF


def _short(code: int) -> str:
    return str(code) if abs(code) < 1 << 64 else hex(code)[:20] + "..."


__all__ = ["describe", "exit_code", "record", "show"]
