"""Run pytest several times, each over golden files of its own: from standard input a list of [folder, words of
pytest], as JSON; to standard output what each run has said.

    python -m conformance.rounds < RUNS

The runs are forked from a process that has imported what all of them need.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

SHARED = (
    *("conformance.coordinator_cases", "conformance.loops_of_cases", "conformance.pipelines"),
    *("conformance.workers_in_processes", "dtrain.learning.layers", "dtrain.training.sequential"),
)
"""None of them reads a golden file as it is imported."""


def said(folder: str, words: list[str]) -> str:
    """What one run of pytest says."""
    output = Path(folder).with_suffix(".out")
    if not (child := os.fork()):
        os.environ["DTRAIN_GOLDEN"] = folder
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
        pytest.main(words)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    return output.read_text()


if __name__ == "__main__":
    for name in SHARED:
        import_module(name)
    json.dump([said(*run) for run in json.load(sys.stdin)], sys.stdout)
