"""kill -9 of the launcher, of the fork server, of a guardian: how long until no process of the run is left.

The default cluster; every task but the servers of programs has a child in its group, one in a session of its
own, and an orphan.
"""

import contextlib
import os
import select
import signal
import time

import pytest

PROMISED_S = 2.0


def gone_s(launch, victim: int) -> tuple[float, int]:
    """Seconds from the SIGKILL of `victim` until the launcher and all that it has started has ended; how many
    that was.
    """
    poll, left = select.poll(), set()
    for pid in (launch.process.pid, *launch.pids()):
        with contextlib.suppress(ProcessLookupError):  # a shell that has just started its last child
            left.add(os.pidfd_open(pid))
    for descriptor in left:
        poll.register(descriptor, select.POLLIN)
    count, killed_s = len(left), time.monotonic()
    os.kill(victim, signal.SIGKILL)
    while left:
        for descriptor, _ in poll.poll(1000 * 10 * PROMISED_S):
            poll.unregister(descriptor)
            os.close(descriptor)
            left.remove(descriptor)
    return time.monotonic() - killed_s, count


@pytest.mark.parametrize("runs", [20], indirect=True)
@pytest.mark.parametrize("victim", ["launcher", "launcher of commands", "fork server", "guardian"])
def test_nothing_is_left(launcher, figure, real, runs, victim):
    if not real:
        pytest.skip("tests/cli does as much in test_launch_orphans.py: --real")
    seconds = []
    for _ in range(runs):
        launch = launcher.start_family(foreign=victim in ("launcher of commands", "guardian"))
        pid = launch.process.pid
        if victim == "fork server":
            pid = launch.fork_server()
        elif victim == "guardian":
            pid = launch.guardian("worker:0")
        took_s, count = gone_s(launch, pid)
        seconds.append(took_s)
        assert not launch.pids(), "and nothing was started meanwhile"
    note = f"of {count} processes; the longest of {len(seconds)}: {max(seconds):.2g} s"
    figure(f"nothing left: {victim}", seconds, "s", f"<= {PROMISED_S:g}", note=note)
    assert max(seconds) < 5 * PROMISED_S
