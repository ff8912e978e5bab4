"""How much memory reading ahead takes, as the operating system counts it."""

import os
import subprocess
import sys

MB = 1 << 20
BUDGET_MB, STATED_MB = 48, 24
"""The budget, and what comes on top: elements in the hands of the program, and threads."""
OWN_MAPPINGS = {"MALLOC_MMAP_THRESHOLD_": str(MB // 4)}
"""Has the C library give back each element: how much it would keep for later depends on which thread runs when."""

PROGRAM = """
import resource, sys, weakref
import numpy as np
import dtrain as dt

MB, budget, form = 1 << 20, int(sys.argv[1]) << 20, sys.argv[2]
alive, counts = set(), []  # of which each change is one that no other thread interrupts

def megabyte(x):
    made = np.full(MB, x, np.uint8)
    weakref.finalize(made, alive.discard, int(x))
    alive.add(int(x))
    counts.append(len(alive))
    return made

options = dt.data.Options()
options.autotune.ram_budget = budget
numbers = dt.data.Dataset.range(1000)
if form == "stream":
    numbers = dt.data.Dataset.from_generator(lambda: range(1000))
for _ in range(4):
    np.full(MB, 1, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = sum(1 for _ in numbers.map(megabyte, num_parallel_calls=4).prefetch(500).with_options(options))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(count, max(counts), (after - before) // 1024)
"""


def test_elements_of_a_megabyte_that_four_threads_make_stay_below_the_budget():
    for form in ("by number", "stream"):
        words = [sys.executable, "-c", PROGRAM, str(BUDGET_MB), form]
        environment = os.environ | OWN_MAPPINGS
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120, env=environment)
        count, most, grown_mb = map(int, done.stdout.split())
        assert count == 1000
        assert most <= BUDGET_MB + 6, "one in the hands of the program and of each thread, and the last one"
        assert grown_mb <= BUDGET_MB + STATED_MB, form
