"""The commands of engines, such as scontrol and kubectl: one answer each, within a deadline."""

import os
import re
import subprocess
from collections.abc import Sequence

from dtrain.errors import RunError
from dtrain.process.plain_text import plain

ANSWER_S = 60.0
"""The longest wait for an answer."""
_SHOWN = 500
_LOG_LINE = re.compile(r"[EWIF][0-9]{4} ")
"""A log line of kubectl's libraries, ``E1123 01:06:42.5 ...``: the cause of a failure follows it."""


def answer_of(
    command: Sequence[str], instead: str, text: str = "", within_s: float = ANSWER_S, action: str = ""
) -> str:
    """Return what a command prints, given a text on stdin; Ctrl-C does not end it.

    Raises:
        RunError: it is not there, and what to do `instead`; it has not answered in time, or has failed, with
            its own words. `action` tells what it was asked for, where its name does not.
    """
    what = f"{command[0]} {action}".strip()
    try:
        done = subprocess.run(
            command,
            input=text.encode(),
            capture_output=True,
            timeout=within_s,
            process_group=0,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise RunError(f"{command[0]}: no such command here; {instead}") from None
    except subprocess.TimeoutExpired:
        raise RunError(f"{what} has not answered within {within_s:g} s") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines()]
        words = plain(" ".join(line for line in lines if line and not _LOG_LINE.match(line)))
        raise RunError(f"{what} failed: {words[:_SHOWN] or f'exit code {done.returncode}'}")
    return done.stdout.decode(errors="replace")
