"""When servers interrupt, and that the kernel hears of it."""

import os
import subprocess
import sys
import textwrap

import pytest

from dtrain.roles.parameter_server.serving import FIRST_PAUSE_S, LONGEST_PAUSE_S, WAIT_LIMIT_S, Preemption

TICK_S = 0.5


class Course:
    """A server that is given a core so many times in each tick."""

    def __init__(self):
        self.preemption = Preemption()
        self.now = self.waited_s = self.slices = 0
        assert not self.tick(1.0), "the first look only takes the account"

    def tick(self, wait_s, slices=1000):
        self.now += TICK_S
        self.waited_s += wait_s * slices
        self.slices += slices
        return self.preemption.update(self.waited_s, self.slices, self.now)

    def until(self, interrupts, wait_s):
        """Seconds until it is so."""
        begun_s = self.now
        while self.tick(wait_s) is not interrupts:
            assert self.now - begun_s < 1000
        return self.now - begun_s


def test_it_interrupts_nobody_while_it_need_not_wait():
    course = Course()
    assert not any(course.tick(WAIT_LIMIT_S / 2) for _ in range(1000))


def test_who_waits_a_few_times_only_has_not_waited_often_enough_to_say():
    course = Course()
    assert not any(course.tick(1.0, slices=3) for _ in range(1000))


def test_it_interrupts_when_it_has_to_wait_and_tries_again_more_and_more_rarely():
    course = Course()
    assert course.until(True, wait_s=2 * WAIT_LIMIT_S) == TICK_S
    pauses_s = []
    for _ in range(5):
        pauses_s.append(course.until(False, wait_s=WAIT_LIMIT_S / 2))
        course.until(True, wait_s=2 * WAIT_LIMIT_S)
    assert pauses_s == [FIRST_PAUSE_S * factor for factor in (1, 2, 4)] + [LONGEST_PAUSE_S] * 2


def test_after_a_minute_without_waits_it_begins_anew():
    course = Course()
    for _ in range(3):
        course.until(True, wait_s=2 * WAIT_LIMIT_S)
        course.until(False, wait_s=2 * WAIT_LIMIT_S)
    assert course.preemption.pause_s > FIRST_PAUSE_S
    while course.preemption.pause_s > FIRST_PAUSE_S:
        assert not course.tick(WAIT_LIMIT_S / 2)
    course.until(True, wait_s=2 * WAIT_LIMIT_S)
    assert course.until(False, wait_s=0.0) == FIRST_PAUSE_S


POLICIES = """
import os, threading

def policies():
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}

os.sched_setscheduler(0, FIRST, os.sched_param(0))
from dtrain.roles.parameter_server import serving
over = threading.Event()
threading.Thread(target=over.wait).start()
policy = serving.ThreadPolicy(0.0)
threading.Thread(target=over.wait).start()
found = [policies()]
policy.update(0.0)
for serving._accounts, now in ((ACCOUNTS, 1.0), (ACCOUNTS, 10.0)):
    policy.update(now)
    found.append(policies())
over.set()
print(found)
"""


@pytest.mark.parametrize(
    ("first", "accounts", "found"),
    [
        (os.SCHED_OTHER, [(1000.0, 100_000)], [{os.SCHED_BATCH}, {os.SCHED_OTHER}, {os.SCHED_BATCH}]),
        (os.SCHED_OTHER, [(0.001, 100)], [{os.SCHED_BATCH}] * 3),
        (os.SCHED_IDLE, [(1000.0, 100_000)], [{os.SCHED_IDLE}] * 3),  # the user has chosen a policy
    ],
)
def test_all_threads_follow(first, accounts, found):
    body = (
        textwrap.dedent(POLICIES)
        .replace("FIRST", str(first))
        .replace("ACCOUNTS", f"lambda: iter({accounts})")
    )
    done = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == str(found)
