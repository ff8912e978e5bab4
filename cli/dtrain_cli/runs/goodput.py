"""The goodput of a run, from its replicas' timesheets and the launcher's journal; and for Prometheus."""

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dtrain.cluster import TaskId
from dtrain.errors import DtrainError, SpecError
from dtrain.formats.bounded_reading import read_regular
from dtrain.runs.files import RunFiles, RunRecord, read_sound
from dtrain.runs.ledger import SHEET_BYTES, Attempt, Sheet, TaskTimes, ledger_of
from dtrain.runs.states import LIVE_RUN_STATES, RunState, TaskState

_JOURNAL_BYTES_MAX = 256 << 20
_STOPPED = (0, 143, -15)
"""How a process ends that has done its work, or was told to stop."""


class _Line(msgspec.Struct):
    event: str
    time: str
    monotonic_s: float
    task: str | None = None
    attempt: int = 0
    status: int = 0


def read_goodput(files: RunFiles, record: RunRecord, now_s: float, *, alive: bool) -> dict[str, Any] | None:
    """Return the ledger of the newest launch of a run (`dtrain.runs.ledger`); None: nothing trained in it.

    Args:
        now_s: the launcher's monotonic clock.
        alive: whether the run goes on.
    """
    ended = record.state not in LIVE_RUN_STATES
    if ended and (kept := read_sound(files.goodput, dict[str, Any])) is not None:
        return kept
    lines = list(_lines(files, record.started or ""))
    states = {task.task: task.state for task in record.tasks}
    tasks = {}
    for task in sorted({str(task) for task in files.tasks()}):
        started = {line.attempt: line for line in lines if line.event == "started" and line.task == task}
        exited = {line.attempt: line for line in lines if line.event == "exited" and line.task == task}
        attempts = []
        for number in started or list(files.attempts(TaskId.parse(task)))[-1:]:
            sheets = _sheets(files, task, number)
            begun_s = (
                started[number].monotonic_s if started else min((s.begun_s for s in sheets), default=now_s)
            )
            end = exited.get(number)
            ended_s = end.monotonic_s if end else None
            if ended_s is None and (not started or not alive):  # nobody saw its end
                ended_s = max((sheet.since_s for sheet in sheets), default=begun_s)
            laid = tuple(sheet.within(begun_s, ended_s or now_s) for sheet in sheets)
            attempts.append(Attempt(begun_s, ended_s, end is not None and end.status not in _STOPPED, laid))
        if attempts:
            left = not started or states.get(task) in (TaskState.SUCCEEDED, TaskState.STOPPED)
            tasks[task] = TaskTimes(attempts, left)
    moments = [each.ended_s for task in tasks.values() for each in task.attempts if each.ended_s is not None]
    saved_step = record.saved.step if record.saved is not None else 0
    is_whole = not ended or record.state is RunState.SUCCEEDED
    return ledger_of(
        tasks,
        now_s if alive else max(moments, default=now_s),
        final=ended,
        saved_step=None if is_whole else saved_step,
    )


def _lines(files: RunFiles, since: str) -> Iterator[_Line]:
    with contextlib.suppress(OSError):
        for text in read_regular(files.journal, _JOURNAL_BYTES_MAX, follow=False).splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                line = msgspec.json.decode(text, type=_Line)
                if line.time >= since:
                    yield line


def _sheets(files: RunFiles, task: str, attempt: int) -> list[Sheet]:
    """Return the timesheets of an attempt that can be read."""
    pattern = files.seconds(TaskId.parse(task), attempt, "*")
    sheets = []
    for path in sorted(pattern.parent.glob(pattern.name)):
        with contextlib.suppress(OSError):
            sheets.append(Sheet.read(read_regular(path, SHEET_BYTES, follow=False)))
    return [sheet for sheet in sheets if sheet is not None]


EVERY_S = 5.0
Sample = tuple[dict[str, str], float | None]

_OF_TASK = {
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
"""By the field of the report: name, kind and purpose."""


@contextlib.contextmanager
def exported(path: Path | None, directory: Path) -> Iterator[None]:
    """Keep a textfile for Prometheus about the run in a directory, new every 5 s and at the end.

    Raises:
        SpecError: the file cannot be written now. Later nothing of it disturbs the run.
    """
    if path is None:
        yield
        return
    stopped = threading.Event()

    def write() -> None:
        from dtrain_cli.runs.report import read_report  # which imports this file

        aside = path.with_name(f".{path.name}.{os.getpid()}")  # a reader takes names that end in .prom
        aside.write_text(exposition(read_report(directory)), encoding="utf-8")
        aside.replace(path)

    def run() -> None:
        over = False
        while not over:
            over = stopped.wait(EVERY_S)
            with contextlib.suppress(OSError, DtrainError):
                write()

    try:
        write()
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror}"
        raise SpecError(f"--prometheus: {why}; give a file in a folder that is there and yours") from None
    thread = threading.Thread(target=run, name="prometheus", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def exposition(report: Mapping[str, Any]) -> str:
    """Return a report (`dtrain status --json`) in the text format of Prometheus.

    Seconds by cause are a gauge, as those that are rolled back are no longer good.
    """
    run = {"run": report["run"]}
    goodput = report["goodput"] or {"share": None, "tasks": []}
    up = report["state"] in LIVE_RUN_STATES
    tasks = [({**run, "task": task["task"]}, task) for task in report["tasks"]]
    rows = [({**run, "task": row["task"]}, row["seconds"]) for row in goodput["tasks"]]
    seconds = [({**labels, "cause": cause}, row[cause]) for labels, row in rows for cause in row]
    running = [(labels, task["state"] == TaskState.RUNNING) for labels, task in tasks]
    lost = [(run, report["rolled_back_steps"])]
    families: list[tuple[str, str, str, Sequence[Sample]]] = [
        ("up", "gauge", "Whether the run lives.", [({**run, "name": report["name"]}, up)]),
        ("global_step", "gauge", "Steps made, without those rolled back.", [(run, report["global_step"])]),
        ("rolled_back_steps_total", "counter", "Steps lost by returns to a checkpoint.", lost),
        (
            "goodput_ratio",
            "gauge",
            "Replica-seconds that are in the weights, of all.",
            [(run, goodput["share"])],
        ),
        ("replica_seconds", "gauge", "Replica-seconds by what became of them: good is goodput.", seconds),
        ("task_up", "gauge", "Whether the task runs.", running),
    ]
    families += [
        (*facts, [(labels, task[field]) for labels, task in tasks]) for field, facts in _OF_TASK.items()
    ]
    return "".join(line for family in families for line in _family(*family))


def _family(name: str, kind: str, purpose: str, samples: Sequence[Sample]) -> Iterator[str]:
    there = [(labels, float(value)) for labels, value in samples if value is not None]
    if there:
        yield f"# HELP dtrain_{name} {purpose}\n# TYPE dtrain_{name} {kind}\n"
    for labels, value in there:
        pairs = ",".join(f"{label}={json.dumps(text, ensure_ascii=False)}" for label, text in labels.items())
        yield f"dtrain_{name}{{{pairs}}} {value:.10g}\n"
