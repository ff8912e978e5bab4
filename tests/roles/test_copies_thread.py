"""Checkpoints are copied beside training: a store that is slow, or gone for a while, delays no step."""

import threading

import numpy as np
import pytest

from dtrain import checkpoints
from dtrain.errors import CheckpointError, CopiesTakenError
from dtrain.roles.chief import saver
from dtrain.roles.chief.saver import CopiesThread

TIMEOUT_S = 20.0


class Store:
    """Notes which steps it was asked to copy; waits, and fails, as it is told."""

    url = "memory://somewhere"

    def __init__(self):
        self.uploads = []
        self.errors = []
        self.begun = threading.Semaphore(0)
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def upload(self, directory):
        self.begun.release()
        assert self.may_go_on.wait(TIMEOUT_S)
        if self.errors:
            raise self.errors.pop(0)
        self.uploads.append([found.step for found in checkpoints.list_checkpoints(directory)])


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(saver, "PAUSE_S", 0.0)
    return Store()


def save(directory, step):
    checkpoints.save(directory, step, {"v": np.zeros(1, np.float32)}, now=0.0)


def test_nobody_waits_for_a_slow_store_but_who_wants_to(store, tmp_path):
    store.may_go_on.clear()
    copies = CopiesThread(store, tmp_path, pytest.fail)
    for step in (1, 2, 3):
        save(tmp_path, step)
        copies.copy()
    assert store.begun.acquire(timeout=TIMEOUT_S)
    assert store.uploads == []
    store.may_go_on.set()
    copies.finish()
    assert store.uploads[-1] == [1, 2, 3]


def test_a_copy_that_fails_is_said_and_the_next_one_makes_it_good(store, tmp_path):
    said, heard = [], threading.Event()
    store.errors = [CheckpointError("cannot copy")]
    copies = CopiesThread(store, tmp_path, lambda text: (said.append(text), heard.set()))
    save(tmp_path, 1)
    copies.copy()
    assert heard.wait(TIMEOUT_S)
    assert said == ["cannot copy; it is tried again with the next checkpoint"]
    copies.finish()
    assert store.uploads == [[1]]


def test_the_last_copy_is_tried_again_for_a_while_and_then_fails_by_name(store, tmp_path):
    copies = CopiesThread(store, tmp_path, pytest.fail)
    save(tmp_path, 9)
    store.errors = [CheckpointError("cannot copy")] * 3
    copies.finish(retry_s=TIMEOUT_S)
    assert store.uploads == [[9]]
    store.errors = [CheckpointError("cannot copy")] * 2
    with pytest.raises(CheckpointError, match="cannot copy; the checkpoints themselves are in"):
        copies.finish()


def test_copies_that_another_run_has_taken_are_not_tried_again(store, tmp_path):
    copies = CopiesThread(store, tmp_path, pytest.fail)
    store.errors = [CopiesTakenError("taken")]
    with pytest.raises(CopiesTakenError, match="taken; the checkpoints themselves are in"):
        copies.finish(retry_s=TIMEOUT_S)
    assert store.uploads == []


def test_a_store_that_hangs_is_given_up(store, tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "PATIENCE_S", 0.01)
    store.may_go_on.clear()
    copies = CopiesThread(store, tmp_path, pytest.fail)
    with pytest.raises(CheckpointError, match=r"takes longer than 0\.01 s"):
        copies.finish()
    store.may_go_on.set()
