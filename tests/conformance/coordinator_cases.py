"""What TensorFlow's cases of a coordinator do, as a program: ``python coordinator_cases.py`` prints what comes of each.

It runs alone, and on a cluster with one worker, so that the order of closures is determined.
"""

import json
import os
import re
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

import dtrain as dt
from dtrain.distribute.coordinator import ClusterCoordinator
from dtrain.strategies.mirrored import ThreadsStrategy
from dtrain.strategies.single import SingleStrategy

strategy = dt.ParameterServerStrategy() if "TF_CONFIG" in os.environ else SingleStrategy()
with strategy.scope():
    total = dt.Variable(np.float32(0))
    moved = dt.Variable(np.array([1, 2], np.float32))
sgd = dt.optimizers.SGD(0.1)
GATE = Path(os.environ.get("DTRAIN_RUN_DIR") or tempfile.mkdtemp()) / "gate"
PATIENCE_S = 60.0
ONE = np.float32(1)


# The closures


def add(x, y=ONE):
    return np.float32(x + y)


def plus(x, y):
    return x + y


def identity(x):
    return x


def count(x):
    return np.float32(total.assign_add(np.float32(x)).numpy())


def gated():
    """Run until the program opens the gate."""
    until_s = time.monotonic() + PATIENCE_S
    while not GATE.exists() and time.monotonic() < until_s:
        time.sleep(0.005)
    return np.float32(1)


def fails():
    raise dt.errors.InvalidArgumentError("assertion failed")


def fails_otherwise():
    raise dt.errors.InvalidArgumentError("StringToNumberOp could not correctly convert string: x")


def nest_with_none():
    return {"a": np.float32(1), "b": [None]}


def nest(x):
    return {"a": x, "b": [np.float32(2), [np.float32(3)]]}


def pair():
    return [np.float32(1), np.float32(2)]


def nothing():
    return None


def numbers():
    return dt.data.Dataset.range(5)


dataset_of_the_program = dt.data.Dataset.range(3)


def take(iterator):
    return next(iterator)


def take_two(iterator):
    return [next(iterator), next(iterator)]


def walk(dataset):
    return iter(dataset) is None


def contexts():
    def make(context):
        found = [context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync]
        return dt.data.Dataset.from_tensor_slices(np.array([found], np.int64)).repeat(3)

    return strategy.distribute_datasets_from_function(make)


def distributed():
    return strategy.experimental_distribute_dataset(dt.data.Dataset.range(4).batch(2))


def replica():
    context = dt.distribute.get_replica_context()
    return [context.replica_id_in_sync_group, context.num_replicas_in_sync]


def run_replica():
    return strategy.run(replica)


def one():
    return np.float32(1)


def descend(i):
    sgd.apply_gradients([(np.array([i, 1], np.float32), moved)])
    return int(sgd.iterations)


# The cases


def what_comes_of(call):
    """The value of a call, or the classes of the error that it raises."""
    try:
        return call()
    except Exception as error:
        return {"error": [kind.__name__ for kind in type(error).__mro__]}


def wait_for(result):
    """Wait for a closure without taking its error."""
    what_comes_of(result.fetch)


def additions(c, times):
    total.assign(0)
    for x in range(1, times + 1):
        c.schedule(count, args=(x,))
    c.join()
    return float(total.numpy())


def counted(c, *numbers):
    total.assign(0)
    return c.fetch([c.schedule(count, args=(x,)) for x in numbers])


def done_before_and_after(c):
    GATE.unlink(missing_ok=True)
    c.schedule(gated)
    before = c.done()
    GATE.touch()
    return [before, c.join(), c.done()]


def then_all(c, first):
    """Let one closure fail, and then make these calls."""
    wait_for(c.schedule(fails))
    return [what_comes_of(call) for call in first]


def fetches(c):
    result = c.schedule(fails)
    calls = [result.fetch, lambda: c.fetch(result), lambda: c.fetch(result), c.join, lambda: c.fetch(result)]
    return [what_comes_of(call) for call in calls]


def older(c):
    old = c.schedule(add, args=(np.float32(1),))
    before = c.fetch(old)
    failed = c.schedule(fails)
    values = [before, what_comes_of(failed.fetch), what_comes_of(old.fetch)]
    what_comes_of(c.join)
    return values


def many(c):
    GATE.unlink(missing_ok=True)
    before = [c.schedule(gated)]
    failed = c.schedule(fails)
    after = [c.schedule(gated) for _ in range(20)]
    GATE.touch()
    found = {"join": what_comes_of(c.join)}
    found["closures_before_it"] = c.fetch(before)
    found["the_failed_one"] = what_comes_of(failed.fetch)
    found["the_last_3_scheduled_after_it"] = [what_comes_of(each.fetch) for each in after[-3:]]
    found["join_again"] = c.join()
    found["schedule_after"] = c.fetch(c.schedule(add, args=(np.float32(1),)))
    return found


def two_failures(c):
    GATE.unlink(missing_ok=True)
    c.schedule(gated)
    first, second = c.schedule(fails), c.schedule(fails_otherwise)
    GATE.touch()
    calls = [c.join, c.join, first.fetch, second.fetch]
    return [what_comes_of(call) for call in calls]


def iterated(c):
    """The cases of per-worker iterators, which go on from one to the next."""
    dataset = c.create_per_worker_dataset(numbers)
    iterator = iter(dataset)
    found = {
        "create_per_worker_dataset: types of dataset, iterator": [
            type(dataset).__name__,
            type(iterator).__name__,
        ],
        "create_per_worker_dataset of a Dataset instead of a function: its type": type(
            c.create_per_worker_dataset(dataset_of_the_program)
        ).__name__,
        "next() of a per-worker iterator in the coordinator": what_comes_of(lambda: next(iterator)),
        "iterating a per-worker dataset in the coordinator": what_comes_of(lambda: list(dataset)),
        "iter(dataset) inside a closure given the per-worker dataset": what_comes_of(
            c.schedule(walk, args=(dataset,)).fetch
        ),
        "fetch of per-worker values": type(c.fetch(dataset)).__name__,
    }
    what_comes_of(c.join)
    found["three closures, each next(iterator)"] = c.fetch(
        [c.schedule(take, args=(iterator,)) for _ in range(3)]
    )
    found["one closure with two next()"] = c.schedule(take_two, args=(iterator,)).fetch()
    found["a new iterator starts again"] = c.schedule(take, args=(iter(dataset),)).fetch()
    others = iter(dataset), iter(dataset)
    found["two iterators of one per-worker dataset"] = c.fetch(
        [c.schedule(take, args=(each,)) for each in others]
    )
    found["past the end: fetch, join"] = [
        what_comes_of(c.schedule(take, args=(iterator,)).fetch),
        what_comes_of(c.join),
    ]
    made = iter(c.create_per_worker_dataset(contexts))
    taken = c.fetch([c.schedule(take, args=(made,)) for _ in range(3)])
    found[
        "input contexts of distribute_datasets_from_function inside create_per_worker_dataset, "
        "[num_input_pipelines, input_pipeline_id, num_replicas_in_sync], sorted and made unique"
    ] = sorted({tuple(each) for each in plain(taken)})
    split = iter(c.create_per_worker_dataset(distributed))
    found["experimental_distribute_dataset inside create_per_worker_dataset: first batch"] = c.schedule(
        take, args=(split,)
    ).fetch()
    return found


def descended(c, times):
    seen = c.fetch([c.schedule(descend, args=(i,)) for i in range(times)])
    return {
        "variable": moved.numpy(),
        "iterations": int(sgd.iterations),
        "largest_iterations_seen": max(seen),
    }


OF_NUMBERS = {
    r"(\d+) additions of 1, 2, \.\.\. to a variable: its value after join": additions,
    r"additions of ([\d, ]+) from 0: the values the closures returned, in order": counted,
    r"SGD\(0\.1\)\.apply_gradients of \[i, 1\] to \[1, 2\], one closure for each i below (\d+)": descended,
}
"""Cases whose names say with which numbers they were made."""


def cases(c):
    """What comes of every case, by its name."""
    x = np.float32(1)
    schedule = c.schedule
    calls = {
        "ClusterCoordinator(strategy) twice gives the same object": lambda: ClusterCoordinator(strategy) is c,
        "ClusterCoordinator of a MirroredStrategy": lambda: ClusterCoordinator(
            object.__new__(ThreadsStrategy)
        ),
        "ClusterCoordinator(None)": lambda: ClusterCoordinator(None),
        "coordinator.strategy is the strategy": lambda: c.strategy is strategy,
        "num_replicas_in_sync": lambda: strategy.num_replicas_in_sync,
        "done() with nothing scheduled": c.done,
        "join() with nothing scheduled": c.join,
        "fetch of a plain nest [1, {a: tensor 2}]": lambda: c.fetch([1, {"a": np.float32(2)}]),
        "fetch(None)": lambda: c.fetch(None),
        "type of what schedule returns": lambda: type(schedule(add, args=(x,))).__name__,
        "fetch of one result": lambda: c.fetch(schedule(add, args=(x,))),
        "type of a fetched result": lambda: c.fetch(schedule(add, args=(x,))).dtype.name,
        "result.fetch() and result.get()": lambda: (lambda result: [result.fetch(), result.get()])(
            schedule(add, args=(np.float32(3),))
        ),
        "schedule with keyword arguments": lambda: schedule(
            add, args=(x,), kwargs={"y": np.float32(5)}
        ).get(),
        "schedule with Python and numpy arguments": lambda: c.fetch(
            [schedule(plus, args=(1.0, 2.0)), schedule(plus, args=(np.float32(1.5), np.float32(2)))]
        ),
        "done() before and after join of slow closures": lambda: done_before_and_after(c),
        "a nest of results fetched as one": lambda: c.fetch(
            {"a": schedule(add, args=(x,)), "b": [schedule(add, args=(np.float32(2),)), 7]}
        ),
        "schedule of 5": lambda: schedule(5),
        "args is a tensor, not a tuple": lambda: schedule(add, args=np.ones(2, np.float32)),
        "too many arguments": lambda: schedule(add, args=(x, x, x)),
        "a result as an argument of another closure": lambda: schedule(add, args=(schedule(add, args=(x,)),)),
        "a closure that returns a nest with None in it": lambda: schedule(nest_with_none).fetch(),
        "a closure that returns a nest": lambda: schedule(nest, args=(x,)).fetch(),
        "a closure that returns a list of two": lambda: schedule(pair).fetch(),
        "a closure that returns nothing": lambda: schedule(nothing).fetch(),
        "one closure fails; join raises": lambda: (schedule(fails), c.join()),
        "one closure fails; join raises; then join, done, schedule": lambda: then_all(
            c, [c.join, c.join, c.done, lambda: schedule(add, args=(x,)).fetch()]
        ),
        "one closure fails; wait; done, done again, join": lambda: [
            *then_all(c, [c.done, c.done, c.join]),
            c.join(),
        ],
        "one closure fails; wait; schedule, schedule again, join": lambda: then_all(
            c, [lambda: schedule(one), lambda: type(schedule(one)).__name__, c.join]
        ),
        "one closure fails; fetch of it, fetch again, join, fetch after join": lambda: fetches(c),
        "fetch of an older result after another closure failed": lambda: older(c),
        "slow closures, a failing one, many slow ones: join, then each fetch": lambda: many(c),
        "slow closures, then two that fail (an assertion, then strings.to_number of 'x'): join, join, fetch "
        "of the first, of the second": lambda: two_failures(c),
        "create_per_worker_dataset(5)": lambda: c.create_per_worker_dataset(5),
        "strategy.run in a closure: replica id, num_replicas_in_sync": lambda: schedule(run_replica).fetch(),
        "strategy.run outside a closure": lambda: strategy.run(one),
        "experimental_distribute_dataset outside create_per_worker_dataset": lambda: (
            type(strategy.experimental_distribute_dataset(dt.data.Dataset.range(4).batch(2))).__name__
        ),
    }
    from golden import load_json  # beside this program

    for case in load_json("m8_coordinator.json")["cases"]:
        for form, call in OF_NUMBERS.items():
            if said := re.fullmatch(form, case["what"]):
                numbers = [int(each) for each in re.findall(r"\d+", said[1])]
                calls[case["what"]] = partial(call, c, *numbers)
    return {what: plain(what_comes_of(call)) for what, call in calls.items()} | plain(iterated(c))


def plain(value):
    """A nest as JSON has it."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


if __name__ == "__main__":
    print("CASES", json.dumps(cases(ClusterCoordinator(strategy))))
