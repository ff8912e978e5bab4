"""What the warm process does before it forks: it must leave nothing but memory that is used again."""

import subprocess
import sys

REHEARSE = """
import os, sys, threading
from dtrain import strategy
from dtrain.task.rehearsal import rehearse
files = os.listdir("/proc/self/fd")
rehearse()
print(strategy.was_used(), threading.active_count(), os.listdir("/proc/self/fd") == files, "grpc" in sys.modules)
"""


def test_nothing_comes_of_a_rehearsal():
    run = subprocess.run([sys.executable, "-c", REHEARSE], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == ["False", "1", "True", "False"]
