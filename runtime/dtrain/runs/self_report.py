"""The parts of a task's report on itself: usage, its certificate, and lines by hand.

This module decides on the lines and their times; `reporting` prints them.
"""

import contextlib
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from dtrain.cluster import Role, TaskId
from dtrain.cluster.hosts import is_loopback
from dtrain.cluster.spec import tasks_text
from dtrain.process.assignment import TaskAssignment

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
