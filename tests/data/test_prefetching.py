"""Reading ahead: the same elements in the same order, sooner; within a budget, and with nothing left behind."""

import gc
import threading
import traceback
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import wait_until

from dtrain.data import AUTOTUNE, Dataset, Options
from dtrain.data.prefetching.prefetched import tuning_of
from dtrain.data.prefetching.threads import ReadAhead
from dtrain.data.prefetching.tuning import DEPTH_MAX, REMEMBERED, WINDOW, Forecast, Tuning
from dtrain.errors import InputError
from dtrain.protocol.part_dealer import Lanes, PartDealer, owned_from
from dtrain.state.batch_cut import Dealt


def input_threads():
    return [each for each in threading.enumerate() if each.name.startswith(("dtrain-input", "dtrain-map"))]


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gc.collect()  # an error that was raised refers to the iterator in which it was
    wait_until(lambda: not input_threads(), within_s=20)


# Forecast and tuning: no thread


def forecast_of(rank, lanes, replicas, end=None):
    return Forecast(lambda first: owned_from(first, rank, lanes, replicas), end)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 3), st.integers(0, 40))
def test_the_forecast_is_what_the_dealer_s_lanes_say(lanes, replicas, rank, number):
    rank %= replicas
    forecast = forecast_of(rank, lanes, replicas)
    assert forecast.upcoming(3) == [], "nothing is read before the first is asked for"
    forecast.asked(number)
    following = range(number + 1, number + 1 + 4 * lanes)
    assert forecast.upcoming(3) == [each for each in following if each % lanes % replicas == rank][:3]


def test_a_number_of_another_s_lane_leaves_the_forecast_and_one_of_its_own_moves_it_also_back():
    forecast = forecast_of(1, 3, 3, 14)
    forecast.asked(4)
    forecast.asked(2)
    assert forecast.upcoming(9) == [7, 10, 13], "and none beyond the end"
    forecast.end = 13
    assert forecast.upcoming(9) == [7, 10], "nor the end itself"
    forecast.asked(1)
    assert forecast.upcoming(2) == [4, 7]
    assert [forecast.awaits(number) for number in (1, 4, 5)] == [False, True, False]


def test_a_forecast_that_is_mostly_wrong_is_not_worth_the_reading():
    forecast = Forecast()
    for number in range(0, 6 * REMEMBERED, 3):
        forecast.asked(number)
    assert forecast.upcoming(1) == []


def test_depth_and_threads_grow_while_input_is_waited_for_and_a_thread_in_vain_goes():
    tuning = Tuning(deeper=True, threads_max=4, budget_bytes=10)
    for _ in range(WINDOW):
        tuning.note(0.5, 1.0)
    assert (tuning.depth, tuning.threads) == (4, 2)
    for _ in range(WINDOW):
        tuning.note(0.2, 1.0)
    assert tuning.threads == 3, "the second one was of use"
    for _ in range(WINDOW):
        tuning.note(0.2, 1.0)
    assert (tuning.threads, tuning.threads_max) == (2, 2)
    for _ in range(20 * WINDOW):
        tuning.note(0.2, 1.0)
    assert tuning.depth == DEPTH_MAX
    tuning.fit_into_budget(3)
    assert tuning.depth == 3
    for _ in range(WINDOW):
        tuning.note(0.0, 1.0)
    assert tuning.depth == 3


def test_what_a_pipeline_says_decides_how_it_is_read_ahead():
    numbers = Dataset.range(100)
    options = Options()
    options.autotune.ram_budget = 5
    options.autotune.cpu_budget = 7
    same = lambda x: x  # noqa: E731

    def depth_and_threads(dataset):
        tuning = tuning_of(dataset.with_options(options).node)
        if tuning is None:
            return None
        depth = AUTOTUNE if tuning.deeper else tuning.depth
        return depth, tuning.threads, tuning.threads_max, tuning.budget_bytes

    assert depth_and_threads(numbers.map(same).batch(5)) is None
    assert depth_and_threads(numbers.batch(5).prefetch(0)) is None
    assert depth_and_threads(numbers.map(same).batch(5).prefetch(3)) == (3, 1, 1, 5)
    assert depth_and_threads(numbers.prefetch(7).batch(5)) == (2, 1, 1, 5)
    assert depth_and_threads(numbers.map(same, 4).batch(5).prefetch(AUTOTUNE)) == (AUTOTUNE, 4, 4, 5)
    assert depth_and_threads(numbers.map(same, AUTOTUNE).batch(5)) == (AUTOTUNE, 1, 7, 5)
    assert depth_and_threads(numbers.map(same, 4).map(same)) == (2, 1, 1, 5), "the other is called alone"
    with pytest.raises(InputError, match=r"prefetch: expected a buffer_size >= 0 or AUTOTUNE"):
        numbers.prefetch(-2)
    with pytest.raises(InputError, match="map: expected num_parallel_calls >= 1 or AUTOTUNE"):
        numbers.map(same, 0)


# Elements


def streamed(dataset):
    return Dataset.from_generator(lambda: dataset)


@pytest.mark.parametrize("form", [lambda dataset: dataset, streamed], ids=["by number", "stream"])
@pytest.mark.parametrize("calls", [None, 3, AUTOTUNE])
@pytest.mark.parametrize("depth", [1, 4, AUTOTUNE])
def test_elements_and_their_order_are_as_without(form, calls, depth):
    def draw(x, rng):
        return x, rng.random()

    def pipeline(calls):
        return (
            form(Dataset.range(30).shuffle(8, 2, reshuffle_each_iteration=False))
            .map(draw, calls, seed=5)
            .repeat(2)
            .batch(4)
        )

    plain = [(x.tolist(), y.tolist()) for x, y in pipeline(None)]
    ahead = pipeline(calls).prefetch(depth)
    for _ in range(2):
        assert [(x.tolist(), y.tolist()) for x, y in Dataset(ahead.node)] == plain
    other = [(x.tolist(), y.tolist()) for x, y in Dataset(pipeline(calls).prefetch(depth).node)]
    assert other == plain, "chance follows from seed and element"


@pytest.mark.parametrize("form", [lambda dataset: dataset, streamed], ids=["by number", "stream"])
@pytest.mark.parametrize("calls", [None, 2])
def test_a_map_that_raises_in_a_thread_shows_the_user_s_own_lines(form, calls):
    def refuse(x):
        if x == 3:
            raise ValueError("the user's own words")
        return x

    found = iter(form(Dataset.range(9)).map(refuse, calls).prefetch(2))
    assert [int(next(found)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the user's own words") as raised:
        next(found)
    assert traceback.extract_tb(raised.tb)[-1].name == "refuse"


@pytest.mark.parametrize("form", [lambda dataset: dataset, streamed], ids=["by number", "stream"])
def test_what_is_read_ahead_stays_below_the_budget(form):
    made = []

    def megabyte(x):
        made.append(int(x))
        return np.full(1 << 20, x, np.uint8)

    options = Options()
    options.autotune.ram_budget = 5 << 20
    found = iter(form(Dataset.range(100)).map(megabyte).prefetch(64).with_options(options))
    for taken in range(1, 8):
        next(found)
        wait_until(lambda taken=taken: len(made) >= taken + 4, within_s=20)
        assert len(made) <= taken + 6, "the budget, one that is under way before sizes are known"
    del found


def test_a_function_that_is_not_said_to_be_parallel_is_called_by_one_thread_at_a_time():
    busy, calls = threading.Lock(), []

    def alone(x):
        assert busy.acquire(blocking=False), "two threads call it at once"
        calls.append(threading.current_thread().name)
        busy.release()
        return x

    found = iter(Dataset.range(200).map(alone).prefetch(4))
    next(found)
    wait_until(lambda: any(name.startswith("dtrain-input") for name in calls), within_s=20)
    assert len(list(found)) == 199


def test_threads_start_with_the_first_element_and_end_with_the_iterator():
    found = iter(Dataset.range(1000).prefetch(2))
    assert not input_threads()
    next(found)
    assert input_threads()
    del found


# Replicas


def test_of_several_replicas_of_one_speed_each_reads_its_own_numbers_and_none_beyond_the_end():
    count, replicas = 60, 3
    dealer = PartDealer.of(Dealt(1), whole=False, lanes=Lanes(replicas, replicas))
    read: list[int] = []
    readers = [
        ReadAhead(
            lambda number: read.append(number) or number,
            lambda _: 1,
            [forecast_of(rank, replicas, replicas, count)],
            Tuning(depth=4),
        )
        for rank in range(replicas)
    ]
    for turn in range(count):
        rank = turn % replicas
        number = dealer.give(rank, range(replicas), left=count - turn)
        assert readers[rank].at(number) == number
        assert readers[rank].at(number) == number, "it may be asked for again"
        dealer.settle(number)
    for reader in readers:
        reader.close()
    assert sorted(read) == list(range(count)), "each once"


def test_a_number_that_another_replica_had_begun_is_read_at_once_and_what_is_passed_is_dropped():
    reader = ReadAhead(lambda number: number, lambda _: 10, [forecast_of(0, 2, 2, 40)], Tuning(depth=3))
    assert reader.at(0) == 0
    wait_until(lambda: reader.held_bytes == 30, within_s=20)
    assert reader.at(5) == 5, "it helps"
    assert reader.at(4) == 4, "2 was taken over by another"
    wait_until(lambda: reader.held_bytes == 30, within_s=20)
    assert reader.at(2) == 2, "back"
    reader.close()
    assert reader.held_bytes == 0


def test_no_element_is_begun_that_would_be_above_the_budget():
    held: list[int] = []

    def read(number):
        if threading.current_thread() in input_threads():
            held.append(reader.held_bytes + 10)
        return number

    forecasts = [forecast_of(rank, 2, 2) for rank in range(2)]
    reader = ReadAhead(read, lambda _: 10, forecasts, Tuning(depth=9, budget_bytes=25))
    for number in range(50):
        assert reader.at(number, number % 2) == number
        wait_until(lambda: reader.held_bytes >= 20, within_s=20)
    reader.close()
    assert max(held) == 20, "two of ten bytes are read ahead, and a third one has no room"


# Chance


def test_a_map_that_draws_from_the_global_state_is_told_so_once():
    def noisy(x):
        return x + np.random.rand()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        list(Dataset.range(5).map(noisy).repeat(2))
        list(Dataset.range(5).map(lambda x: x + 1))
    assert [str(each.message)[:40] for each in said] == ["map: noisy draws from the global state o"]
