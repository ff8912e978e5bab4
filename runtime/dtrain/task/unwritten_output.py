"""The end of a command whose output cannot be written."""

import os
import sys


def end_of_output(error: OSError) -> int:
    """Give stdout up, so that Python does not complain of it at the end, and return the exit code.

    It is 0 where the reader has gone; else 1, and the cause is printed on stderr.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0
    print(f"dtrain: the output cannot be written: {error.strerror or error}", file=sys.stderr)  # noqa: T201
    return 1
