"""Maps in helper processes: the same elements, the helper's traceback, and no process left in any way."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from launching import wait_until

from dtrain.data import Dataset
from dtrain.errors import InputError


def children():
    found = []
    for path in Path("/proc").iterdir():
        try:
            after = (path / "stat").read_text().rpartition(")")[2].split() if path.name.isdecimal() else []
        except OSError:
            continue
        if after and int(after[1]) == os.getpid() and after[0] != "Z":
            found.append(int(path.name))
    return set(found)


@pytest.fixture(autouse=True)
def nothing_left():
    before = children()
    yield
    gc.collect()
    wait_until(lambda: children() <= before, within_s=20)


@pytest.mark.parametrize("stream", [False, True], ids=["by number", "stream"])
def test_elements_are_as_without_and_computed_elsewhere(stream):
    def draw(x, text, rng):
        return {"x": x * 2, "text": text + b"!", "drawn": rng.random(3, np.float32), "pid": os.getpid()}

    def made(**more):
        rows = Dataset.from_tensor_slices((np.arange(7), np.array([b"a"] * 7, object)))
        return (Dataset.from_generator(lambda: rows) if stream else rows).map(draw, seed=3, **more)

    here = list(made().batch(3))
    there = list(made(processes=True, num_parallel_calls=2).batch(3).prefetch(2))
    for one, other in zip(here, there, strict=True):
        assert {name: (value.dtype, value.tolist()) for name, value in one.items() if name != "pid"} == {
            name: (value.dtype, value.tolist()) for name, value in other.items() if name != "pid"
        }
    pids = {int(pid) for batch in there for pid in batch["pid"]}
    assert os.getpid() not in pids
    assert len(pids) <= 2


def test_an_error_comes_with_the_helper_s_traceback_and_others_go_on():
    def refuse(x):
        if x == 2:
            raise ValueError("the user's own words")
        return x

    found = iter(Dataset.range(5).map(refuse, 1, processes=True))
    assert [int(next(found)) for _ in range(2)] == [0, 1]
    with pytest.raises(
        InputError,
        match=r"(?s)map, in a helper process: ValueError: the user.*in refuse.*the user's own words",
    ):
        next(found)

    unfit = iter(Dataset.range(3).map(lambda x: iter([x])).map(lambda x: x, 1, processes=True))
    for _ in range(2):
        with pytest.raises(InputError, match="expected arrays, text, bytes and numbers"):
            next(unfit)

    made = Dataset.range(3).map(lambda x: {"unfit": {1, 2}}, 1, processes=True)
    with pytest.raises(InputError, match="expected arrays, text, bytes and numbers"):
        next(iter(made))


def test_a_helper_that_is_killed_is_named():
    def die(x):
        os.kill(os.getpid(), signal.SIGKILL)

    found = iter(Dataset.range(3).map(die, 1, processes=True))
    for _ in range(2):
        with pytest.raises(InputError, match="a helper process was killed"):
            next(found)


# The background jobs of a shell begin with SIGINT ignored, and so would a program that a test there starts.
PROGRAM = """
import os, signal, time
import dtrain as dt
signal.signal(signal.SIGINT, signal.default_int_handler)
def long(x):
    print(os.getpid(), flush=True)
    time.sleep(600)
    return x
next(iter(dt.data.Dataset.range(9).map(long, 2, processes=True)))
"""


def runs(pid):
    """Return whether a process is there that has not ended; who has to reap it may be this process."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_helpers_die_with_their_process_in_the_midst_of_a_call(number):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as task:
        assert task.stdout is not None
        helper = int(task.stdout.readline())
        task.send_signal(number)
        task.wait(60)
        wait_until(lambda: not runs(helper), "the end of the helper")
