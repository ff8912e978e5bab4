"""How long the leader of replicas that reduce among themselves waits for the others."""

import threading

import pytest

from dtrain.errors import TooFewReplicasError
from dtrain.strategies.multi_worker_mirrored.membership import Gathering


class Told:
    """A reporter that remembers for whom it waits, and of what it warns."""

    def __init__(self):
        self.waits, self.warned = [], []

    def waiting(self, for_whom):
        self.waits.append(for_whom)

    def warn(self, text):
        self.warned.append(text)


def gathering(gone=(), too_few="shrink", start_s=1000.0):
    reporter = Told()
    names = "worker:{}".format
    return Gathering({1, 2}, names, lambda: set(gone), reporter, too_few, start_s), reporter


def suffice(made, *there):
    more = threading.Condition()
    with more:
        return made.suffice(dict.fromkeys(there, ""), more)


def test_the_leader_names_those_it_waits_for_and_begins_when_all_are_there(monkeypatch):
    monkeypatch.setattr("dtrain.strategies.multi_worker_mirrored.membership.LOOK_S", 0.0)
    made, reporter = gathering()
    assert not suffice(made, 2)
    assert reporter.waits == ["worker:1"]
    assert suffice(made, 1, 2)
    assert reporter.waits[-1] is None
    assert reporter.warned == []


def test_it_does_not_wait_for_one_that_is_gone_and_says_so():
    made, reporter = gathering(gone={1})
    assert suffice(made, 2)
    assert reporter.warned == ["begins without worker:1: it is gone"]


def test_after_the_time_for_a_start_it_begins_without_the_others():
    made, reporter = gathering(start_s=0.0)
    assert suffice(made, 1)
    assert reporter.warned == ["begins without worker:2: waited 0 s (wait.start_s)"]


@pytest.mark.parametrize("too_few", ["wait", "fail"])
def test_or_gives_up_where_the_spec_does_not_do_without_them(too_few):
    made, _ = gathering(start_s=0.0, too_few=too_few)
    with pytest.raises(TooFewReplicasError, match=f"worker:2 did not come within 0 s.*too_few is {too_few}"):
        suffice(made, 1)
