"""The user's program, run as `python PROGRAM ARGS` would run it."""

import io
import os
import sys
from pathlib import Path
from types import ModuleType

from dtrain.errors import ProgramError


def run(program: str, arguments: list[str]) -> None:
    """Run a program as ``__main__``; raise a `ProgramError` if it ended without using dtrain."""
    try:
        _run_as_main(program, arguments)
    except SystemExit as error:
        if error.code in (None, 0):
            _check_that_dtrain_was_used(program)
        raise
    _check_that_dtrain_was_used(program)


def _run_as_main(program: str, arguments: list[str]) -> None:
    sys.argv = [program, *arguments]
    folder = str(Path(program).resolve().parent)
    if sys.flags.safe_path or not sys.path:  # the fork server keeps the working directory out of its path
        sys.path.insert(0, folder)
    else:
        sys.path[0] = folder
    try:
        # keep links as they are, as Python does
        with io.open_code(os.path.abspath(program)) as file:  # noqa: PTH100
            source = file.read()
    except OSError as error:
        raise ProgramError(f"cannot read the program {program}: {error.strerror}") from None
    main = ModuleType("__main__")
    main.__dict__.update(__file__=program, __builtins__=__builtins__, __annotations__={})
    sys.modules["__main__"] = main
    exec(compile(source, program, "exec", dont_inherit=True), main.__dict__)


def close(error: BaseException) -> None:
    """End the program's part in the cluster after it has failed with `error`."""
    if (strategy := sys.modules.get("dtrain.strategies.interface")) is not None:
        strategy.close_default(error)


def _check_that_dtrain_was_used(program: str) -> None:
    # a program that has used dtrain has imported it
    strategy = sys.modules.get("dtrain.strategies.interface")
    if strategy is None or not strategy.was_used():
        raise ProgramError(
            f"{program} has ended without ever having called dtrain: this task did nothing for the cluster. "
            f"Call dtrain.get_strategy() and train under its scope(), or start any other program with "
            f"`dtrain launch -- COMMAND`"
        )
