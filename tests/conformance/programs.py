"""Run programs one after another, each in a process of its own: from standard input a list of [name, text, arguments], as
JSON; to standard output the exit code of each and what it has written to its output and errors, by name.

    python -m conformance.programs FOLDER < PROGRAMS
"""

import json
import sys
from pathlib import Path

from conformance.forking import forked

import dtrain as dt

NEEDED = (dt.Sequential, dt.layers, dt.optimizers, dt.train, dt.callbacks, dt.distribute)


def run(text: str, arguments: list[str]) -> None:
    """Be a program."""
    sys.argv = ["program", *arguments]
    exec(compile(text, "program", "exec"), {"__name__": "__main__"})


def told(folder: Path, name: str, text: str, arguments: list[str]) -> tuple[int, str, str]:
    """Run a program."""
    output, errors = folder / f"{name}.out", folder / f"{name}.err"
    code = forked(lambda: run(text, arguments), output, errors)
    return code, output.read_text(), errors.read_text()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    json.dump({name: told(place, name, *rest) for name, *rest in json.load(sys.stdin)}, sys.stdout)
