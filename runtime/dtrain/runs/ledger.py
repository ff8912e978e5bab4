"""The goodput ledger: which replica-seconds of a run are in its final weights, and where the others went.

1. Every second of a replica, from the start of its first process to its end, has one cause.
2. What is computed is in flight until the part has a verdict. A part that counts makes its seconds good.
   If a process died before it had sent its part, another process computes the part again, and the seconds are
   lost. If it died while it waited for the verdict, they count, as the part does
   (docs/design/protocol.md#exactly-once).
3. A return to version c at a moment takes back all that was counted before this moment above c, also what
   processes had given that are dead by now: these seconds are rolled back.

A `Timesheet` is what one replica writes, in memory that outlives its process: a kill loses nothing of it. It
has numbers of 8 bytes, and behind them a text: the seconds of waiting by whom, as JSON. The `Activity` of its
task has those of all its replicas.
"""

import contextlib
import json
import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from dtrain.messages import Verdict

P = ParamSpec("P")
R = TypeVar("R")


class Cause(StrEnum):
    """The cause of a replica-second: use, or what it was lost by."""

    GOOD = "good"
    START = "start"
    INPUT = "input"
    SEND = "send"
    WAIT = "wait"
    LATE = "late"
    STALE = "stale"
    RECOMPUTED = "recomputed"
    ROLLED_BACK = "rolled_back"
    CHECKPOINT = "checkpoint"
    DOWN = "down"
    OTHER = "other"


CAUSES = tuple(Cause)
GOOD, START, INPUT, SEND, WAIT = range(5)
_LATE, _STALE, _RECOMPUTED, _ROLLED_BACK, CHECKPOINT, _, OTHER = range(5, len(CAUSES))
COMPUTE = len(CAUSES)
"""The state of a replica that computes a part; its seconds are in flight."""
_FORMAT, _STATE, _SINCE_S, _BEGUN_S, _MARKS_COUNT, _RETURNS_COUNT, _FIRST = range(COMPUTE + 1, COMPUTE + 8)
FORMAT, _MOST = 1.0, 1e15


class _Table(NamedTuple):
    """The places of rows of numbers in a timesheet."""

    rows: int
    first: int
    width: int
    most: int

    def read(self, numbers: Any) -> list[tuple[float, ...]]:
        last = self.first + self.width * min(int(numbers[self.rows]), self.most)
        return [tuple(numbers[place : place + self.width]) for place in range(self.first, last, self.width)]

    def write(self, numbers: Any, rows: Sequence[tuple[float, ...]]) -> int:
        for place, value in enumerate(chain(*rows), self.first):
            numbers[place] = value
        numbers[self.rows] = len(rows)
        return len(rows)


_MARKS = _Table(_MARKS_COUNT, _FIRST, 3, 512)
"""Moments, ascending versions and the seconds that had counted by then; of very many, evenly spread ones."""
_RETURNS = _Table(_RETURNS_COUNT, _FIRST + 3 * 512, 2, 64)
"""Moments and the versions to which the replica returned; a later return to less covers an earlier one."""
_NUMBERS_BYTES = 8 * (_RETURNS.first + 2 * 64)
_TEXT_BYTES, _NAMES_MAX = 4096, 32
SHEET_BYTES = _NUMBERS_BYTES + _TEXT_BYTES
_VERDICTS = {Verdict.REFUSED: _STALE, Verdict.FINISHED: _LATE, Verdict.VOID: _ROLLED_BACK}
_MARKED_AFTER_S = 0.001
"""Steps that follow faster have a mark together."""


class Timesheet:
    """The account of one replica of one process, which the thread that trains writes."""

    def __init__(
        self, memory: Any, clock: Callable[[], float], stale: Cause, begun_s: float | None = None
    ) -> None:
        """Begin an account in writable memory of `SHEET_BYTES` zeros.

        Args:
            stale: what a part is that was not applied because it came too late.
            begun_s: when the process began; None: now.
        """
        self._numbers = memoryview(memory)[:_NUMBERS_BYTES].cast("d")
        self._text = memoryview(memory)[_NUMBERS_BYTES:SHEET_BYTES]
        self._clock = clock
        self._verdicts = {**_VERDICTS, Verdict.STALE: CAUSES.index(stale)}
        self._since_s = self._asked_s = clock() if begun_s is None else begun_s
        self._state = self._before = START
        self._version = self._parts = 0
        self._marked_s = 0.0
        self._stride = self._merged = 1  # each mark stands for so many; the last one so far
        self._numbers[_BEGUN_S] = self._numbers[_SINCE_S] = self._since_s
        self._numbers[_STATE], self._numbers[_FORMAT] = START, FORMAT

    def to(self, state: int, now_s: float | None = None) -> int:
        """Begin to count seconds for a state, from a moment on (None: now); return the state before."""
        before = self._state
        if state != before:
            if now_s is None:
                now_s = self._clock()
            numbers = self._numbers
            numbers[before] += now_s - self._since_s
            numbers[_STATE] = self._state = state
            numbers[_SINCE_S] = self._since_s = now_s
        return before

    @property
    def dealt_s(self) -> float:
        """When the replica last had a part computed, or its verdict."""
        return self._since_s if self._state == OTHER else self._asked_s

    def waits(self, *, on: bool) -> bool:
        """Note that the replica waits for others, or does so no more; return whether it did so before.

        A wait before training is part of the start.
        """
        if (did := self._state == WAIT) and not on:
            self.to(self._before)
        elif on and not did and self._state != START:
            self._before = self.to(WAIT)
        return did

    def sends(self) -> None:
        """Note that a part is computed, and is on its way now."""
        if self._state == COMPUTE:
            self.to(SEND)
            self._asked_s = self._since_s

    def begins(self, version: int) -> None:
        """Note that training begins, or goes on, at a version."""
        self.to(OTHER)
        self._return_to(version)

    def ends(self) -> None:
        """Note that training has ended."""
        self.to(OTHER)
        self._asked_s = self._since_s

    def goes_on(self, updates: int) -> None:
        """Note that a loop of the program's own computes now, behind so many updates."""
        if self._state == START:
            self.begins(updates)
        elif updates > self._version:
            self.judged(Verdict.ACCEPTED, 0, updates)
        self.to(COMPUTE)

    def judged(self, verdict: Verdict, accepted: int, version: int) -> None:
        """Note the verdict on the parts in flight, and the version that the replica has now.

        `accepted`: how many of them count, if there are several and not all of them do.
        """
        self._parts += 1
        if verdict is Verdict.PENDING:
            self.to(OTHER)
            return
        numbers, state, now_s = self._numbers, self._state, self._clock()
        seconds = numbers[COMPUTE]
        if state == COMPUTE:
            seconds += now_s - self._since_s
        else:
            numbers[state] += now_s - self._since_s
        numbers[_STATE] = self._state = OTHER
        numbers[_SINCE_S] = self._since_s = now_s
        cause = GOOD if verdict is Verdict.ACCEPTED else self._verdicts[verdict]
        if cause == _ROLLED_BACK or version < self._version:
            self._return_to(version - (cause == GOOD))
        parts, self._parts = self._parts, 0
        numbers[COMPUTE] = 0.0
        if cause == GOOD and 0 < accepted < parts:  # of several parts to one version
            numbers[_LATE] += seconds * (parts - accepted) / parts
            seconds *= accepted / parts
        numbers[cause] += seconds
        if cause == GOOD:
            self._version = version
            if now_s >= self._marked_s + _MARKED_AFTER_S:
                self._mark(version, now_s)

    def waited_for(self, seconds: Mapping[str, float]) -> None:
        """Write down by whom the waits are, those that took longest."""
        longest = sorted(seconds.items(), key=lambda each: -each[1])[:_NAMES_MAX]
        text = json.dumps({name: round(each_s, 6) for name, each_s in longest}).encode()
        if len(text) <= _TEXT_BYTES:
            self._text[:] = text.ljust(_TEXT_BYTES)

    def _return_to(self, version: int) -> None:
        """Take back what has counted above a version, and note the return for what others have given."""
        numbers = self._numbers
        marks = _MARKS.read(numbers)
        lost_s = rolled_back_s(marks, [(math.inf, version)])
        numbers[GOOD] -= lost_s
        numbers[_ROLLED_BACK] += lost_s
        _MARKS.write(numbers, [mark for mark in marks if mark[1] <= version])
        self._version, self._merged = version, self._stride
        self._mark(version, self._asked_s)
        returns = [each for each in _RETURNS.read(numbers) if each[1] < version]
        _RETURNS.write(numbers, [*returns, (self._asked_s, version)][-_RETURNS.most :])

    def _mark(self, version: int, at_s: float) -> None:
        """Note how much has counted up to a version. The last mark moves on with each call."""
        numbers, self._marked_s = self._numbers, at_s
        marks = int(numbers[_MARKS_COUNT]) - (self._merged < self._stride)
        self._merged = self._merged + 1 if self._merged < self._stride else 1
        if marks == _MARKS.most:
            self._stride *= 2
            marks = _MARKS.write(numbers, _MARKS.read(numbers)[::2])
        place = _MARKS.first + 3 * marks
        numbers[place], numbers[place + 1], numbers[place + 2] = at_s, version, numbers[GOOD]
        numbers[_MARKS_COUNT] = marks + 1


class Activity:
    """The account of one task, written by the thread that trains. Others wait for the task at every step: it
    works if it has read, computed or evaluated a batch not long ago, or if a callback is running, which may
    take any time.

    Attributes:
        input_s: for how long it has waited for the batches that were read so far.
        reading_since_s: the moment at which it began to wait for the present batch; None: it does not wait.
        sheets: the timesheets of its replicas.
    """

    def __init__(self) -> None:
        self.sheets = [Timesheet(bytearray(SHEET_BYTES), time.monotonic, Cause.LATE)]
        self._here: dict[int, Timesheet] = {}
        self._beat_s = time.monotonic()
        self.busy_with: str | None = None
        self.input_s = 0.0
        self.reading_since_s: float | None = None

    def waited_s(self, now_s: float) -> float:
        since_s = self.reading_since_s
        return self.input_s + (max(0.0, now_s - since_s) if since_s is not None else 0.0)

    def beat(self) -> None:
        self._beat_s = time.monotonic()

    @property
    def at_s(self) -> float:
        """When it last dealt with a batch, by the machine's monotonic clock."""
        return max(self._beat_s, *(sheet.dealt_s for sheet in self.sheets))

    def after(self, call: Callable[P, R]) -> Callable[P, R]:
        @wraps(call)
        def recorded(*arguments: P.args, **named: P.kwargs) -> R:
            result = call(*arguments, **named)
            self.beat()
            return result

        return recorded

    @property
    def sheet(self) -> Timesheet:
        """The timesheet of the replica that this thread computes."""
        return self._here.get(threading.get_ident(), self.sheets[0]) if self._here else self.sheets[0]

    def computes(self, replica: int) -> None:
        """Note which of the task's replicas this thread computes."""
        if len(self.sheets) > 1:
            self._here[threading.get_ident()] = self.sheets[replica % len(self.sheets)]

    def reading(self, read: Callable[P, R]) -> Callable[P, R]:
        @wraps(read)
        def timed(*arguments: P.args, **named: P.kwargs) -> R:
            sheet = self.sheet
            begun_s = self.reading_since_s = time.monotonic()
            before = sheet.to(INPUT, begun_s)
            try:
                return read(*arguments, **named)
            finally:
                self._beat_s = now_s = time.monotonic()
                self.input_s += now_s - begun_s
                self.reading_since_s = None
                sheet.to(COMPUTE if before == OTHER else before, now_s)

        return timed

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        before = self.busy_with
        self.busy_with = what
        try:
            yield
        finally:
            self.busy_with = before
            self.beat()


NO_ACTIVITY = Activity()
"""The activity of a process that no other task asks about."""


class Sheet(msgspec.Struct, frozen=True):
    """A timesheet as it is read: seconds by state, the state since a moment, and the marks."""

    seconds: Sequence[float]
    state: int
    since_s: float
    begun_s: float
    marks: Sequence[tuple[float, ...]]
    returns: Sequence[tuple[float, ...]]
    waited_for: Mapping[str, float]

    @classmethod
    def read(cls, data: bytes) -> "Sheet | None":
        """Read the memory of a timesheet; None: it is none, or has not begun."""
        if len(data) != SHEET_BYTES:
            return None
        numbers = memoryview(data)[:_NUMBERS_BYTES].cast("d")
        sound = numbers[_FORMAT] == FORMAT and 0 <= numbers[_STATE] <= COMPUTE
        if not (sound and all(-_MOST < number < _MOST for number in numbers)):
            return None
        names: dict[str, float] = {}
        with contextlib.suppress(ValueError):  # it is empty, or just being written
            names = msgspec.json.decode(data[_NUMBERS_BYTES:].strip(b" \0"), type=dict[str, float])
        moments = numbers[_SINCE_S], numbers[_BEGUN_S]
        tables = _MARKS.read(numbers), _RETURNS.read(numbers)
        return cls(numbers[: COMPUTE + 1].tolist(), int(numbers[_STATE]), *moments, *tables, names)

    def within(self, begun_s: float, ended_s: float) -> "Sheet":
        """Return it by the clock of which a process has lived for this time; that of another host differs."""
        if begun_s - 1.0 <= self.begun_s <= ended_s + 1.0:
            return self
        by_s = begun_s - self.begun_s
        marks, returns = ([(at_s + by_s, *of) for at_s, *of in rows] for rows in (self.marks, self.returns))
        return replace(self, since_s=self.since_s + by_s, begun_s=begun_s, marks=marks, returns=returns)


class Attempt(msgspec.Struct, frozen=True):
    """A process of a task, by the launcher's clock.

    Attributes:
        ended_s: None: it lives.
        died: whether it ended before its work was done.
        sheets: of each of its replicas; none, if it had not come so far.
    """

    begun_s: float
    ended_s: float | None
    died: bool
    sheets: Sequence[Sheet]


def ledger_of(
    tasks: Mapping[str, Sequence[Attempt]], now_s: float, *, final: bool, saved_step: int | None = None
) -> dict[str, Any] | None:
    """Return the ledger of a run as `dtrain status --json` shows it; None: no task has replicas that train.

    Args:
        tasks: between two attempts a task is down.
        now_s: by the launcher's clock; of a run that has ended, its end.
        saved_step: of a run that has not succeeded, the version that is left of it.
    """
    sheets = [sheet for attempts in tasks.values() for attempt in attempts for sheet in attempt.sheets]
    if all(not sheet.marks for sheet in sheets):
        return None
    returns = [each for sheet in sheets for each in sheet.returns]
    returns += [] if saved_step is None else [(math.inf, float(saved_step))]
    rows = []
    for name, attempts in sorted(tasks.items()):
        if (replicas := max((len(attempt.sheets) for attempt in attempts), default=0)) == 0:
            continue
        parts, up_s, down_s, start_s = [], attempts[0].begun_s, 0.0, 0.0
        for attempt in attempts:
            # The launcher may hear late that a process has begun.
            down_s += max(0.0, min([attempt.begun_s, *(sheet.begun_s for sheet in attempt.sheets)]) - up_s)
            up_s = now_s if attempt.ended_s is None else attempt.ended_s
            parts += [_seconds_of(attempt, sheet, up_s, returns) for sheet in attempt.sheets]
            start_s += (replicas - len(attempt.sheets)) * (up_s - attempt.begun_s)
        parts.append({Cause.START: start_s, Cause.DOWN: replicas * down_s})
        waits = [sheet.waited_for for attempt in attempts for sheet in attempt.sheets]
        rows.append({"task": name, "replicas": replicas, **_row(parts, waits)})
    whole = _row([row["seconds"] for row in rows], [row["waited_for"] for row in rows])
    share = round(whole["seconds"]["good"] / whole["allocated_s"], 6) if whole["allocated_s"] else None
    return {"share": share, **whole, "final": final, "tasks": rows}


def _row(parts: Sequence[Mapping[Any, float]], waits: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    seconds = {str(cause): round(sum(part.get(cause, 0.0) for part in parts), 4) for cause in CAUSES}
    names = {name: round(sum(each.get(name, 0.0) for each in waits), 4) for name in chain(*waits)}
    longest = dict(sorted(names.items(), key=lambda each: -each[1]))
    return {"allocated_s": round(sum(seconds.values()), 4), "seconds": seconds, "waited_for": longest}


def _seconds_of(
    attempt: Attempt, sheet: Sheet, ended_s: float, returns: Sequence[tuple[float, ...]]
) -> dict[Cause, float]:
    """Return the seconds of a replica of an attempt, which add up to its life up to a moment."""
    found = list(sheet.seconds)
    found[sheet.state] += max(0.0, ended_s - sheet.since_s)
    found[START] += max(0.0, sheet.begun_s - attempt.begun_s)
    in_flight_s = found.pop(COMPUTE)
    undecided = OTHER  # what was computed when the run was stopped, or behind the last step of a loop
    if attempt.ended_s is None or (attempt.died and sheet.state == WAIT):
        undecided = GOOD
    elif attempt.died:
        undecided = _RECOMPUTED
    found[undecided] += in_flight_s
    lost_s = rolled_back_s(sheet.marks, returns)
    found[GOOD] -= lost_s
    found[_ROLLED_BACK] += lost_s
    return dict(zip(CAUSES, found, strict=True))


def rolled_back_s(marks: Sequence[tuple[float, ...]], returns: Iterable[tuple[float, ...]]) -> float:
    """Return how many of the seconds that had counted at some marks are lost by returns of any replica.

    Between two marks they are taken to be spread evenly over the versions.
    """
    ordered = sorted(returns)
    moments = [at_s for at_s, _ in ordered]
    lowest = list(accumulate([math.inf, *(version for _, version in reversed(ordered))], min))[::-1]
    lost_s = 0.0
    for (_, before, counted_s), (at_s, version, more_s) in pairwise(marks):
        left = lowest[bisect_left(moments, at_s)]  # of the returns since then
        if left < version:
            lost_s += (more_s - counted_s) * (version - max(left, before)) / max(1.0, version - before)
    return lost_s


_NAMES = {Cause.ROLLED_BACK: "rolled back", Cause.RECOMPUTED: "recomputed for the dead"}


def ledger_text(ledger: Mapping[str, Any]) -> str:
    """Return ``goodput 93.1 %: wait 4.0 % (3.1 % for worker:2), start 2.9 %``, which add up to 100 %.

    A task is named that most of the waiting was for.
    """
    seconds, whole_s = ledger["seconds"], ledger["allocated_s"] or 1.0
    exact = {cause: 1000 * seconds[cause] / whole_s for cause in CAUSES}
    tenths = {cause: math.floor(value) for cause, value in exact.items()}
    rest = round(sum(exact.values())) - sum(tenths.values())
    for cause in sorted(CAUSES, key=lambda each: tenths[each] - exact[each])[:rest]:
        tenths[cause] += 1
    whom, most_s = next(iter(ledger["waited_for"].items()), ("", 0.0))
    named = f" ({100 * most_s / whole_s:.1f} % for {whom})" if 2 * most_s > seconds[Cause.WAIT] else ""
    words = [
        f"{_NAMES.get(cause, cause)} {tenths[cause] / 10:.1f} %" + (named if cause is Cause.WAIT else "")
        for cause in sorted(CAUSES, key=lambda each: -tenths[each])
        if tenths[cause] and cause is not Cause.GOOD
    ]
    return f"goodput {tenths[Cause.GOOD] / 10:.1f} %" + (f": {', '.join(words)}" if words else "")
