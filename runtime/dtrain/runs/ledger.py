"""The goodput ledger: which replica-seconds of a run are in its final weights, and where the others went.

1. Every second of a replica, from the start of its first process to its end, has one cause.
2. What is computed is in flight until the part has a verdict. A part that counts makes its seconds good.
   Those of a process that died before it had sent its part are computed again by another; those of one that
   died while it waited for the verdict count, as its part does (docs/design/protocol.md#exactly-once).
3. A return to version c at a moment takes back all that was counted before this moment above c, also what
   processes had given that are dead by now: these seconds are rolled back.

A `Timesheet` is what one replica writes, in memory that outlives its process: a kill loses nothing of it. It
has numbers of 8 bytes, and behind them a text: the seconds of waiting by whom, as JSON.
"""

import contextlib
import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from dtrain.messages import Verdict


class Cause(StrEnum):
    """What has become of a replica-second."""

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
CHECKPOINT, OTHER = CAUSES.index(Cause.CHECKPOINT), CAUSES.index(Cause.OTHER)
COMPUTE = len(CAUSES)
"""The state of a replica that computes a part; its seconds are in flight."""
_STATE, _SINCE_S, _BEGUN_S, _MARKS, _FIRST_MARK = range(COMPUTE + 1, COMPUTE + 6)
MARKS_MAX = 512
"""So many moments at which something counted are kept; of more, evenly spread ones."""
_NUMBERS_BYTES = 8 * (_FIRST_MARK + 3 * MARKS_MAX)
_TEXT_BYTES = 4096
SHEET_BYTES = _NUMBERS_BYTES + _TEXT_BYTES
_NAMES_MAX = 32
_VERDICTS = {
    Verdict.ACCEPTED: Cause.GOOD,
    Verdict.REFUSED: Cause.STALE,
    Verdict.FINISHED: Cause.LATE,
    Verdict.VOID: Cause.ROLLED_BACK,
}


class Timesheet:
    """The account of one replica of one process, which the thread that trains writes."""

    def __init__(
        self,
        memory: Any,
        clock: Callable[[], float],
        stale: Cause = Cause.STALE,
        begun_s: float | None = None,
    ) -> None:
        """Begin an account in writable memory of `SHEET_BYTES` zeros.

        Args:
            stale: what a part is that was not applied because it came too late.
            begun_s: when the process began; None: now.
        """
        self._numbers = memoryview(memory)[:_NUMBERS_BYTES].cast("d")
        self._text = memoryview(memory)[_NUMBERS_BYTES:SHEET_BYTES]
        self._clock = clock
        self._verdicts = {**_VERDICTS, Verdict.STALE: stale}
        self._since_s = self._asked_s = clock() if begun_s is None else begun_s
        self._state = self._before = START
        self._version = self._parts = 0
        self._stride = self._merged = 1
        self._numbers[_BEGUN_S] = self._numbers[_SINCE_S] = self._since_s
        self._numbers[_STATE] = START

    @property
    def is_waiting(self) -> bool:
        return self._state == WAIT

    def to(self, state: int) -> int:
        """Begin to count seconds for a state; return the state before."""
        before = self._state
        if state == before:
            return before
        numbers, now_s = self._numbers, self._clock()
        numbers[before] += now_s - self._since_s
        numbers[_STATE], numbers[_SINCE_S] = state, now_s
        self._state, self._since_s = state, now_s
        return before

    def waits(self, *, on: bool) -> None:
        """Note that the replica waits for others, or does so no more. Before training that is its start."""
        if on and self._state not in (WAIT, START):
            self._before = self.to(WAIT)
        elif not on and self._state == WAIT:
            self.to(self._before)

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
        self.to(OTHER)
        self._parts += 1
        if verdict is Verdict.PENDING:
            return
        cause = self._verdicts[verdict]
        if cause is Cause.ROLLED_BACK or version < self._version:
            self._return_to(version - (cause is Cause.GOOD))
        numbers, parts = self._numbers, self._parts
        seconds, self._parts, numbers[COMPUTE] = numbers[COMPUTE], 0, 0.0
        if cause is Cause.GOOD and 0 < accepted < parts:  # of several parts to one version
            good_s = seconds * accepted / parts
            numbers[CAUSES.index(Cause.LATE)] += seconds - good_s
            seconds = good_s
        numbers[CAUSES.index(cause)] += seconds
        if cause is Cause.GOOD:
            self._version = version
            self._mark(version)

    def waited_for(self, seconds: Mapping[str, float]) -> None:
        """Write down by whom the waits are, those that took longest."""
        longest = sorted(seconds.items(), key=lambda each: -each[1])[:_NAMES_MAX]
        text = json.dumps({name: round(each_s, 6) for name, each_s in longest}).encode()
        if len(text) <= _TEXT_BYTES:
            self._text[:] = text.ljust(_TEXT_BYTES)

    def _return_to(self, version: int) -> None:
        self._version = version
        self._mark(~version, self._asked_s)
        self._merged = self._stride

    def _mark(self, version: int, at_s: float | None = None) -> None:
        """Note how much has counted up to a version; the last mark is always exact."""
        numbers = self._numbers
        count = int(numbers[_MARKS])
        if version < 0 or self._merged >= self._stride:
            if count == MARKS_MAX:
                count = self._thin_out()
            self._merged = 0
        else:
            count -= 1
        self._merged += 1
        place = _FIRST_MARK + 3 * count
        numbers[place] = self._since_s if at_s is None else at_s
        numbers[place + 1], numbers[place + 2] = version, numbers[GOOD]
        numbers[_MARKS] = count + 1

    def _thin_out(self) -> int:
        """Keep every other mark, and every return while there is room; mark half as often from now on."""
        marks = _marks_in(self._numbers)
        kept = [mark for number, mark in enumerate(marks) if number % 2 or mark[1] < 0]
        kept = kept[1::2] if len(kept) > MARKS_MAX * 3 // 4 else kept
        self._stride *= 2
        for number, mark in enumerate(kept):
            for offset, value in enumerate(mark):
                self._numbers[_FIRST_MARK + 3 * number + offset] = value
        return len(kept)


Mark = tuple[float, float, float]
"""A moment, a version, and the seconds that had counted by then; ~version: a return to it."""


def _marks_in(numbers: Any) -> list[Mark]:
    count = min(MARKS_MAX, int(numbers[_MARKS]))
    places = range(_FIRST_MARK, _FIRST_MARK + 3 * count, 3)
    return [(numbers[place], numbers[place + 1], numbers[place + 2]) for place in places]


class Sheet(msgspec.Struct, frozen=True):
    """A timesheet as it is read: seconds by state, the state since a moment, and the marks."""

    seconds: tuple[float, ...]
    state: int
    since_s: float
    begun_s: float
    marks: Sequence[Mark]
    waited_for: Mapping[str, float]

    @classmethod
    def read(cls, data: bytes) -> "Sheet | None":
        """Read the memory of a timesheet; None: it is none, or has not begun."""
        if len(data) != SHEET_BYTES:
            return None
        numbers = memoryview(data)[:_NUMBERS_BYTES].cast("d")
        if not all(map(math.isfinite, numbers)) or not numbers[_BEGUN_S] or numbers[_STATE] > COMPUTE:
            return None
        names: dict[str, float] = {}
        with contextlib.suppress(msgspec.DecodeError):  # it is empty, or just being written
            names = msgspec.json.decode(data[_NUMBERS_BYTES:].strip(b" \0"), type=dict[str, float])
        return cls(
            tuple(numbers[: COMPUTE + 1]),
            int(numbers[_STATE]),
            numbers[_SINCE_S],
            numbers[_BEGUN_S],
            _marks_in(numbers),
            names,
        )

    def within(self, begun_s: float, ended_s: float) -> "Sheet":
        """Return it by the clock of which a process has lived for this time; that of another host differs."""
        if begun_s - 1.0 <= self.begun_s <= ended_s + 1.0:
            return self
        by_s = begun_s - self.begun_s
        marks = [(at_s + by_s, version, good_s) for at_s, version, good_s in self.marks]
        return msgspec.structs.replace(self, since_s=self.since_s + by_s, begun_s=begun_s, marks=marks)


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


class TaskTimes(msgspec.Struct, frozen=True):
    """The processes of a task; `left`: it has come to its end with the last of them, and is not down."""

    attempts: Sequence[Attempt]
    left: bool


def ledger_of(
    tasks: Mapping[str, TaskTimes], now_s: float, *, final: bool, saved_step: int | None = None
) -> dict[str, Any] | None:
    """Return the ledger of a run as `dtrain status --json` shows it; None: no task has replicas that train.

    Args:
        now_s: by the launcher's clock; of a run that has ended, its end.
        saved_step: of a run that has not succeeded, the version that is left of it.
    """
    sheets = [sheet for task in tasks.values() for attempt in task.attempts for sheet in attempt.sheets]
    if all(not sheet.marks for sheet in sheets):
        return None
    marks = [mark for sheet in sheets for mark in sheet.marks]
    returns = [(at_s, -version - 1.0) for at_s, version, _ in marks if version < 0]
    returns += [] if saved_step is None else [(math.inf, float(saved_step))]
    rows = []
    for name, task in sorted(tasks.items()):
        if (replicas := max((len(attempt.sheets) for attempt in task.attempts), default=0)) == 0:
            continue
        seconds: defaultdict[str, float] = defaultdict(float)
        waited: defaultdict[str, float] = defaultdict(float)
        up_s = task.attempts[0].begun_s
        for attempt in task.attempts:
            seconds[Cause.DOWN] += replicas * max(0.0, attempt.begun_s - up_s)
            up_s = now_s if attempt.ended_s is None else attempt.ended_s
            for sheet in attempt.sheets:
                _add(seconds, _seconds_of(attempt, sheet, up_s, returns))
                _add(waited, sheet.waited_for)
            seconds[Cause.START] += (replicas - len(attempt.sheets)) * (up_s - attempt.begun_s)
        if not task.left:
            seconds[Cause.DOWN] += replicas * max(0.0, now_s - up_s)
        rows.append({"task": name, "replicas": replicas, **_row(seconds, waited)})
    parts = (_add(defaultdict(float), *(row[name] for row in rows)) for name in ("seconds", "waited_for"))
    whole = _row(*parts)
    share = whole["seconds"]["good"] / whole["allocated_s"] if whole["allocated_s"] else None
    return {"share": share and round(share, 6), **whole, "final": final, "tasks": rows}


def _add(whole: defaultdict[str, float], *parts: Mapping[Any, float]) -> Mapping[str, float]:
    for part in parts:
        for name, each_s in part.items():
            whole[name] += each_s
    return whole


def _row(seconds: Mapping[str, float], waited_for: Mapping[str, float]) -> dict[str, Any]:
    rounded = {str(cause): round(seconds.get(cause, 0.0), 4) for cause in CAUSES}
    longest = sorted(waited_for.items(), key=lambda each: -each[1])
    return {
        "allocated_s": round(sum(rounded.values()), 4),
        "seconds": rounded,
        "waited_for": {name: round(each_s, 4) for name, each_s in longest},
    }


def _seconds_of(
    attempt: Attempt, sheet: Sheet, ended_s: float, returns: Sequence[tuple[float, float]]
) -> dict[Cause, float]:
    """Return the seconds of a replica of an attempt, which add up to its life up to a moment."""
    found = list(sheet.seconds)
    found[sheet.state] += max(0.0, ended_s - sheet.since_s)
    found[START] += max(0.0, sheet.begun_s - attempt.begun_s)
    in_flight_s = found.pop(COMPUTE)
    seconds = dict(zip(CAUSES, found, strict=True))
    undecided = Cause.OTHER  # what was computed when the run was stopped, or behind the last step of a loop
    if attempt.ended_s is None or (attempt.died and sheet.state == WAIT):
        undecided = Cause.GOOD
    elif attempt.died:
        undecided = Cause.RECOMPUTED
    seconds[undecided] += in_flight_s
    lost_s = rolled_back_s(sheet.marks, returns)
    seconds[Cause.GOOD] -= lost_s
    seconds[Cause.ROLLED_BACK] += lost_s
    return seconds


def rolled_back_s(marks: Sequence[Mark], returns: Iterable[tuple[float, float]]) -> float:
    """Return how many of the seconds that had counted are lost by returns: (moment, version).

    Between two marks the seconds are taken to be spread evenly over the versions.
    """
    ordered = sorted(returns)
    moments = [at_s for at_s, _ in ordered]
    lowest = [math.inf] * (len(ordered) + 1)
    for place in range(len(ordered) - 1, -1, -1):
        lowest[place] = min(lowest[place + 1], ordered[place][1])
    lost_s = before = counted_s = 0.0
    for at_s, version, good_s in marks:
        if version < 0:
            before, counted_s = -version - 1.0, good_s
            continue
        left = lowest[bisect_right(moments, at_s)]
        if left < version:
            lost_s += (good_s - counted_s) * (version - max(left, before)) / max(1.0, version - before)
        before, counted_s = version, good_s
    return lost_s


_NAMES = {Cause.ROLLED_BACK: "rolled back", Cause.RECOMPUTED: "recomputed for the dead"}


def ledger_text(ledger: Mapping[str, Any]) -> str:
    """Return ``goodput 93.1 %: wait 4.0 % (for worker:2), start 2.9 %``, in tenths that add up to 100 %."""
    seconds, whole_s = ledger["seconds"], ledger["allocated_s"] or 1.0
    exact = {cause: 1000 * seconds[cause] / whole_s for cause in CAUSES}
    tenths = {cause: math.floor(value) for cause, value in exact.items()}
    rest = round(sum(exact.values())) - sum(tenths.values())
    for cause in sorted(CAUSES, key=lambda each: tenths[each] - exact[each])[:rest]:
        tenths[cause] += 1
    whom = next(iter(ledger["waited_for"]), None)
    words = [
        f"{_NAMES.get(cause, cause)} {tenths[cause] / 10:.1f} %"
        + (f" (for {whom})" if cause is Cause.WAIT and whom else "")
        for cause in sorted(CAUSES, key=lambda each: -tenths[each])
        if tenths[cause] and cause is not Cause.GOOD
    ]
    return f"goodput {tenths[Cause.GOOD] / 10:.1f} %" + (f": {', '.join(words)}" if words else "")
