"""A textfile for Prometheus about a run, which the launcher keeps up to date (`launch --prometheus`)."""

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtrain.errors import DtrainError
from dtrain.runs.states import LIVE_RUN_STATES, TaskState
from dtrain_cli.runs.report import read_report

EVERY_S = 5.0
Sample = tuple[dict[str, str], float | None]

_FIELDS = {
    "global_step": ("global_step", "gauge", "Steps made, without those rolled back."),
    "rolled_back_steps": ("rolled_back_steps_total", "counter", "Steps lost by returns to a checkpoint."),
    "step": ("task_step", "gauge", "The step of the task."),
    "restarts": ("task_restarts_total", "counter", "How often the task was started again."),
    "examples_per_s": ("task_examples_per_second", "gauge", "Examples that the task computes a second."),
    "loss": ("task_loss", "gauge", "The loss of the newest batch."),
    "staleness_mean": ("task_staleness_steps", "gauge", "The mean staleness of gradients."),
    "stale_gradients": (
        "task_stale_gradients_total",
        "counter",
        "Gradients that came too late to be applied.",
    ),
}
"""By a field of the report or of its tasks: name, kind and purpose."""


@contextlib.contextmanager
def exported(path: Path | None, directory: Path) -> Iterator[None]:
    """Keep a textfile for Prometheus about the run in a directory, new every 5 s and at the end.

    A file that cannot be written disturbs no run.
    """
    if path is None:
        yield
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}")  # a reader takes names that end in .prom
    last = threading.Event()

    def run() -> None:
        over = False
        while not over:
            with contextlib.suppress(OSError, DtrainError):
                aside.write_text(exposition(read_report(directory)), encoding="utf-8")
                aside.replace(path)
            over = last.is_set()
            last.wait(EVERY_S)

    thread = threading.Thread(target=run, name="prometheus", daemon=True)
    thread.start()
    try:
        yield
    finally:
        last.set()
        thread.join()


def exposition(report: Mapping[str, Any]) -> str:
    """Return a report (`dtrain status --json`) in the text format of Prometheus.

    Seconds by cause are a gauge, as those that are rolled back are no longer good.
    """
    run = {"run": report["run"]}
    goodput = report["goodput"] or {"share": None, "tasks": []}
    tasks = [({**run, "task": task["task"]}, task) for task in report["tasks"]]
    rows = [({**run, "task": row["task"]}, row["seconds"]) for row in goodput["tasks"]]
    seconds = [({**labels, "cause": cause}, row[cause]) for labels, row in rows for cause in row]
    up = [({**run, "name": report["name"]}, report["state"] in LIVE_RUN_STATES)]
    running = [(labels, task["state"] == TaskState.RUNNING) for labels, task in tasks]
    families: list[tuple[str, str, str, Sequence[Sample]]] = [
        ("up", "gauge", "Whether the run lives.", up),
        ("task_up", "gauge", "Whether the task runs.", running),
        ("goodput_ratio", "gauge", "Replica-seconds in the weights, of all.", [(run, goodput["share"])]),
        ("replica_seconds", "gauge", "Replica-seconds by what became of them: good is goodput.", seconds),
    ]
    for field, facts in _FIELDS.items():
        of_tasks = [(labels, task[field]) for labels, task in tasks if field in task]
        families.append((*facts, [(run, report[field])] if field in report else of_tasks))
    return "".join(line for family in families for line in _family(*family))


def _family(name: str, kind: str, purpose: str, samples: Sequence[Sample]) -> Iterator[str]:
    there = [(labels, float(value)) for labels, value in samples if value is not None]
    if there:
        yield f"# HELP dtrain_{name} {purpose}\n# TYPE dtrain_{name} {kind}\n"
    for labels, value in there:
        pairs = ",".join(f"{label}={json.dumps(text, ensure_ascii=False)}" for label, text in labels.items())
        yield f"dtrain_{name}{{{pairs}}} {value:.10g}\n"
