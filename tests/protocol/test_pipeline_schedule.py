"""The order of a pipeline's stages, in a simulator that knows nothing but who waits for whom."""

from fractions import Fraction

import pytest

from dtrain.config.choices import Schedule
from dtrain.protocol.pipeline_schedule import FLUSHES, base_version, bubble, in_flight, order

STAGES = range(1, 7)
MICROBATCHES = range(1, 13)


def simulated(orders):
    """Each stage does its work in its order, one piece a tick, each as soon as what it needs has come.

    Returns the ticks of the whole step, and for each stage the most microbatches that were in flight.
    """
    stages = len(orders)
    left = [list(each) for each in orders]
    done, most, flying, ticks = set(), [0] * stages, [0] * stages, 0
    while any(left):
        ready = []
        for stage, work in enumerate(left):
            if not work:
                continue
            back, number = work[0]
            needs = (True, number, stage + 1) if back else (False, number, stage - 1)
            outside = not 0 <= needs[2] < stages
            if (outside and (not back or (False, number, stage) in done)) or needs in done:
                ready.append((stage, back, number))
        assert ready, f"deadlock: {left}"
        for stage, back, number in ready:
            left[stage].pop(0)
            done.add((back, number, stage))
            flying[stage] += -1 if back else 1
            most[stage] = max(most[stage], flying[stage])
        ticks += 1
    return ticks, most


@pytest.mark.parametrize("schedule", Schedule)
def test_no_order_deadlocks_and_its_bubble_and_memory_are_as_promised(schedule):
    for stages in STAGES:
        for count in MICROBATCHES:
            orders = [list(order(schedule, stages, stage, count)) for stage in range(stages)]
            ticks, most = simulated(orders)
            assert Fraction(ticks - 2 * count, ticks) == Fraction(stages - 1, count + stages - 1)
            assert bubble(stages, count) == pytest.approx((ticks - 2 * count) / ticks)
            assert most == [in_flight(schedule, stages, stage, count) for stage in range(stages)]
            if schedule is Schedule.ONE_F_ONE_B:
                assert all(held <= stages - stage for stage, held in enumerate(most))


@pytest.mark.parametrize("schedule", Schedule)
def test_each_microbatch_goes_forward_and_back_once_in_order(schedule):
    """Gradients are added up in the order of the microbatches, whatever the schedule."""
    for stages in STAGES:
        for stage in range(stages):
            for count in MICROBATCHES:
                work = list(order(schedule, stages, stage, count))
                for back in (False, True):
                    assert [each.microbatch for each in work if each.back is back] == list(range(count))


@pytest.mark.parametrize("schedule", Schedule)
def test_between_two_stages_wait_no_more_arrays_than_are_in_flight_however_late_the_next_one_is(schedule):
    """The next stage takes an array only when the one before can do nothing without it: this is the most memory."""
    for stages in STAGES[1:]:
        for count in MICROBATCHES:
            for stage in range(stages - 1):
                late = order(schedule, stages, stage + 1, count)
                sent, taken, most = 0, 0, 0
                for back, number in order(schedule, stages, stage, count):
                    sent += not back
                    most = max(most, sent - taken)
                    while back:
                        work = next(late)
                        taken += not work.back
                        if work == (True, number):
                            break
                assert most == in_flight(schedule, stages, stage, count)
                if schedule is Schedule.ONE_F_ONE_B:
                    assert most <= stages - stage, "credits: whatever the number of microbatches"


def test_four_microbatches_in_three_stages_as_the_picture_of_1f1b_has_them():
    written = ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    assert [
        " ".join(f"{'FB'[back]}{number}" for back, number in order(Schedule.ONE_F_ONE_B, 3, stage, 4))
        for stage in range(3)
    ] == written


def of_batches(schedule, stages, stage, count, batches):
    """The work of several batches, of `count` microbatches each, that are numbered on; the last one drains."""
    flying, work = 0, []
    for batch in range(batches):
        last = batch == batches - 1
        for back, number in order(schedule, stages, stage, count, flying, drains=last):
            work.append((back, batch * count + number))
        flying = min(flying + count, stages - 1 - stage)
    return work


@pytest.mark.parametrize("schedule", [each for each in Schedule if each not in FLUSHES])
def test_an_asynchronous_pipeline_does_not_deadlock_nor_wait_between_batches(schedule):
    """Only as it fills and drains, and at most S - s microbatches are in flight at stage s."""
    batches = 4
    for stages in STAGES:
        for count in MICROBATCHES:
            works = [of_batches(schedule, stages, stage, count, batches) for stage in range(stages)]
            for work in works:
                for back in (False, True):
                    assert [number for goes, number in work if goes is back] == list(range(batches * count))
            ticks, most = simulated(works)
            assert ticks == 2 * batches * count + 2 * (stages - 1)
            assert all(held <= stages - stage for stage, held in enumerate(most))


def test_the_version_that_2bw_uses_is_there_with_as_many_microbatches_as_stages():
    for stages in STAGES:
        for count in range(stages, 13):
            for stage in range(stages):
                backs = 0
                for back, number in of_batches(Schedule.PIPEDREAM_2BW, stages, stage, count, 5):
                    backs += back
                    if not back and number % count == 0:
                        target = number // count + 1
                        assert base_version(Schedule.PIPEDREAM_2BW, target, 0, 0) == max(0, target - 2)
                        assert max(0, target - 2) <= backs // count <= target - 1
