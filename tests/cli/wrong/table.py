"""Wrong inputs of every command: what is typed, with which files, and what the user must find.

The words expected are those of the promise: where it is wrong, what was found, what was expected or what to do.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Wrong(NamedTuple):
    """A wrong input.

    Attributes:
        line: the words after `dtrain`, as a shell takes them.
        code: the exit code.
        said: words that stderr must hold, with commas or other words between.
        files: what lies in the folder beside the usual files: text, bytes, or None for a folder.
        environment: variables besides.
        stdout: where the output goes, if not into a pipe.
    """

    name: str
    line: str
    code: int
    said: tuple[str, ...]
    files: Mapping[str, str | bytes | None] = {}
    environment: Mapping[str, str] = {}
    stdout: str = ""


CLUSTER = "cluster: {chief: 1, worker: 2, ps: 1}\n"
ADDRESSES = "cluster: {chief: ['localhost:2301'], worker: ['localhost:2302', 'localhost:2303'], ps: ['localhost:2304']}\n"
ON_SSH = "on: ssh\ncluster: {chief: 1, worker: 1, ps: 1}\n"
RECORD = "runs/r1/run.json"


def check(name: str, text: str | bytes, *said: str, code: int = 2) -> Wrong:
    """Return a spec that `check` has to refuse."""
    return Wrong(name, "check s.yaml", code, ("s.yaml", *said), {"s.yaml": text})


def field(name: str, text: str, *said: str) -> Wrong:
    """Return a field that `check` has to refuse at its place, in the line behind the cluster."""
    return check(name, CLUSTER + text + "\n", "s.yaml:2:", *said)
