"""A run over time, from the files of its directory: series, marks, and where the time of each task went.

Moments are seconds since the run began. A series is thinned to what a screen shows; its least and greatest
values stay. Files of lines are read as far as they are whole: what is damaged, or cut off where its writer
was killed, is left out.
"""

import contextlib
import json
import math
import signal
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dtrain.cluster import TaskId
from dtrain.formats.bounded_reading import read_regular
from dtrain.runs.files import FailureRecord, RunFiles
from dtrain.runs.trace import Span, read_trace
from dtrain.runs.trial_reports import EVALUATED, TRAINED
from dtrain_cli.runs.index import KnownRun, instant
from dtrain_cli.runs.report import first_line, read_report

FILE_BYTES_MAX = 256 << 20
TRACES_BYTES_MAX = 64 << 20
"""Larger traces are not summed up: reading them takes seconds."""
RUN_BUCKETS, TASK_BUCKETS = 250, 75
"""The buckets of a series of a run, and of a series of one of its tasks; each keeps two points."""
RUNS_WHOLE = 4
"""The number of runs from which on each run has fewer buckets."""
TASK_LINES_MAX = 24
"""Tasks that have lines of their own: the slowest."""
MARKS_MAX = 400
EPOCHS, EVALUATION, SAMPLED, TOLD = "epochs", "evaluation", "steps", "reported"
"""The sources of a metric, as a legend names them."""
ALL_TASKS = "all tasks"
DERIVED = (THROUGHPUT, STALENESS) = "throughput", "staleness"
"""The charts that are no metrics of the program."""
LEDGER, TRACES, SHARES = "the goodput ledger", "the traces", "what the tasks have said every few seconds"


class Point(NamedTuple):
    """A value, the second and the global step at which it was measured."""

    at_s: float
    step: int
    value: float


class Series(msgspec.Struct, frozen=True):
    """A line of a chart; `run` is the run's place among those that are shown, `kind` what a legend adds."""

    run: int
    kind: str
    points: list[Point]


class Chart(msgspec.Struct, frozen=True):
    """Series with one unit; `name` is the anchor, by which the docs explain the chart."""

    name: str
    title: str
    series: list[Series]


class Mark(msgspec.Struct, frozen=True):
    """An event of a run that belongs on its charts; `kind` as in `_MARKS`."""

    at_s: float
    step: int
    kind: str
    text: str


class TimeShares(msgspec.Struct):
    """The seconds of one task by activity, and those of its waits by the task that it waited for."""

    seconds: Mapping[str, float] = msgspec.field(default_factory=dict)
    waits: Mapping[str, float] = msgspec.field(default_factory=dict)
    bins: list[tuple[float, float] | None] = msgspec.field(default_factory=list)
    """By equal parts of the run: the shares of input and of waiting; None: nothing is known."""


class History(msgspec.Struct, frozen=True):
    """One run.

    Attributes:
        report: its status, as `dtrain status --json` prints it.
        lines: those of metrics.jsonl; `reported` are those of reports.jsonl.
        source: where the seconds of `times` come from: the ledger, traces, or shares that tasks have said.
    """

    report: dict[str, Any]
    failure: FailureRecord | None
    spec: dict[str, Any]
    versions: dict[str, str]
    length_s: float
    lines: list[dict[str, Any]]
    reported: list[dict[str, Any]]
    marks: list[Mark]
    times: dict[str, TimeShares]
    source: str


class Story(msgspec.Struct, frozen=True):
    """Runs that are shown together, each by a label, and their charts."""

    histories: list[History]
    labels: list[str]
    charts: list[Chart]


def read_story(runs: Iterable[KnownRun]) -> Story:
    """Read runs; raise a `RunError` if the record of one is damaged."""
    histories = [read_history(run) for run in runs]
    names = [history.report["name"] for history in histories]
    ids = [history.report["run"] for history in histories]
    return Story(histories, names if len({*names}) == len(names) else ids, charts_of(histories))


def object_of(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; an empty one if it has none."""
    try:
        found = json.loads(line) if line.lstrip().startswith(b"{") else {}  # this library reads NaN
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


def read_history(run: KnownRun) -> History:
    """Read what the run directory has. Raises a `RunError` if its record is damaged."""
    files = run.files
    report = read_report(files.directory)
    events, lines, reported = map(_read, (files.journal, files.metrics, files.reports))
    for each in (*events, *lines):
        each["wall_s"] = instant(str(each.get("time"))).timestamp()
    walls = [each["wall_s"] for each in (*events, *lines) if each["wall_s"] > 0]
    begun_s = min(walls, default=0.0)
    for each in (*events, *lines):
        each["at_s"] = max(0.0, each["wall_s"] - begun_s)
    for each in reported:
        each["at_s"] = max(0.0, (number(each.get("reported_s")) or begun_s) - begun_s)
    lines = [
        each for each in lines if number(each.get("global_step")) is not None and _tasks_of(each) is not None
    ]
    told = [each["at_s"] for each in (*events, *lines)]
    length_s = max(told, default=0.0)
    source, times = _times(files, report, lines, length_s)
    versions: dict[str, Any] = next(
        (each["versions"] for each in lines if isinstance(each.get("versions"), dict)), {}
    )
    return History(
        report=report,
        failure=run.record.failure,
        spec=_record(files.spec),
        versions={str(name): str(said) for name, said in versions.items()},
        length_s=length_s,
        lines=lines,
        reported=reported,
        marks=_marks(events, lines),
        times=times,
        source=source,
    )


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        lines = read_regular(path, FILE_BYTES_MAX, follow=False).splitlines()
    except OSError:
        return []
    return [found for line in lines if (found := object_of(line))]


def _record(path: Path) -> dict[str, Any]:
    return next(iter(_read(path)), {})


def _tasks_of(line: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    tasks = line.get("tasks")
    sound = isinstance(tasks, dict) and all(isinstance(each, dict) for each in tasks.values())
    return tasks if sound else None


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


def _marks(events: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> list[Mark]:
    moments = [line["at_s"] for line in lines]
    marks: list[Mark] = []
    for event in events:
        if (said := _said(event)) is not None and len(marks) < MARKS_MAX:
            before = bisect_right(moments, event["at_s"])
            step = int(lines[before - 1]["global_step"]) if before else 0
            marks.append(Mark(round(event["at_s"], 2), step, *said))
        if event.get("event") == "stopping":  # what ends after that was told to
            break
    return marks


def _said(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the kind and the text of the mark of an event; None: it is no mark."""
    said = _MARKS.get(str(event.get("event")))
    # A task that was started for the first time, or has ended well, is no news.
    if said is None or not event.get({"exited": "status", "started": "attempt"}.get(event["event"], "event")):
        return None
    kind, text = said
    return kind, first_line(text.format_map(defaultdict(str, event, how=_exit_text(event.get("status")))))


def _exit_text(status: Any) -> str:
    if isinstance(status, int) and status < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-status).name
    return f"exit code {status}"


# Where the time went


def _times(
    files: RunFiles, report: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], length_s: float
) -> tuple[str, dict[str, TimeShares]]:
    """Return the source of the seconds of each task, and them, from the best source that there is."""
    found: dict[str, TimeShares] = defaultdict(TimeShares)
    known = [TaskId.parse(task["task"]) for task in report["tasks"]]
    for name in map(str, known):
        if mine := [(line["at_s"], line["tasks"][name]) for line in lines if name in line["tasks"]]:
            found[name] = _sampled(mine, length_s)
    if ledger := report.get("goodput"):
        for task in ledger["tasks"]:
            found[task["task"]].seconds, found[task["task"]].waits = task["seconds"], task["waited_for"]
        return LEDGER, found
    traces = {
        str(task): [path for each in files.attempts(task) if (path := files.trace(task, each)).is_file()]
        for task in known
    }
    nbytes = sum(path.stat().st_size for paths in traces.values() for path in paths)
    if not 0 < nbytes <= TRACES_BYTES_MAX:
        return SHARES, found
    for name, paths in traces.items():
        seconds, waits = defaultdict[str, float](float), defaultdict[str, float](float)
        for span in (line for path in paths for line in read_trace(path) if isinstance(line, Span)):
            seconds[span.name] += span.for_s
            if span.name == "wait":
                waits[span.whom or "others"] += span.for_s
        if seconds:
            found[name].seconds, found[name].waits = seconds, waits
    return TRACES, found


def _sampled(mine: Sequence[tuple[float, Mapping[str, Any]]], length_s: float) -> TimeShares:
    """Add up a task's own shares of its time; each holds from the line before to its own."""
    seconds, waits = defaultdict[str, float](float), defaultdict[str, float](float)
    sums = [[0.0, 0.0, 0.0] for _ in range(min(TASK_BUCKETS, max(1, len(mine) // 2)))]
    before_s = mine[0][0]
    for at_s, said in mine:
        waited = number(said.get("waiting_share")) or 0.0
        read = min(number(said.get("input_share")) or 0.0, 1 - waited)
        if said.get("examples_per_s") is None:
            continue  # it had measured nothing yet
        for_s = at_s - before_s
        before_s = at_s
        for name, share in (("input", read), ("compute", 1 - waited - read), ("wait", waited)):
            seconds[name] += share * for_s
        if (whom := said.get("waiting_for")) is not None:
            waits[str(whom)] += waited * for_s
        part = sums[min(int(len(sums) * at_s / (length_s or 1)), len(sums) - 1)]
        part[:] = part[0] + 1, part[1] + read, part[2] + waited
    bins = [(round(read / n, 2), round(waited / n, 2)) if n else None for n, read, waited in sums]
    return TimeShares(seconds, waits, bins)


# Charts


_TITLES = {
    "loss": "Loss",
    "accuracy": "Accuracy",
    THROUGHPUT: "Throughput: examples per second",
    STALENESS: "Staleness of gradients, in steps",
}
"""The titles of charts, in their order; other metrics stand between, with their own names."""


def charts_of(histories: Sequence[History]) -> list[Chart]:
    """Return the charts of runs that are laid over each other; those without any number are left out."""
    series: dict[str, list[Series]] = defaultdict(list)
    buckets = RUN_BUCKETS * RUNS_WHOLE // max(RUNS_WHOLE, len(histories))
    for run, history in enumerate(histories):
        for name, kind, points in _metrics(history):
            series[name].append(Series(run, kind, thinned(points, buckets)))
        names = {task for line in history.lines for task in line["tasks"]}
        slowest = sorted(names, key=lambda task: (_rate(history.report, task), task))[:TASK_LINES_MAX]
        shown = sorted(slowest, key=TaskId.parse) if len(histories) == 1 < len(names) else []
        for name, points_of in ((THROUGHPUT, _throughput), (STALENESS, _staleness)):
            if not (whole := points_of(history.lines, names)):
                continue
            series[name].append(Series(run, ALL_TASKS, thinned(whole, buckets)))
            for task in shown:
                if points := points_of(history.lines, (task,)):
                    series[name].append(Series(run, task, thinned(points, TASK_BUCKETS)))
    order = sorted(series, key=lambda name: ([*_TITLES].index(name) if name in _TITLES else 1.5, name))
    return [Chart(name, _TITLES.get(name, name), series[name]) for name in order]


def thinned(points: Sequence[Point], buckets: int) -> list[Point]:
    """Keep the least and the greatest value of each of so many buckets, and the first and the last point."""
    chosen: Iterable[int] = range(len(points))
    if len(points) > 2 * buckets:
        size = math.ceil(len(points) / buckets)
        parts = [range(at, min(at + size, len(points))) for at in range(0, len(points), size)]
        ends = [pick(part, key=lambda index: points[index].value) for part in parts for pick in (min, max)]
        chosen = sorted({0, *ends, len(points) - 1})
    return [Point(round(points[i].at_s, 2), points[i].step, float(f"{points[i].value:.5g}")) for i in chosen]


def _values(lines: Iterable[Mapping[str, Any]], value_of: Any) -> Iterator[Point]:
    for line in lines:
        if (value := number(value_of(line))) is not None:
            yield Point(line["at_s"], int(line["global_step"]), value)


def _metrics(history: History) -> Iterator[tuple[str, str, list[Point]]]:
    """Yield name, source and values of each metric."""

    def mean_loss(line: Mapping[str, Any]) -> float | None:
        losses = [number(task.get("loss")) for task in line["tasks"].values()]
        known = [each for each in losses if each is not None]
        return sum(known) / len(known) if known else None

    found: dict[tuple[str, str], list[Point]] = defaultdict(list)
    found["loss", SAMPLED] = [*_values(history.lines, mean_loss)]
    for entry in history.reported:
        kind = EPOCHS if TRAINED in entry else EVALUATION if EVALUATED in entry else TOLD
        step = number(entry.get("step"))
        for name, value in entry.items():
            beside = name in ("step", "reported_s", "at_s", TRAINED, EVALUATED)
            if not beside and step is not None and (value := number(value)) is not None:
                found[name, kind].append(Point(entry["at_s"], int(step), value))
    for (name, kind), points in found.items():
        if points:
            yield name, kind, points


def _rate(report: Mapping[str, Any], task: str) -> float:
    return next((each["examples_per_s"] or 0.0 for each in report["tasks"] if each["task"] == task), 0.0)


def _throughput(lines: Sequence[Mapping[str, Any]], tasks: Container[str]) -> list[Point]:
    def total(line: Mapping[str, Any]) -> float | None:
        rates = [number(said.get("examples_per_s")) for task, said in line["tasks"].items() if task in tasks]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known else None

    return [*_values(lines, total)]


def _staleness(lines: Sequence[Mapping[str, Any]], tasks: Container[str]) -> list[Point]:
    """Return the mean staleness of what the tasks pushed between two lines."""
    points = []
    before: dict[str, tuple[float, float]] = {}
    for line in lines:
        steps = pushes = 0.0
        for task, said in line["tasks"].items():
            counts = said.get("staleness_counts")
            if task not in tasks or not isinstance(counts, dict):
                continue
            known = [(number(stale) or 0.0, number(count) or 0.0) for stale, count in counts.items()]
            now = sum(stale * count for stale, count in known), sum(count for _, count in known)
            last = before.get(task, (0.0, 0.0))
            last = last if now[1] >= last[1] else (0.0, 0.0)  # a task that was started again counts anew
            before[task] = now
            steps += now[0] - last[0]
            pushes += now[1] - last[1]
        if pushes:
            points.append(Point(line["at_s"], int(line["global_step"]), steps / pushes))
    return points
