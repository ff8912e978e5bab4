"""The metrics of a run by step, and the order to end a trial of a study: two files of the run's directory.

Tasks append to `reports.jsonl`, the leader what the program or `fit` reports, the evaluator its evaluations;
`dtrain report` and `dtrain tune` read it. `dtrain tune` makes `prune.json`, whose presence is the order.
"""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from dtrain.process.assignment import RUN_DIR
from dtrain.runs.files import RunFiles

TRIAL = "DTRAIN_TRIAL"
"""Has the number of the trial in all of its tasks; other runs cannot be pruned."""
EVALUATED, TRAINED = "evaluated", "trained"
"""The marks of metrics: of an evaluation by `fit`, and of an epoch of training."""


def _files() -> RunFiles | None:
    directory = os.environ.get(RUN_DIR)
    return RunFiles(Path(directory)) if directory else None


def append_report(step: int, metrics: Mapping[str, float], mark: str | None = None) -> None:
    """Append one line in one write, as two tasks may report at once. A full disk must not stop training.

    `mark` is `EVALUATED` or `TRAINED`; None: the program has reported these metrics.
    """
    if (files := _files()) is None or not metrics:
        return
    marks = {mark: True} if mark else {}
    line = json.dumps({**metrics, "step": step, "reported_s": round(time.time(), 3), **marks})
    with contextlib.suppress(OSError):
        descriptor = os.open(files.reports, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)


def prune_is_ordered() -> bool:
    return TRIAL in os.environ and (files := _files()) is not None and files.prune.exists()
