"""The steps by which a forked process becomes a task, as if `python PROGRAM` had just been started."""

import contextlib
import hashlib
import os
import random
import signal
import sys

from dtrain.process import life_line, private_variables
from dtrain.process.assignment import SPEC
from dtrain.process.resources import NUMPY_LIMITS
from dtrain.process.start_protocol import StartTask


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
