"""The reports of a trial of a study, and the order to end it: two files of its run's directory.

Tasks append to `reports.jsonl`, the leader what the program or `fit` reports, the evaluator its evaluations;
`dtrain tune` reads it, and makes `prune.json`, whose presence is the order.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from dtrain.process.assignment import RUN_DIR
from dtrain.runs.files import RunFiles

TRIAL = "DTRAIN_TRIAL"
"""Has the number of the trial in all of its tasks; other runs report nothing and cannot be pruned."""


def trial_files() -> RunFiles | None:
    """Return the files of the run of this process, if it belongs to a trial."""
    directory = os.environ.get(RUN_DIR)
    return RunFiles(Path(directory)) if directory and TRIAL in os.environ else None


def append_report(step: int, metrics: Mapping[str, float], *, evaluated: bool = False) -> None:
    """Append one line in one write, as two tasks may report at once; in a trial alone.

    `evaluated`: the metrics are those of an evaluation of `fit`, which the program has not reported.
    """
    if (files := trial_files()) is None or not metrics:
        return
    line = json.dumps({**metrics, "step": step, **({"evaluated": True} if evaluated else {})})
    descriptor = os.open(files.reports, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def prune_is_ordered() -> bool:
    return (files := trial_files()) is not None and files.prune.exists()
