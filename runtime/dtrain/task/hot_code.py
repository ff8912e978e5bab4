"""Code that every task runs, moved together.

A function that is called has its code object's references counted: a write, so a forked task gets a page of its own for it. In the
heap the code of a module's functions lies in the order of the file, those that are called among many that are not, and a page
for each is a page for little: an idle worker had 1.6 MB of such pages of its own, and has 0.7 MB.
"""

import gc
import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType

_ORIGINALS: set[CodeType] = set()
"""Kept: tasks would write into the holes that they leave."""


def gather_what_runs_in(work: Callable[[], object]) -> None:
    """Do `work`, then give all functions that were called meanwhile copies of their code, made one after another."""
    called = _ORIGINALS

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            called.add(frame.f_code)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    for function in [each for each in gc.get_objects() if type(each) is FunctionType]:
        if function.__code__ in called:
            function.__code__ = _copy(function.__code__, called)


def _copy(code: CodeType, called: set[CodeType]) -> CodeType:
    """With copies of the functions within it that were called: they have no function object before it runs."""
    inner = [_copy(each, called) if isinstance(each, CodeType) and each in called else each for each in code.co_consts]
    return code.replace(co_consts=tuple(inner))
