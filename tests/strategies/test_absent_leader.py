"""A leader that cannot be reached between two calls of `fit`: who leads the next one, and when all is over."""

import threading

import numpy as np
import pytest
from replica_fleet import ReplicaFleet

import dtrain as dt
from dtrain.cluster import TaskId
from dtrain.errors import PeerLostError
from dtrain.runs.files import RunFiles
from dtrain.strategies.multi_worker_mirrored.membership import (
    HasEndedError,
    HasToLeadError,
    LeaderElection,
    PeersState,
)
from dtrain.wire.connecting import LeaderFinder

TASKS = [TaskId.parse(task) for task in ("chief:0", "worker:0", "worker:1", "worker:2")]


NOBODY_TRAINS = PeersState()


@pytest.fixture
def replica_run(tmp_path):
    """The checkpoints of a run that has ended after two calls of `fit`, and the steps of each."""

    def build():
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
        model.compile("sgd", "mse")
        return model

    x = np.ones((8, 2), np.float32)

    def fit_twice(model):
        for _ in range(2):
            model.fit(x, x[:, :1], batch_size=2, verbose=0)

    ReplicaFleet(tmp_path, 2).run(build, fit_twice)
    return RunFiles(tmp_path).checkpoints, 4


class Open:
    def close(self):
        pass


def election(there, own, members=(), folder=None, doings=NOBODY_TRAINS, lost=()):
    asked = []

    def connect(rank, timeout_s):
        if rank in there:
            return Open()
        raise PeerLostError("refused")

    finder = LeaderFinder(TASKS, lambda task, timeout_s: Open())
    found = LeaderElection(
        connect, finder, own, range(4), folder, lambda ranks: asked.append(ranks) or doings, lambda: lost
    )
    found.members, found.asked = members, asked
    found.begin(1, None)
    return found, finder


def test_before_the_first_call_nobody_takes_its_place():
    found, _ = election({2, 3}, own=1)
    assert found.poll() is None


def test_the_live_replica_of_lowest_rank_leads_and_knows_who_is_gone():
    found, _ = election({3}, own=1, members={0, 1, 2, 3})
    with pytest.raises(HasToLeadError) as caught:
        found.poll()
    assert caught.value.gone == {0, 2}


def test_any_other_one_asks_that_one_next():
    found, finder = election({1}, own=3, members={0, 1, 2, 3})

    def refused(timeout_s):
        raise PeerLostError("refused")

    with pytest.raises(PeerLostError):
        found.heeded(refused)(0.1)
    assert finder.task == TASKS[1]


def test_an_evaluator_that_reaches_no_leader_asks_no_replica():
    found, finder = election({1}, own=-1)
    found._connect = None  # it has no place to be asked at

    def refused(timeout_s):
        raise PeerLostError("refused")

    with pytest.raises(PeerLostError):
        found.heeded(refused)(0.1)
    assert finder.task == TASKS[0]


@pytest.mark.parametrize(("folder", "there"), [(None, set()), ("empty", set()), ("empty", {0})])
def test_without_a_checkpoint_of_the_last_step_nothing_is_over(tmp_path, folder, there):
    found, _ = election(there, own=2, folder=folder and tmp_path)
    found.begin(1, 8)
    assert found.poll() == (0 if there else None)


def test_a_replica_that_comes_back_when_all_have_gone_finds_the_last_checkpoint(replica_run):
    folder, steps = replica_run
    for number, last_step, is_over in (
        *((2, steps, True), (2, steps + 1, False)),
        *((1, steps + 1, True), (3, steps, False)),
    ):
        found, _ = election(set(), own=2, folder=folder)
        found.begin(number, last_step)
        if is_over:
            with pytest.raises(HasEndedError):
                found.poll()
        else:
            assert found.poll() is None
    found, _ = election({1}, own=2, folder=folder)
    found.begin(1, steps)
    assert found.poll() == 1


@pytest.mark.parametrize(
    ("doings", "leads"),
    [(PeersState(), True), (PeersState(trains=True), False), (PeersState(silent=frozenset({2})), False)],
    ids=["nobody trains", "one trains", "one that is silent may train"],
)
def test_the_first_task_leads_if_nobody_trains_any_more(doings, leads):
    found, finder = election({2}, own=0, doings=doings)
    if leads:
        with pytest.raises(HasToLeadError):
            found.not_leading()
    else:
        found.not_leading()
        assert finder.task == TASKS[1], "it asks the next one"
    assert found.asked == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("lost", "leads"), [((), False), ({0}, False), ({1}, False), ({0, 1}, True)], ids=str
)
def test_another_task_does_once_all_before_it_are_lost_for_good(lost, leads):
    found, _ = election({3}, own=2, lost=lost)
    if leads:
        with pytest.raises(HasToLeadError) as caught:
            found.not_leading()
        assert caught.value.gone == {0, 1}
    else:
        found.not_leading()
    assert found.asked == ([[3]] if leads else [])


def test_when_all_is_over_nobody_leads(replica_run):
    folder, steps = replica_run
    found, _ = election(set(), own=0, folder=folder)
    found.begin(2, steps)
    with pytest.raises(HasEndedError):
        found.not_leading()


def test_a_thread_beside_the_program_s_only_asks_the_next_one():
    found, finder = election(set(), own=0)
    beside = threading.Thread(target=found.not_leading)
    beside.start()
    beside.join()
    assert (found.asked, finder.task) == ([], TASKS[1])


def test_a_task_that_has_a_lease_at_the_leader_asks_no_other_one_whatever_fails():
    """Of hundreds that begin together, those that were not answered in time had asked all others in turn."""
    found, finder = election({0, 1, 2}, own=3, members={0, 1, 2, 3})
    found.heard = lambda: str(TASKS[2])
    found._connect = None

    def refused(timeout_s):
        raise PeerLostError("it does not answer in time")

    with pytest.raises(PeerLostError):
        found.heeded(refused)(0.1)
    assert finder.task == TASKS[0]
    found.not_leading()
    assert (finder.task, found.asked) == (TASKS[2], [])
