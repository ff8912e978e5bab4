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
from conformance.forking import forked

SHARED = (
    *("conformance.coordinator_cases", "conformance.loops_of_cases", "conformance.pipelines"),
    *("conformance.workers_in_processes", "dtrain.learning.layers", "dtrain.training.models"),
)
"""None of them reads a golden file as it is imported."""


def said(folder: str, words: list[str]) -> str:
    """What one run of pytest says."""

    def run() -> None:
        os.environ["DTRAIN_GOLDEN"] = folder
        pytest.main(words)

    output = Path(folder).with_suffix(".out")
    forked(run, output, output)
    return output.read_text()


if __name__ == "__main__":
    for name in SHARED:
        import_module(name)
    json.dump([said(*run) for run in json.load(sys.stdin)], sys.stdout)
