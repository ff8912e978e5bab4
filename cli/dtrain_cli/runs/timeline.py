"""The traces of a run as one timeline, in the format of Perfetto and chrome://tracing. Pure.

Source: "Trace Event Format": complete events (X), instants (i) and metadata (M), times in microseconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dtrain.cluster import TaskId
from dtrain.runs.trace import Ended, Happened, Header, Line, Span

THREADS = {"input": 1, "compute": 2, "send": 3, "wait": 4, "apply": 5}
"""Spans of one name stand in one row; events in row 0."""


def timeline(traces: Mapping[TaskId, Iterable[Sequence[Line]]]) -> list[dict[str, Any]]:
    """Return the events of all attempts (lines by task and attempt), on one clock that begins at 0."""
    found = [(task, lines) for task, attempts in traces.items() for lines in attempts if lines]
    starts = {id(lines): _start_s(lines) for _, lines in found}
    origin_s = min(starts.values(), default=0.0)
    events: list[dict[str, Any]] = []
    for number, task in enumerate(traces):
        events.append(_named("process_name", number, 0, str(task)))
        events.append({**_named("process_sort_index", number, 0, ""), "args": {"sort_index": number}})
        events += [_named("thread_name", number, row, name) for name, row in THREADS.items()]
        events.append(_named("thread_name", number, 0, "events"))
        for other, lines in found:
            if other == task:
                shift_s = starts[id(lines)] - origin_s - lines[0].at_s
                events += [event for line in lines for event in _event(line, number, shift_s)]
    return events


def _start_s(lines: Sequence[Line]) -> float:
    """Return when an attempt began, on the clock that machines share."""
    first = lines[0]
    return first.wall_s if isinstance(first, Header) else first.at_s


def _event(line: Line, process: int, shift_s: float) -> list[dict[str, Any]]:
    at = {"pid": process, "ts": round((line.at_s + shift_s) * 1e6, 1)}
    match line:
        case Span():
            span = {"name": line.name, "ph": "X", "tid": THREADS.get(line.name, 9), **at}
            span["dur"] = round(line.for_s * 1e6, 1)
            return [span | ({"args": {"whom": line.whom}} if line.whom else {})]
        case Happened():
            fields = msgspec.to_builtins(line.what)
            return [{"name": fields.pop("event"), "ph": "i", "s": "p", "tid": 0, **at, "args": fields}]
        case Header():
            return [{"name": f"attempt {line.attempt}", "ph": "i", "s": "p", "tid": 0, **at}]
        case Ended():
            return [{"name": "the trace has reached its limit", "ph": "i", "s": "p", "tid": 0, **at}]


def _named(kind: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": row, "args": {"name": name}}
