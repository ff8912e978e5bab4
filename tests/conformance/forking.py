"""Processes that are forked from one that has imported what they need."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def forked(run: Callable[[], object], output: Path, errors: Path) -> int:
    """Run a function in a process of its own, which ends with it; return its exit code."""
    sys.stdout.flush()
    if not (child := os.fork()):
        for stream, path in ((1, output), (2, errors)):
            with path.open("a") as file:
                os.dup2(file.fileno(), stream)
        os._exit(_code_of(run))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _code_of(run: Callable[[], object]) -> int:
    try:
        run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
    return 0
