"""The choice of a traceback's lines that help the user."""

import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

LEFT_OUT = "<left out>"
"""The file of a frame that stands for frames of dtrain's own; its line is their number."""
_PACKAGE = Path(__file__).parents[2]
_PYTHON = sysconfig.get_path("stdlib")
_RUNNERS = (f"{_PACKAGE / 'task'}/", "<frozen runpy>")


def users_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first line of the program (or the server) on."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_RUNNERS):
        trace = trace.tb_next
    return trace


def is_theirs(file: str) -> bool:
    """Return whether a line is the program's, neither dtrain's nor the standard library's."""
    if file.startswith((f"{_PACKAGE}/", "<frozen")):
        return False
    return not file.startswith(f"{_PYTHON}/") or "/site-packages/" in file


def choose_frames(error: traceback.TracebackException, on_purpose: bool) -> None:
    """Remove lines that do not help the user, in place, also from the causes.

    Args:
        error: as it was raised.
        on_purpose: whether dtrain raised it, so that its message explains it: then only the program's lines
            are kept, and of the causes those that have one. Else dtrain's lines are left out only between
            those of the program.
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
