"""The goodput of a run, from its replicas' timesheets and the launcher's journal; and for Prometheus."""

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
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
Sample = tuple[Mapping[str, str], float | None]


@contextlib.contextmanager
def exported(path: Path | None, directory: Path) -> Iterator[None]:
    """Keep a textfile of Prometheus about the run in a directory up to date, and write it at the end.

    Raises:
        SpecError: the file cannot be written now. Later nothing of it disturbs the run.
    """
    if path is None:
        yield
        return
    stopped = threading.Event()

    def write() -> None:
        from dtrain_cli.runs.report import read_report

        aside = path.with_name(f".{path.name}.{os.getpid()}")  # node_exporter reads names that end in .prom
        aside.write_text(exposition(read_report(directory)), encoding="utf-8")
        aside.replace(path)

    def run() -> None:
        while not stopped.wait(EVERY_S):
            with contextlib.suppress(OSError, DtrainError):
                write()

    try:
        write()
    except OSError as error:
        raise SpecError(
            f"--prometheus: {path} cannot be written: {error.strerror}; give a file in a folder of yours"
        ) from None
    thread = threading.Thread(target=run, name="prometheus", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        with contextlib.suppress(OSError, DtrainError):
            write()


def exposition(report: Mapping[str, Any]) -> str:
    """Return a report (`dtrain status --json`) in the text format of Prometheus.

    Seconds by cause are a gauge: those that are rolled back are no longer good.
    """
    run = {"run": report["run"]}
    tasks = [({**run, "task": task["task"]}, task) for task in report["tasks"]]
    goodput = report["goodput"] or {"share": None, "tasks": []}
    up = report["state"] in LIVE_RUN_STATES

    def each(field: str) -> list[Sample]:
        return [(labels, task[field]) for labels, task in tasks]

    families: Iterable[tuple[str, str, str, Iterable[Sample]]] = (
        ("up", "gauge", "Whether the run lives.", [({**run, "name": report["name"]}, up)]),
        ("global_step", "gauge", "Steps made, less those rolled back.", [(run, report["global_step"])]),
        (
            "rolled_back_steps_total",
            "counter",
            "Steps lost by returns to a checkpoint.",
            [(run, report["rolled_back_steps"])],
        ),
        (
            "goodput_ratio",
            "gauge",
            "Replica-seconds that are in the weights, of all.",
            [(run, goodput["share"])],
        ),
        (
            "replica_seconds",
            "gauge",
            "Replica-seconds by what became of them; cause good is goodput.",
            [
                ({**run, "task": row["task"], "cause": cause}, seconds)
                for row in goodput["tasks"]
                for cause, seconds in row["seconds"].items()
            ],
        ),
        (
            "task_up",
            "gauge",
            "Whether the task runs.",
            [(labels, task["state"] == TaskState.RUNNING) for labels, task in tasks],
        ),
        ("task_step", "gauge", "The step of the task.", each("step")),
        ("task_restarts_total", "counter", "How often the task was started again.", each("restarts")),
        ("task_examples_per_second", "gauge", "Examples a second.", each("examples_per_s")),
        ("task_loss", "gauge", "The loss of the last batch.", each("loss")),
        ("task_staleness_steps", "gauge", "Mean staleness of gradients, in steps.", each("staleness_mean")),
        (
            "task_stale_gradients_total",
            "counter",
            "Gradients that came too late to be applied.",
            each("stale_gradients"),
        ),
    )
    text = ""
    for name, kind, purpose, samples in families:
        there = [(labels, float(value)) for labels, value in samples if value is not None]
        if there:
            text += f"# HELP dtrain_{name} {purpose}\n# TYPE dtrain_{name} {kind}\n"
        for labels, number in there:
            pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
            text += f"dtrain_{name}{{{pairs}}} {_number(number)}\n"
    return text


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(number: float) -> str:
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(str(number), f"{number:.10g}")
