"""Runs over time, from the files of their directories: series, marks, and where the time of each task went.

Moments are seconds since a run began. A series is thinned to what a screen shows; its least and greatest
values stay. Files of lines are read as far as they are whole: what is damaged, or cut off where its writer
was killed, is left out.
"""

import contextlib
import json
import math
import signal
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from dtrain.cluster import TaskId
from dtrain.config import RunSpec
from dtrain.formats.bounded_reading import read_regular
from dtrain.runs.files import FailureRecord, read_sound
from dtrain.runs.trial_reports import EVALUATED, TRAINED
from dtrain_cli.runs.index import KnownRun, instant
from dtrain_cli.runs.report import first_line, read_report

FILE_BYTES_MAX = 256 << 20
BUCKETS, TASK_BUCKETS = 1000, 75
"""The buckets of all runs together in one chart, and those of one task; each bucket keeps two points."""
RUN_BUCKETS_MAX = 250
TASK_LINES_MAX = 24
"""Tasks that have lines of their own: the slowest."""
MARKS_MAX = 400
NUMBER_MAX = 1e100
STEP_MAX = 1 << 53
STEPS, EPOCHS, EVALUATION, REPORTED = "steps", "epochs", "evaluation", "reported"
"""The sources of a metric, as a legend names them."""
ALL_TASKS = "all tasks"
TITLES = {
    "loss": "Loss",
    "accuracy": "Accuracy",
    "throughput": "Throughput: examples per second",
    "throughput of each task": "Throughput of each task",
    "staleness": "Staleness of gradients, in steps",
    "staleness of each task": "Staleness of each task's gradients",
}
"""The titles of charts, in their order; other metrics stand between, with their own names."""
_MARKS = {
    "exited": ("death", "{task} died: {how}"),
    "started": ("restart", "{task} started again (attempt {attempt})"),
    "failed": ("loss", "{task} failed for good: {message}"),
    "stopped": ("loss", "{task} stopped: {message}"),
    "host": ("loss", "host {host}: {what}"),
    "joined": ("join", "{task} joined"),
    "chaos": ("fault", "chaos: {action} {task}"),
    "fault": ("fault", "simulate: {signal} to {task}"),
    "kill order": ("fault", "{task} is killed: {reason}"),
    "rolled back": ("rollback", "rolled back by {steps} steps"),
    "stalled": ("stall", "{message}"),
    "unsaved": ("stall", "{message}"),
}
"""The kind and the text of the mark of each event of the journal that has one."""
_NEWS = {"exited": "status", "started": "attempt"}
"""The fields that make an event a mark: a first start and a good end are none."""


Lines = Sequence[Mapping[str, Any]]


class Point(NamedTuple):
    """A value, the second and the global step at which it was measured."""

    at_s: float
    step: int
    value: float


class Series(msgspec.Struct, frozen=True):
    """A line of a chart; `run` is its run's place among those shown, `kind` its source, or the task."""

    run: int
    chart: str
    kind: str
    points: list[Point]


class RunMark(msgspec.Struct, frozen=True):
    """An event of a run that belongs on its charts; `kind` as in `_MARKS`."""

    at_s: float
    step: int
    kind: str
    text: str


class TaskTime(msgspec.Struct):
    """The seconds of one task by activity, and those of its waits by the task that it waited for."""

    seconds: Mapping[str, float] = msgspec.field(default_factory=dict)
    waits: Mapping[str, float] = msgspec.field(default_factory=dict)
    bins: list[tuple[float, ...] | None] = msgspec.field(default_factory=list)
    """By equal parts of the run: the shares of input, computing and waiting; None: nothing is known."""


class RunHistory(msgspec.Struct, frozen=True):
    """One run; `report` is its status, as `dtrain status --json` prints it."""

    report: dict[str, Any]
    failure: FailureRecord | None
    spec: dict[str, Any]
    versions: dict[str, Any]
    length_s: float
    series: list[Series]
    marks: list[RunMark]
    times: dict[str, TaskTime]


class Story(msgspec.Struct, frozen=True):
    """Runs that are shown together, each by a label, and the series of each chart."""

    histories: list[RunHistory]
    labels: list[str]
    charts: dict[str, list[Series]]


def read_story(runs: Sequence[KnownRun]) -> Story:
    """Read runs; raise a `RunError` if the record of one is damaged."""
    histories = [_read_history(run, place, len(runs)) for place, run in enumerate(runs)]
    names, ids = ([history.report[field] for history in histories] for field in ("name", "run"))
    charts: dict[str, list[Series]] = defaultdict(list)
    for series in (each for history in histories for each in history.series):
        charts[series.chart].append(series)
    order = sorted(charts, key=lambda name: ([*TITLES].index(name) if name in TITLES else 1.5, name))
    labels = names if len({*names}) == len(names) else ids
    return Story(histories, labels, {name: charts[name] for name in order})


def _read_history(run: KnownRun, place: int, count: int) -> RunHistory:
    files = run.files
    report = read_report(files.directory)
    events, lines, reported = map(_read, (files.journal, files.metrics, files.reports))
    lines = [line for line in lines if _is_sound(line)]
    for line in lines:
        line["global_step"] = _step(line, "global_step")
    for each in (*events, *lines):
        each["at_s"] = instant(str(each.get("time"))).timestamp()
    for each in reported:
        each["at_s"] = _told(each, "reported_s") or 0.0
    begun_s = min((each["at_s"] for each in (*events, *lines) if each["at_s"] > 0), default=0.0)
    for each in (*events, *lines, *reported):
        each["at_s"] = max(0.0, each["at_s"] - begun_s)
    length_s = max((each["at_s"] for each in (*events, *lines)), default=0.0)
    return RunHistory(
        report=report,
        failure=run.record.failure,
        spec=msgspec.to_builtins(read_sound(files.spec, RunSpec)) or {},
        versions=next((each["versions"] for each in lines if isinstance(each.get("versions"), dict)), {}),
        length_s=length_s,
        series=[*_series((place, count), lines, reported, report)],
        marks=_marks(events, lines),
        times=_times(report, lines, length_s),
    )


def object_of(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; an empty one if it has none."""
    try:
        found = json.loads(line) if line.lstrip().startswith(b"{") else {}  # this library reads NaN
        if b"\\ud" in line.lower():  # half of a surrogate pair cannot be encoded in UTF-8
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def number(value: Any) -> float | None:
    """Convert a number, or a text of one, to float; return None if it is not finite or not a number."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _read(path: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(OSError):
        lines = read_regular(path, FILE_BYTES_MAX, follow=False).splitlines()
        return [found for line in lines if (found := object_of(line))]
    return []


def _is_sound(line: Mapping[str, Any]) -> bool:
    tasks = line.get("tasks")
    sound = isinstance(tasks, dict) and all(isinstance(each, dict) for each in tasks.values())
    return sound and _told(line, "global_step") is not None


def _told(said: Mapping[str, Any], field: str) -> float | None:
    """Return a number of a file that anyone may have changed, if sums of such numbers are numbers too."""
    value = number(said.get(field))
    return value if value is not None and abs(value) < NUMBER_MAX else None


def _step(said: Mapping[str, Any], field: str) -> int:
    return int(max(0.0, min(_told(said, field) or 0.0, STEP_MAX)))


def _marks(events: Lines, lines: Lines) -> list[RunMark]:
    moments = [line["at_s"] for line in lines]
    marks: list[RunMark] = []
    for event in events:
        name, at_s = str(event.get("event")), event["at_s"]
        if name == "stopping":  # what ends after that was told to
            break
        if name in _MARKS and event.get(_NEWS.get(name, "event")):
            kind, text = _MARKS[name]
            before = bisect_right(moments, at_s)
            step = lines[before - 1]["global_step"] if before else 0
            said = text.format_map(defaultdict(str, event, how=_exit_text(event.get("status"))))
            marks.append(RunMark(round(at_s, 2), step, kind, first_line(said)))
    return marks[:MARKS_MAX]


def _exit_text(status: Any) -> str:
    if isinstance(status, int) and status < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-status).name
    return f"exit code {status}"


# Series


def _series(
    place: tuple[int, int], lines: Lines, reported: Lines, report: Mapping[str, Any]
) -> Iterator[Series]:
    """Yield the series of a run; `place` is its place among so many."""
    run, count = place
    told = {task for line in lines for task in line["tasks"]}
    names = [task["task"] for task in report["tasks"] if task["task"] in told]
    found = {("loss", STEPS): _folded(lines, names, "loss", fmean)}
    for entry in reported:
        kind = EPOCHS if TRAINED in entry else EVALUATION if EVALUATED in entry else REPORTED
        for name in entry:
            beside = name in ("step", "reported_s", "at_s", TRAINED, EVALUATED)
            if not beside and (value := _told(entry, name)) is not None:
                point = Point(entry["at_s"], _step(entry, "step"), value)
                found.setdefault((name, kind), []).append(point)
    rates = {task["task"]: task["examples_per_s"] or 0.0 for task in report["tasks"]}
    slowest = sorted(names, key=lambda task: (rates.get(task, 0.0), task))[:TASK_LINES_MAX]
    alone = sorted(slowest, key=TaskId.parse) if count == 1 < len(names) else []
    for kind, tasks in ((ALL_TASKS, names), *((task, [task]) for task in alone)):
        of = "" if kind == ALL_TASKS else " of each task"
        found[f"throughput{of}", kind] = _folded(lines, tasks, "examples_per_s", sum)
        found[f"staleness{of}", kind] = _staleness(lines, tasks)
    for (chart, kind), points in found.items():
        buckets = TASK_BUCKETS if kind in names else min(RUN_BUCKETS_MAX, max(1, BUCKETS // count))
        if points:
            yield Series(run, chart, kind, thinned(points, buckets))


def thinned(points: Sequence[Point], buckets: int) -> list[Point]:
    """Keep the least and the greatest value of each of so many buckets, and the first and the last point."""
    chosen: Iterable[int] = range(len(points))
    if len(points) > 2 * buckets:
        size = math.ceil(len(points) / buckets)
        parts = [range(at, min(at + size, len(points))) for at in range(0, len(points), size)]
        ends = [pick(part, key=lambda index: points[index].value) for part in parts for pick in (min, max)]
        chosen = sorted({0, *ends, len(points) - 1})
    return [Point(round(points[i].at_s, 2), points[i].step, float(f"{points[i].value:.5g}")) for i in chosen]


def _folded(
    lines: Lines, tasks: Sequence[str], field: str, fold: Callable[[list[float]], float]
) -> list[Point]:
    """Return what `fold` makes of a field of all tasks, at each line where any task has it."""
    points = []
    for line in lines:
        said = [_told(line["tasks"][task], field) for task in tasks if task in line["tasks"]]
        if known := [each for each in said if each is not None]:
            points.append(Point(line["at_s"], line["global_step"], fold(known)))
    return points


def _staleness(lines: Lines, tasks: Sequence[str]) -> list[Point]:
    """Return the mean staleness of what was pushed between two lines, unless a task began to count anew."""
    points = []
    before = 0.0, 0.0
    for line in lines:
        counts = [line["tasks"].get(task, {}).get("staleness_counts") for task in tasks]
        dealt = [each for each in counts if isinstance(each, dict)]
        pairs = [(number(stale) or 0.0, _told(each, stale) or 0.0) for each in dealt for stale in each]
        now = sum(stale * pushes for stale, pushes in pairs), sum(pushes for _, pushes in pairs)
        if now[1] > before[1] and now[0] >= before[0]:
            mean = (now[0] - before[0]) / (now[1] - before[1])
            points.append(Point(line["at_s"], line["global_step"], mean))
        before = now
    return points


# Where the time went


def _times(report: Mapping[str, Any], lines: Lines, length_s: float) -> dict[str, TaskTime]:
    """Return the time of each task by the goodput ledger, and what each has told of it over the run."""
    found: dict[str, TaskTime] = {}
    if ledger := report.get("goodput"):
        for task in ({"task": ALL_TASKS, **ledger}, *ledger["tasks"]):
            found[task["task"]] = TaskTime(task["seconds"], task["waited_for"])
    for name in (task["task"] for task in report["tasks"]):
        mine = [(line["at_s"], line["tasks"][name]) for line in lines if name in line["tasks"]]
        if any(bins := _bins(mine, length_s)):
            found.setdefault(name, TaskTime()).bins = bins
    return found


def _bins(mine: Sequence[tuple[float, Mapping[str, Any]]], length_s: float) -> list[tuple[float, ...] | None]:
    """Return a task's shares of input, computing and waiting, by equal parts of the run."""
    parts: list[list[tuple[float, float]]] = [[] for _ in range(min(TASK_BUCKETS, max(1, len(mine) // 2)))]
    for at_s, said in mine:
        if (waited := _told(said, "waiting_share")) is not None:  # else it had measured nothing yet
            read = min(_told(said, "input_share") or 0.0, 1 - waited)
            parts[min(int(len(parts) * at_s / (length_s or 1)), len(parts) - 1)].append((read, waited))
    means = [[fmean(column) for column in zip(*part, strict=True)] for part in parts]
    return [(mean[0], 1 - sum(mean), mean[1]) if mean else None for mean in means]
