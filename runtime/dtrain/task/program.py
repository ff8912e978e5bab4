"""The user's program, run as `python PROGRAM ARGS` would run it, also in a forked process."""

import contextlib
import hashlib
import io
import os
import random
import signal
import sys
from pathlib import Path
from types import ModuleType

from dtrain.errors import ProgramError
from dtrain.process import life_line, private_variables
from dtrain.process.assignment import SPEC
from dtrain.process.resources import NUMPY_LIMITS
from dtrain.process.start_protocol import StartTask


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


def become(start: StartTask, life_line_fd: int) -> None:
    """Give this process the files, environment, threads and random numbers of its task, after setsid."""
    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    _open_standard_files(start.log)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGUSR2})
    close_all_but({0, 1, 2, life_line_fd})
    os.chdir(start.cwd)
    os.environ.update(start.environment)
    private_variables.keep(start.private)
    _reseed(start)
    _limit_threads()
    life_line.watch(life_line_fd)


def _open_standard_files(log: str) -> None:
    """Give stdin no data, and write output to the log line by line, so that kill -9 loses no whole line."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def close_all_but(kept: set[int]) -> None:
    """Close every file descriptor of this process that is not in `kept`."""
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - kept:  # noqa: PTH208 - names are numbers
        with contextlib.suppress(OSError):  # the descriptor that listed them is closed already
            os.close(fd)


def _reseed(start: StartTask) -> None:
    """Give the task random numbers of its own: every child inherits the same state of the generators."""
    import numpy as np

    seed = hashlib.blake2b(f"{_spec_seed(start)} {start.task}".encode(), digest_size=8).digest()
    random.seed(seed)
    np.random.seed(int.from_bytes(seed[:4], "little"))


def _spec_seed(start: StartTask) -> int:
    import msgspec

    spec = msgspec.json.decode(start.environment.get(SPEC, "{}"))
    return int(spec.get("training", {}).get("seed", 0))


def _limit_threads() -> None:
    """Apply the thread limit of this task's environment: numpy was imported before, with a limit of 1."""
    limits = (os.environ.get(name, "").partition(",")[0] for name in NUMPY_LIMITS)
    limit = next(filter(str.isdecimal, limits), "1")
    if limit != "1":
        import threadpoolctl

        threadpoolctl.threadpool_limits(int(limit))
