"""A study for the eye: its page, and event files for the HParams view of TensorBoard.

The page has the best so far, parallel coordinates, which parameters matter, and all trials.

Importance is the share of the metric's variance that lies between groups of complete trials: those with the
same value, or of a range the lower, middle and upper third of the trials. It is adjusted for the number of
groups (adjusted R squared of their means), so that a parameter without influence has about 0.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

from dtrain.errors import DtrainError
from dtrain.studies.study_files import values_text
from dtrain.studies.study_spec import Parameter, Scalar, Scale, StudySpec, ValueRange
from dtrain_cli.console.page import ChartLine, PageChart, chart_places, drawing, label, line, page, table

THIRDS = 3
_BEST_COLOUR, _WORST_COLOUR = "var(--c1)", "var(--c0)"
Row = dict[str, Any]


def study_page(report: Row, spec: StudySpec) -> str:
    """Draw and list what `study.look` has found."""
    done = [report["trials"][number] for number in report["ranking"]]
    parts, charts = [], []
    if done:
        values = [row["value"] for row in done]
        axes = {**spec.parameters, spec.metric_name: ValueRange(min(values), max(values))}
        shares = [(name, _importance(done, name, parameter)) for name, parameter in spec.parameters.items()]
        bars = [(name, f"{share:.2f}", "█" * round(40 * share)) for name, share in shares]
        parts = [
            chart_places(charts := [_best_so_far(done, spec)]),
            drawing("Complete trials: orange is the best, blue the worst", _parallel(done, axes)),
            "<h2>Share of the variance that each parameter explains alone</h2>",
            table(("parameter", "share", ""), bars),
        ]
    heads, ranked = ("trial", "state", "value", "step", "why"), set(report["ranking"])
    order = [*done, *(row for row in report["trials"] if row["trial"] not in ranked)]
    cells = ([*map(row.get, heads), *map(row["values"].get, spec.parameters)] for row in order)
    listed = table((*heads, *spec.parameters), cells)
    return page(f"Study {spec.name}: {report['state']}", [*parts, "<h2>Trials</h2>", listed], charts)


def _best_so_far(done: Sequence[Row], spec: StudySpec) -> PageChart:
    rows = sorted(done, key=lambda row: int(row["trial"]))
    best = accumulate((row["value"] for row in rows), max if spec.maximizes else min)
    x = {"trial": [row["trial"] for row in rows]}
    lines = [
        ChartLine("each trial", 1, x, [row["value"] for row in rows], dots=True),
        ChartLine("the best so far", 0, x, [*best]),
    ]
    title = f"{spec.metric_name} of each trial, and the best so far"
    return PageChart(title, {"trial": "trial"}, lines)


def _parallel(done: Sequence[Row], axes: dict[str, Parameter]) -> Iterator[str]:
    xs = {name: index / max(1, len(axes) - 1) for index, name in enumerate(axes)}
    for name, axis in axes.items():
        yield line([(xs[name], 0), (xs[name], 1)])
        yield label((xs[name], 1.08), name)
        for tick in _ticks(axis):
            text = f"{tick:.4g}" if isinstance(tick, float) else tick
            yield label((xs[name] + 0.005, _position(axis, tick)), text, "start")
    for rank, row in reversed([*enumerate(done)]):
        values = row["values"] | {[*axes][-1]: row["value"]}
        points = [(xs[name], _position(axis, values[name])) for name, axis in axes.items() if name in values]
        share = f"{100 * rank / max(1, len(done) - 1):.0f}%"
        yield line(points, f"color-mix(in oklab,{_WORST_COLOUR} {share},{_BEST_COLOUR})", _hint(row))


def _hint(row: Row) -> str:
    return f"trial {row['trial']}: {row['value']:.6g}; {values_text(row['values'])}"


def _ticks(axis: Parameter) -> Sequence[Scalar]:
    return (axis.min, axis.max) if isinstance(axis, ValueRange) else axis


def _position(axis: Parameter, value: Any) -> float:
    if not isinstance(axis, ValueRange):
        return (axis.index(value) + 0.5) / len(axis)
    form = math.log if axis.scale is Scale.LOG else float
    low, high = form(axis.min), form(axis.max)
    return 0.5 if low == high else (form(value) - low) / (high - low)


def _importance(done: Sequence[Row], name: str, axis: Parameter) -> float:
    rows = sorted(
        (row for row in done if name in row["values"]), key=lambda row: _position(axis, row["values"][name])
    )
    groups: dict[Any, list[float]] = {}
    for index, row in enumerate(rows):
        group = index * THIRDS // len(rows) if isinstance(axis, ValueRange) else repr(row["values"][name])
        groups.setdefault(group, []).append(row["value"])
    mean = fmean(row["value"] for row in rows) if rows else 0.0
    total = sum((row["value"] - mean) ** 2 for row in rows)
    within = sum(pvariance(group) * len(group) for group in groups.values())
    free = len(rows) - len(groups)
    return max(0.0, 1 - within / free * (len(rows) - 1) / total) if free > 0 and total > 0 else 0.0


def write_hparams(report: Row, folder: Path) -> None:
    """Write a subfolder of `folder` for each trial, with its values and metric, for TensorBoard's HParams.

    What an earlier call has written there is written anew.

    Raises:
        DtrainError: TensorBoard is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import summary_v2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise DtrainError(
            f"--hparams: needs the package tensorboard: `pip install tensorboard` ({error})"
        ) from None
    for row in report["trials"]:
        ours = folder / f"{row['trial']:04d}"
        for old in ours.glob("events.out.tfevents.*"):
            old.unlink()
        writer = EventFileWriter(str(ours))
        writer.add_event(Event(summary=summary_v2.hparams_pb(row["values"], trial_id=ours.name)))
        if row["value"] is not None:
            value = Summary.Value(tag=next(iter(report["metric"])), simple_value=row["value"])
            writer.add_event(Event(summary=Summary(value=[value]), step=row["step"]))
        writer.close()
