"""Two runs never write the same path at the same time; what a run has claimed ends with its process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dtrain.errors import RunInUseError
from dtrain.runs.claims import NAME, _leave, claim

HOLDER = """
import os, sys
from dtrain.runs.claims import claim
os.chdir(sys.argv[1])
for path in sys.argv[3:]:
    claim(path, sys.argv[2])
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path, monkeypatch):
    """Start another process that claims paths in the test's folder, as a run."""
    monkeypatch.chdir(tmp_path)
    started = []

    def start(run, *paths):
        words = [sys.executable, "-c", HOLDER, tmp_path, run, *paths]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "claimed\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_second_run_is_refused_and_told_by_whom(hold, tmp_path):
    other = hold("first-run", "s/m")
    (tmp_path / "link").symlink_to("s")
    for path in ("s/m", Path("s/m"), tmp_path / "s" / ".." / "s" / "m", "link/m"):
        with pytest.raises(
            RunInUseError,
            match=rf"m is written by run first-run \(process {other.pid}\), which has not ended; ",
        ):
            claim(path, "second-run")
    claim("s/other", "second-run")
    claim("m", "second-run")
    claim("s/m", None)


def test_a_run_may_write_its_path_again_and_again(hold):
    claim("s/m", "this-run")
    claim("s/m", "this-run")
    assert Path("s", NAME).read_text() == f"{os.getpid()} this-run\n"


@pytest.mark.parametrize("end", ["kill", "close"])
def test_the_claim_ends_with_the_process(hold, end):
    other = hold("first-run", "m", "t/m")
    if end == "kill":
        other.send_signal(signal.SIGKILL)
    other.communicate()
    assert Path("t", NAME).exists() == (end == "kill"), "who ends in order leaves nothing behind"
    claim("m", "second-run")
    again = hold("third-run", "t/m")
    with pytest.raises(RunInUseError, match="run third-run"):
        claim("t/m", "second-run")
    again.communicate()


def test_a_file_that_another_run_uses_is_not_removed(hold):
    first, second = hold("first-run", "a"), hold("second-run", "b")
    first.communicate()
    with pytest.raises(RunInUseError, match=rf"run second-run \(process {second.pid}\)"):
        claim("b", "third-run")
    claim("a", "third-run")


def test_a_forked_child_neither_holds_nor_ends_the_claim(hold):
    claim("m", "this-run")
    if not (child := os.fork()):
        _leave(os.getppid())  # as it would at its end
        os._exit(0)
    os.waitpid(child, 0)
    other = hold("other-run", "n")
    assert other.poll() is None
    with pytest.raises(AssertionError):
        hold("other-run", "m")


def test_where_nothing_can_be_locked_nothing_is_claimed():
    claim("/proc/nowhere/m", "this-run")
