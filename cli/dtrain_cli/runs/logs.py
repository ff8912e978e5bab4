"""The output of a run's tasks, read from their logs, and their traces as one timeline.

The console of a launch may leave lines out; here nothing is. Bytes are passed on as they are. The timeline
has the format of Perfetto and chrome://tracing. Source: "Trace Event Format": complete events (X), instants
(i) and metadata (M), times in microseconds.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dtrain.cluster import TaskId
from dtrain.runs.files import RunFiles
from dtrain.runs.trace import Ended, Happened, Header, Line, Span

_BLOCK_BYTES = 1 << 20


@dataclass
class TaskOutput:
    """One task's output, from the run's files, and how far it has been read."""

    files: RunFiles
    task: TaskId
    _attempt: int = -1
    _offset: int = 0
    _partial: bytes = field(default=b"", repr=False)

    @property
    def is_empty(self) -> bool:
        logs = [self.files.log(self.task, attempt) for attempt in self.files.attempts(self.task)]
        return not any(log.exists() and log.stat().st_size for log in logs)

    def skip_to_last(self, lines: int) -> None:
        missing = lines
        for attempt in reversed(list(self.files.attempts(self.task))):
            self._attempt = attempt
            self._offset, found = _offset_of_last(self.files.log(self.task, attempt), missing)
            missing -= found
            if missing <= 0:
                return

    def blocks(self) -> Iterator[bytes]:
        yield from (block for _, block in self._new())

    def lines(self, ended: bool) -> Iterator[bytes]:
        """Yield the lines complete since the last call; with `ended` also a last one without a newline."""
        for first_of_attempt, block in self._new():
            if first_of_attempt and self._partial:
                yield self._partial + b"\n"
                self._partial = b""
            *whole, self._partial = (self._partial + block).split(b"\n")
            yield from (line + b"\n" for line in whole)
        if ended and self._partial:
            yield self._partial + b"\n"
            self._partial = b""

    def _new(self) -> Iterator[tuple[bool, bytes]]:
        for attempt in self.files.attempts(self.task):
            if attempt < self._attempt:
                continue
            if attempt > self._attempt:
                self._attempt = attempt
                self._offset = 0
            for block in _read(self.files.log(self.task, attempt), self._offset):
                yield self._offset == 0, block
                self._offset += len(block)


def _read(path: Path, offset: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while block := file.read(_BLOCK_BYTES):
                yield block
    except FileNotFoundError:
        return


def _offset_of_last(path: Path, lines: int) -> tuple[int, int]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return 0, 0
    with file:
        position = size = file.seek(0, 2)
        if lines <= 0 or size == 0:
            return size, 0
        file.seek(size - 1)
        newlines_wanted = lines + (file.read(1) == b"\n")
        seen = 0
        while position > 0:
            start = max(0, position - _BLOCK_BYTES)
            file.seek(start)
            block = file.read(position - start)
            in_block = block.count(b"\n")
            if seen + in_block >= newlines_wanted:
                cut = len(block)
                for _ in range(newlines_wanted - seen):
                    cut = block.rindex(b"\n", 0, cut)
                return start + cut + 1, lines
            seen += in_block
            position = start
    return 0, lines - (newlines_wanted - seen) + 1


THREADS = {"input": 1, "compute": 2, "send": 3, "wait": 4, "apply": 5}
"""Spans of one name stand in one row; events in row 0."""


def timeline(traces: Mapping[TaskId, Iterable[Sequence[Line]]]) -> list[dict[str, Any]]:
    """Return the events of all attempts (lines by task and attempt), on one clock that begins at 0."""
    found = [(task, lines) for task, attempts in traces.items() for lines in attempts if lines]
    # When each attempt began, on the clock that machines share.
    firsts = {id(lines): lines[0] for _, lines in found}
    starts = {key: each.wall_s if isinstance(each, Header) else each.at_s for key, each in firsts.items()}
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


def _event(line: Line, process: int, shift_s: float) -> list[dict[str, Any]]:
    # Nanoseconds, as the clock counts: Perfetto leaves out a span that overlaps the one before by a rounding.
    begin_ns = round(line.at_s * 1e9)
    at = {"pid": process, "ts": (begin_ns + round(shift_s * 1e9)) / 1000}
    match line:
        case Span():
            span = {"name": line.name, "ph": "X", "tid": THREADS.get(line.name, 9), **at}
            span["dur"] = (round((line.at_s + line.for_s) * 1e9) - begin_ns) / 1000
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
