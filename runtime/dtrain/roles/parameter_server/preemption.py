"""Whether a server that is woken interrupts who runs on its core. `Preemption` decides, purely;
`ThreadPolicy` reads and does it.

One that does not (Linux' SCHED_BATCH) lets the replica that has woken it say all that it has to say, and is
woken less often: the smallest steps are a tenth faster. But beside programs that compute without a pause it
would wait for a whole slice of their time, again and again, and steps take twice as long: then it interrupts,
as processes do, and tries now and then whether it still has to.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WAIT_LIMIT_S = 0.2e-3
"""Mean wait from waking to running: 0.03 to 0.06 ms beside idle replicas, 0.3 to 0.9 beside busy ones."""
ENOUGH_SLICES = 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 8.0, 64.0


@dataclass
class Preemption:
    """Looks at how long a server waits for a core.

    Attributes:
        interrupts: whether it does at present.
        pause_s: how long it will, the next time: twice as long each time, until all has been well for a
            minute.
        since_s: when that has changed last.
    """

    interrupts: bool = False
    pause_s: float = FIRST_PAUSE_S
    since_s: float = 0.0
    _waited_s: float = 0.0
    _slices: int | None = None

    def look(self, waited_s: float, slices: int, now: float) -> bool:
        """Return whether the server interrupts other threads from now on; the first look only takes readings.

        Args:
            waited_s: how long it has waited for a core so far, ready to run.
            slices: how often it has been given one.
            now: seconds.
        """
        waits_s, got = waited_s - self._waited_s, slices - (slices if self._slices is None else self._slices)
        self._waited_s, self._slices = waited_s, slices
        if self.interrupts:
            if now - self.since_s >= self.pause_s:
                self._change(now)
                self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)
        elif got >= ENOUGH_SLICES and waits_s > WAIT_LIMIT_S * got:
            self._change(now)
        elif now - self.since_s >= LONGEST_PAUSE_S:
            self.pause_s = FIRST_PAUSE_S
        return self.interrupts

    def _change(self, now: float) -> None:
        self.interrupts, self.since_s = not self.interrupts, now


class ThreadPolicy:
    """The kernel's, unless this process was given one or the kernel keeps no account of waits."""

    def __init__(self, now: float) -> None:
        """Let this process's threads, and those that they start, interrupt no others from now on."""
        self._preemption: Preemption | None = None
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER and any(True for _ in _accounts()):
                _set(os.SCHED_BATCH)
                self._preemption = Preemption(since_s=now)

    def look(self, now: float) -> None:
        """Choose the policy anew; to be called about twice a second."""
        if self._preemption is None:
            return
        accounts = list(_accounts())
        before = self._preemption.interrupts
        interrupts = self._preemption.look(sum(a for a, _ in accounts), sum(b for _, b in accounts), now)
        if interrupts != before:
            with contextlib.suppress(OSError):
                _set(os.SCHED_OTHER if interrupts else os.SCHED_BATCH)


def _accounts() -> Iterator[tuple[float, int]]:
    """Return each thread's seconds of waiting for a core, and its turns. Source: proc_pid_schedstat(5)."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError, ValueError):  # it has ended; this kernel keeps no such account
            _, waited_ns, slices = (thread / "schedstat").read_text().split()
            yield int(waited_ns) / 1e9, int(slices)


def _set(policy: int) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))
