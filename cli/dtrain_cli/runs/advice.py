"""Advice on a run that trains: what holds it up, and what one does about it, from the statuses of its tasks.

Each piece of advice has a section of its name in docs/guide/advice.md. The most helpful one comes first.
"""

import statistics
from bisect import bisect_left
from collections.abc import Container, Iterator, Sequence

import msgspec

from dtrain.cluster import TaskId
from dtrain.messages.membership import TaskStatus
from dtrain.runs.states import TaskState

SLOW = 2.0
STILL_SLOW = 1.6
"""A replica that takes so many times the time of the others is called slow, or still slow."""
INPUT_SHARE = 0.3
"""The share of its time spent on waiting for batches from which a replica's input is worth improving."""
WAITING_SHARE = 0.5
HELD_UP_SHARE = 0.2
"""The shares of their time that replicas wait: in all, and where one of them is slow."""
STALE = 2.0
"""Gradients are called old at so many times the staleness that the number of replicas explains."""
LATE_SHARE = 0.1
RESTARTS = 3
LOOKS_MIN = 3
PAGE = "docs/guide/advice.md"


class Row(msgspec.Struct, frozen=True):
    """One task of a run at a moment."""

    task: TaskId
    state: TaskState
    restarts: int
    status: TaskStatus | None


def advice(rows: Sequence[Row], slow: dict[TaskId, float], step: int | None) -> Iterator[str]:
    """Yield sentences of advice, each with its section of PAGE; `slow` as `slow_replicas` returns it."""
    for row in rows:
        if row.restarts >= RESTARTS:
            yield _text(
                "restarts", f"{row.task} was started again {row.restarts} times", "its log says why it ends"
            )
            break
    trains = {row.task: row.status for row in rows if _trains(row) and row.status is not None}
    replicas = trains.values()
    if not replicas or not step:
        return
    stale = [each.staleness_mean for each in replicas if each.staleness_mean is not None]
    inputs = {task: each.input_share or 0.0 for task, each in trains.items()}
    reader = max(inputs, key=lambda task: inputs[task])
    if inputs[reader] >= INPUT_SHARE:
        found = f"{reader} spends {inputs[reader]:.0%} of its time on waiting for its input"
        yield _text("input", found, "read ahead, cache, or store the data in a faster form")
    shares = [each.waiting_share or 0.0 for task, each in trains.items() if task not in slow]
    waits = statistics.median(shares or [0.0])
    late = sum(each.stale_gradients or 0 for each in replicas)
    if slow and waits >= HELD_UP_SHARE and not (stale or late):  # late in sync: there are backups
        task = max(slow, key=lambda each: slow[each])
        found = f"{task} is {slow[task]:.1f} x slower, and the others wait for it {waits:.0%} of the time"
        yield _text("slow", found, "--backup-workers 1 goes on without it")
    if stale and len(replicas) > 1 and statistics.fmean(stale) >= STALE * (len(replicas) - 1):
        found = f"gradients are {statistics.fmean(stale):.1f} steps old, with {len(replicas)} replicas"
        yield _text("stale", found, "--staleness-bound limits it, a lower learning rate bears it")
    if stale and late > LATE_SHARE * (step + late):
        yield _text("late", f"{late} gradients were too old and dropped", "raise training.max_staleness")
    if waits >= WAITING_SHARE and not slow:
        found = f"replicas wait for servers or each other {waits:.0%} of the time"
        yield _text("waiting", found, "a larger batch computes more between two waits")


class LastingAdvice:
    """The advice of a whole run: what has held for half of it."""

    def __init__(self) -> None:
        self._looks = 0
        self._found: dict[str, tuple[int, str]] = {}

    def look(self, rows: Sequence[Row], step: int | None) -> None:
        """Note what is to be advised now; to be called at even intervals."""
        if not step:
            return
        self._looks += 1
        for text in advice(rows, slow_replicas(rows), step):
            section = text.rpartition("#")[2]
            self._found[section] = self._found.get(section, (0, ""))[0] + 1, text

    @property
    def texts(self) -> list[str]:
        return [text for looks, text in self._found.values() if looks >= max(LOOKS_MIN, self._looks / 2)]


def _text(section: str, found: str, remedy: str) -> str:
    return f"advice: {found}: {remedy} ({PAGE}#{section})"


def _trains(row: Row) -> bool:
    return row.task.trains and row.state == TaskState.RUNNING


def slow_replicas(rows: Sequence[Row], so_far: Container[TaskId] = ()) -> dict[TaskId, float]:
    """Return the factor by which each slow replica is slower than the others, without its waits for others.

    A replica in `so_far` stays slow until it is clearly not: a remark must not come and go.
    """
    took_s = {
        row.task: (1 - (row.status.waiting_share or 0.0)) / row.status.examples_per_s
        for row in rows
        if _trains(row) and row.status is not None and row.status.examples_per_s
    }
    factors = {}
    ordered = sorted(took_s.values())
    for task, own_s in took_s.items():
        others_s = _median_of_others(ordered, own_s)
        if others_s > 0 and own_s >= (STILL_SLOW if task in so_far else SLOW) * others_s:
            factors[task] = own_s / others_s
    return factors


def _median_of_others(ordered: Sequence[float], own: float) -> float:
    """Return the median of ascending numbers but `own`, which is one of them, or `own` if it is alone."""
    if (count := len(ordered) - 1) == 0:
        return own
    place = bisect_left(ordered, own)
    low, high = (ordered[each + (each >= place)] for each in ((count - 1) // 2, count // 2))
    return (low + high) / 2


def total_examples_per_s(rows: Sequence[Row]) -> float | None:
    """Return the sum over the tasks that train; None before any has measured its own."""
    found = [row.status.examples_per_s for row in rows if _trains(row) and row.status is not None]
    known = [each for each in found if each is not None]
    return sum(known) if known else None
