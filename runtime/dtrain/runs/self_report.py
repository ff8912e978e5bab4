"""The parts of a task's report on itself: activity, pace, usage, its certificate, and lines by hand.

This module decides on the lines and their times; `reporting` prints them.

Others wait for it at every step. It works if it has read, computed or evaluated a batch not long ago, or if
a callback is running, which may take any time.
"""

import contextlib
import math
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import msgspec

from dtrain.cluster import Role, TaskId
from dtrain.cluster.hosts import is_loopback
from dtrain.cluster.spec import tasks_text
from dtrain.process.assignment import TaskAssignment
from dtrain.runs.ledger import COMPUTE, INPUT, OTHER, SHEET_BYTES, Cause, Timesheet

FIRST_S = 1.0
"""Age of a wait when it is first announced."""
AGAIN_S = 5.0
"""The time of the second announcement; after that each pause is twice as long, up to the longest."""
LONGEST_S = 60.0
LONGEST_OF_OTHERS_S = 600.0
"""The latter for tasks that are there and busy: a healthy run may wait for a slow task for hours."""
STALE_S = 5.0
"""The time without repetition after which a reason is dropped: its thread no longer tries."""
NAMED_MAX = 3
_ON_LOOPBACK = "no other user of this machine has it, unless all give one by --secret-file or DTRAIN_SECRET"


class Unreached(NamedTuple):
    """A server to which no connection can be opened."""

    address: str
    reason: str
    since_s: float
    seen_s: float


class _Announced(msgspec.Struct):
    texts: set[str]
    due_s: float
    pause_s: float = AGAIN_S


class Announcements:
    """The choice of lines about a task's waits. One thread calls it; see `due`."""

    def __init__(self) -> None:
        self._unreached: dict[str, _Announced] = {}
        self._others: _Announced | None = None

    def due(
        self, now_s: float, unreached: Mapping[str, Unreached], waiting: tuple[str, float] | None
    ) -> Iterator[str]:
        """Yield the lines that are due about servers not reached, and tasks waited for since a time."""
        for server in [server for server in self._unreached if server not in unreached]:
            del self._unreached[server]
            yield f"{server} is there"
        trouble = {server: found for server, found in unreached.items() if now_s - found.seen_s < STALE_S}
        for server, found in trouble.items():
            if now_s - found.since_s >= FIRST_S:
                yield from self._of_server(server, found, now_s)
        if not trouble and waiting is not None and now_s - waiting[1] >= FIRST_S:
            yield from self._of_others(*waiting, now_s)

    def _of_server(self, server: str, found: Unreached, now_s: float) -> Iterator[str]:
        """Yield a line as soon as there is another reason, and from time to time: reasons may take turns."""
        told = self._unreached.get(server)
        text = f"{server} at {found.address}: {found.reason}"
        if told is None or text not in told.texts:
            self._unreached[server] = _Announced({*(told.texts if told else ()), text}, now_s + AGAIN_S)
            yield f"waits for {text}"
        elif _due(told, now_s, LONGEST_S):
            yield f"waits for {text} ({now_s - found.since_s:.0f} s so far)"

    def _of_others(self, text: str, since_s: float, now_s: float) -> Iterator[str]:
        """Yield a line from time to time, in one rhythm over all waits: training may wait at every step."""
        told = self._others
        if told is None:
            self._others = _Announced({text}, now_s + AGAIN_S)
            yield f"waits for {text}"
        elif _due(told, now_s, LONGEST_OF_OTHERS_S):
            yield f"waits for {text} ({now_s - since_s:.0f} s so far)"


def _due(told: _Announced, now_s: float, longest_s: float) -> bool:
    if now_s < told.due_s:
        return False
    told.pause_s = min(2 * told.pause_s, longest_s)
    told.due_s = now_s + told.pause_s
    return True


def introduction(assignment: TaskAssignment, pid: int) -> str:
    cluster = assignment.cluster
    whole = tasks_text({role.value: cluster.count(role) for role in Role})
    who = f"process {pid} of run {assignment.run_id}, which is {whole}"
    if assignment.task.role is Role.PS:
        return f"{who}; listens at {assignment.address}"
    if not cluster.servers:
        serves = f"serves at {assignment.address}" if assignment.task in cluster else "listens nowhere"
        return f"{who}; {serves}"
    named = [
        f"{TaskId(Role.PS, index)} at {address}" for index, address in enumerate(cluster.servers[:NAMED_MAX])
    ]
    more = len(cluster.servers) - len(named)
    servers = ", ".join(named) + (f" and {more} more" if more else "")
    return f"{who}; connects to {servers} and listens nowhere"


def exposure(assignment: TaskAssignment, *, encrypted: bool) -> str | None:
    """Return a line on what protects a task's connections; None for a task that is alone on loopback."""
    cluster = assignment.cluster
    addresses = [cluster.address(task) for task in cluster.tasks()]
    outside = [address for address in addresses if address is not None and not is_loopback(address)]
    if not outside and len(addresses) < 2:
        return None
    if assignment.secret is not None:
        rest = "without TLS a listener on the network can read the model" if outside else _ON_LOOPBACK
        return (
            "connections have TLS, and tasks prove the secret"
            if encrypted
            else f"tasks prove the secret; {rest}"
        )
    reaching = f"program that reaches {outside[0]}" if outside else "user of this machine"
    whom, may = (
        ("holder of a certificate of the same authority", "is let in")
        if encrypted
        else (reaching, "may read and change the model")
    )
    return f"warning: without a secret every {whom} {may}"


P = ParamSpec("P")
R = TypeVar("R")


class Activity:
    """The account of one task, written by the thread that trains.

    Attributes:
        input_s: for how long it has waited for the batches that were read so far.
        reading_since_s: since when it waits for the one that is read now; None: it does not.
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
"""That of a process whose activity no other task asks for."""


WINDOW_S = 1.0


class WaitedFor:
    """The seconds for which a task has waited, by whom. A server waits for others itself: who they were at
    samples, taken while this task waited, says how its waits for the server are shared out.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._samples: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=1000))

    def add(self, whom: str, for_s: float) -> None:
        """Add a wait for whom its text names: ``worker:1, worker:2, gradient of step 7``."""
        names = [each for each in whom.split(", ") if each.partition(":")[2].isdigit()]
        for name in names:
            self._seconds[name] += for_s / len(names)

    def sample(self, server: str, others: Sequence[str]) -> None:
        names = [each for each in others if ":" in each]  # else "3 more"
        self._samples[server].extend(names or [server])

    def by_name(self) -> dict[str, float]:
        found: defaultdict[str, float] = defaultdict(float)
        for whom, for_s in list(self._seconds.items()):
            names = list(self._samples.get(whom) or [whom])
            for name in names:
                found[name] += for_s / len(names)
        return found


class OwnPace:
    """The account of one task, written by the threads that train.

    Attributes:
        computing_s: the mean CPU time of a computation in the last window; None: there was no window yet.
    """

    def __init__(self) -> None:
        self.computing_s: float | None = None
        self.step_s: float | None = None
        self._begin(None)

    def _begin(self, now_s: float | None) -> None:
        self._begun_s = now_s
        self._steps = self._computations = 0
        self._computed_s = self._rested_s = 0.0

    def computed(self, used_s: float, rested_s: float) -> None:
        self._computations += 1
        self._computed_s += used_s
        self._rested_s += rested_s

    def stepped(self, now_s: float) -> None:
        """Add a step that ends now. A window lasts from the end of a step to that of another."""
        self._steps += 1
        if self._begun_s is None:
            self._begin(now_s)
        elif now_s - self._begun_s >= WINDOW_S and self._computations:
            self.computing_s = self._computed_s / self._computations
            rest_s = self._rested_s / self._computations
            self.step_s = (now_s - self._begun_s) / self._steps - rest_s
            self._begin(now_s)


EVERY_S = 5.0
"""How often it is measured: the kernel walks all pages for it, which takes a millisecond or two."""
_ROLLUP = Path("/proc/self/smaps_rollup")


class OwnUsage:
    """A meter of this process."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._used_s = _processor_s()

    def is_due(self, now_s: float) -> bool:
        return now_s - self._since_s >= EVERY_S

    def measure(self, now_s: float) -> tuple[float, int | None]:
        """Return per cent of one core since the last measurement, and bytes of own memory (PSS)."""
        used_s = _processor_s()
        percent = round(100 * (used_s - self._used_s) / max(now_s - self._since_s, 1e-3), 1)
        self._since_s, self._used_s = now_s, used_s
        return percent, _memory_bytes()


def _processor_s() -> float:
    times = os.times()
    return times.user + times.system


def _memory_bytes() -> int | None:
    """Source: proc_pid_smaps(5), whose sizes are in units of 1024 bytes."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in _ROLLUP.read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return None


WARNED_FROM = 0.8
DAY_S = 86400.0


class CertificateLife:
    """Decides when to warn. One thread calls it."""

    def __init__(self) -> None:
        self._warned_s = -math.inf

    def due(self, begins_s: float, ends_s: float, now_s: float) -> str | None:
        if now_s < begins_s + WARNED_FROM * (ends_s - begins_s) or now_s - self._warned_s < DAY_S:
            return None
        self._warned_s = now_s
        remedy = "replace its files, which new connections read"
        if now_s >= ends_s:
            return f"this task's certificate has expired, and no new connection can be made: {remedy}"
        left = f"{(ends_s - now_s) / DAY_S:.1f} days"
        return f"this task's certificate ends in {left}, on {time_text(ends_s)}: {remedy}"


def time_text(time_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))
