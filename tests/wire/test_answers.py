"""Waiting for what another thread has received."""

import queue
import time

import pytest

from dtrain.wire.interruptible import next_of


class Late:
    """A queue that has something at the third look."""

    def __init__(self):
        self.looks = []

    def get(self, *, timeout):
        self.looks.append(timeout)
        if len(self.looks) < 3:
            raise queue.Empty
        return "item"


def test_no_look_is_for_ever_so_that_a_signal_that_comes_just_before_it_is_heard():
    late = Late()
    assert next_of(late) == "item"
    assert len(late.looks) == 3
    assert all(0 < timeout <= 1 for timeout in late.looks)


def test_a_wait_with_a_deadline_ends_there_and_not_before():
    deadline = time.monotonic() + 0.05
    with pytest.raises(queue.Empty):
        next_of(queue.SimpleQueue(), deadline)
    assert time.monotonic() >= deadline


def test_what_is_there_already_is_returned_at_any_deadline():
    there = queue.SimpleQueue()
    there.put("item")
    assert next_of(there, time.monotonic() - 1.0) == "item"


def test_a_deadline_that_is_nearer_than_the_next_look_shortens_it():
    late = Late()
    assert next_of(late, time.monotonic() + 0.1) == "item"
    assert all(0 <= timeout <= 0.1 for timeout in late.looks)
