"""The queue of closures, against a model of what it promises, over many orders of events."""

import random

from row_by_row import every_row

from dtrain.protocol.closure_queue import ClosureQueue


def test_closures_are_handed_out_in_their_order():
    queue = ClosureQueue()
    for name in "abc":
        queue.put(name)
    assert [queue.assign(worker) for worker in (7, 8, 9)] == ["a", "b", "c"]
    assert queue.assign(10) is None


def test_the_closure_of_a_lost_worker_is_the_next_one():
    queue = ClosureQueue()
    for name in "ab":
        queue.put(name)
    queue.assign(7)
    queue.lost(7)
    assert queue.assign(8) == "a"


def test_the_first_report_counts_from_whichever_worker():
    queue = ClosureQueue()
    queue.put("a")
    queue.assign(7)
    queue.lost(7)
    queue.assign(8)
    assert queue.ended(9, 1) == ["a"]  # the first worker, on another connection
    assert queue.ended(8, 1) == []
    assert queue.empty


def test_a_closure_that_runs_elsewhere_is_not_handed_out_again():
    queue = ClosureQueue()
    queue.put("a")
    queue.assign(7)
    queue.lost(7)
    queue.assign(8)
    queue.lost(7)
    assert queue.assign(9) is None


def test_an_error_cancels_what_no_worker_has_begun_and_is_taken_once():
    queue = ClosureQueue()
    for name in "abcd":
        queue.put(name)
    queue.assign(7)
    queue.assign(8)
    assert queue.ended(7, 1, failed=True) == ["a", "c", "d"]
    assert queue.ended(8, 2, failed=True) == ["b"]
    assert queue.take_error() == "a"
    assert queue.take_error() is None
    assert queue.put("e") == 5


def test_settled_is_the_first_that_has_not_ended():
    queue = ClosureQueue()
    assert queue.settled == 1
    for name in "abc":
        queue.put(name)
    for worker in (7, 8, 9):
        queue.assign(worker)
    queue.ended(8, 2)
    assert queue.settled == 1
    queue.ended(7, 1)
    assert queue.settled == 3
    queue.ended(9, 3)
    assert queue.settled == 4


@every_row("seed", range(200))
def test_every_closure_ends_exactly_once_whatever_happens(seed):
    """Workers come, die, report late and twice, and fail; no closure is lost or ends twice."""
    chance = random.Random(seed)
    queue = ClosureQueue()
    ended, scheduled, running, settled = [], 0, {}, 1
    fails = chance.random() < 0.3
    late = []  # reports that a worker still has to make whose connection is gone
    names = iter(range(10**6))
    workers = [next(names) for _ in range(3)]
    for _ in range(400):
        act = chance.random()
        if act < 0.3 and queue.error is None and scheduled < 60:
            scheduled += 1
            assert queue.put(scheduled) == scheduled
        elif act < 0.6:
            idle = [worker for worker in workers if worker not in running]
            if idle and (taken := queue.assign(chance.choice(idle))) is not None:
                running[next(w for w in idle if w in queue._runs)] = taken
        elif act < 0.85 and running:
            worker = chance.choice(list(running))
            number = running.pop(worker)
            ended += queue.ended(worker, number, failed=fails and chance.random() < 0.1)
        elif act < 0.95:
            worker = chance.choice(workers)
            queue.lost(worker)
            if worker in running:
                late.append(running.pop(worker))
            workers[workers.index(worker)] = next(names)
        elif late:
            ended += queue.ended(-1, late.pop())
        elif queue.error is not None and queue.empty:
            queue.take_error()
        assert queue.settled >= settled
        settled = queue.settled
        assert not [number for number in ended if number >= settled and number in queue._open]
    while not queue.empty:  # a last worker that lives does what is left
        for worker in list(running):
            ended += queue.ended(worker, running.pop(worker))
        if (taken := queue.assign(-2)) is not None:
            ended += queue.ended(-2, taken)
    assert sorted(ended) == list(range(1, scheduled + 1))
