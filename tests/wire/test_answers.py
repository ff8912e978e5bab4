"""Waiting for what another thread has received."""

import queue

from dtrain.wire.answers import next_of


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


def test_between_looks_there_is_something_else_to_do():
    done = []
    assert next_of(Late(), lambda: done.append(1)) == "item"
    assert done == [1, 1]
