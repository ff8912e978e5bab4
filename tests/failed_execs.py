"""Starting a process again where the kernel failed to.

On some virtual machines one exec in many thousands fails with EFAULT ("Bad address") under load, whatever is
started. A suite that starts thousands of processes meets it, and it says nothing about dtrain.
"""

import errno
import functools
import subprocess
from typing import Any

ATTEMPTS = 3


def start_again() -> None:
    """Let `subprocess.Popen` in this process try an exec that failed with EFAULT once more."""
    start = subprocess.Popen.__init__

    @functools.wraps(start)
    def patient(self: subprocess.Popen[Any], *args: Any, **kwargs: Any) -> None:
        for _ in range(ATTEMPTS - 1):
            try:
                return start(self, *args, **kwargs)
            except OSError as error:
                if error.errno != errno.EFAULT:
                    raise
        return start(self, *args, **kwargs)

    subprocess.Popen.__init__ = patient  # type: ignore[method-assign]
