"""Work that one task does for all: others wait until it is done, and say for whom.

The lock is flock's, on a file or folder that is there anyway: the kernel releases it when the task that holds
it dies in any way, and nothing has to be removed.
"""

import errno
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dtrain.errors import WaitTimeoutError
from dtrain.process.plain_text import plain

RETRY_S = 0.02
SAID_AFTER_S = 2.0


@contextmanager
def locked(descriptor: int, wait_s: float, work: str) -> Iterator[bool]:
    """Hold an open file or folder locked; where it cannot be, as on some network drives, go on without.

    Yields whether it is locked.

    Args:
        descriptor: of it.
        wait_s: how long another process may hold it.
        work: what the other process does, in words that follow "to".

    Raises:
        WaitTimeoutError: another process has held it for longer.
    """
    holds = lock(descriptor, wait_s, work)
    try:
        yield holds
    finally:
        if holds:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)


def lock(descriptor: int, wait_s: float, work: str) -> bool:
    """Lock an open file for as long as it is open, as `locked` does; return whether it could be locked."""
    begun_s = time.monotonic()
    said = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                return False
        waited_s = time.monotonic() - begun_s
        if waited_s > wait_s:
            raise WaitTimeoutError(
                f"waited {waited_s:.0f} s for {holder(descriptor)} to {work}; stop that process, or wait "
                "until it has ended, and start again"
            )
        if waited_s > SAID_AFTER_S and not said:
            said = True
            with suppress(OSError, ValueError):
                sys.stderr.write(plain(f"dtrain: waiting for {holder(descriptor)} to {work}") + "\n")
        time.sleep(RETRY_S)


def holder(descriptor: int) -> str:
    """Return the process that holds a file locked, in words; Linux tells in /proc/locks."""
    facts = os.fstat(descriptor)
    name = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            parts = line.split()
            if len(parts) > 5 and parts[1] == "FLOCK" and parts[5] == name:
                return f"process {parts[4]}"
    return "another process"
