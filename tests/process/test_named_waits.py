"""Waits for other processes, for helpers and for a disk: each says whom it waits for, and ends."""

import fcntl
import os
import threading
from types import SimpleNamespace

import pytest

from dtrain.data.prefetching import processes
from dtrain.data.prefetching.processes import Helpers
from dtrain.errors import InputError, WaitTimeoutError
from dtrain.process.clock import Clock
from dtrain.roles.chief.keeper_thread import KeeperThread
from dtrain.roles.chief.machine import Request
from dtrain.runs.trace import NO_TRACE
from dtrain_cli.agent import driver


@pytest.fixture
def held(tmp_path):
    """A file that another open file has locked, as another process would."""
    path = tmp_path / driver.LOCK
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


def test_an_agent_names_the_earlier_one_that_does_not_end(held):
    with pytest.raises(WaitTimeoutError, match=f"process {os.getpid()} to end, an earlier agent of this run"):
        driver.RunHere(held.parent, {}, 0.0)


def test_a_long_wait_for_an_earlier_agent_is_said(held, monkeypatch, capsys):
    monkeypatch.setattr("dtrain.process.file_lock.SAID_AFTER_S", -1.0)

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("dtrain.process.file_lock.time.sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver.RunHere(held.parent, {}, 60.0)
    assert f"dtrain: waiting for process {os.getpid()} to end, an earlier agent" in capsys.readouterr().err


def test_a_helper_that_hangs_is_given_up_with_its_pid(monkeypatch):
    monkeypatch.setattr(processes, "SILENT_S", 0.1)
    reading, _ = os.pipe()
    helpers = Helpers(lambda request: os.read(reading, 1), 1)
    try:
        with pytest.raises(InputError, match=r"map: helper process \d+ has computed one element for"):
            helpers(1)
        with pytest.raises(InputError):  # and nobody waits for the others for ever
            helpers(2)
    finally:
        helpers.close()


class DiskClock(Clock):
    """A clock on which each look at a flag takes as long as it may, and the disk `takes_s`."""

    def __init__(self, takes_s):
        self.at_s = 0.0
        self.takes_s = takes_s

    def now(self):
        return self.at_s

    def event(self):
        clock = self

        class Flag(threading.Event):
            def wait(self, timeout=None):
                assert timeout is not None, "a wait has a deadline at which it looks up"
                clock.at_s += timeout
                return clock.at_s >= clock.takes_s

        return Flag()


@pytest.mark.parametrize(("takes_s", "lines"), [(1.9, 0), (3.0, 1), (60.0, 5)])
def test_a_checkpoint_that_takes_long_is_named_with_its_path_and_the_time(takes_s, lines):
    said = []
    machine = SimpleNamespace(failure=None, ask=lambda request, now: ())
    saver = SimpleNamespace(directory="/runs/r/checkpoints")
    keeper = KeeperThread(machine, saver, said.append, NO_TRACE, DiskClock(takes_s))
    keeper._outcomes[Request.FINISH] = True
    assert keeper.finish()
    assert len(said) == lines
    assert all("/runs/r/checkpoints" in line for line in said)
    assert said[:1] == ["waits for its checkpoint in /runs/r/checkpoints, 2 s"][:lines]
