"""Loops of one's own over distributed datasets train as TensorFlow's: golden file m5, over replicas in threads."""

import functools
import json
import tempfile
from pathlib import Path

import numpy as np
from conformance.golden import load_json
from conformance.loops_of_cases import Loop
from conformance.workers_in_processes import on_processes
from conformance.workers_in_threads import on_workers
from row_by_row import every_row
from strategies.shipped import mirrored

GOLDEN = load_json("m5_custom_loops.json")
LOOSE = {"rtol": 1e-4, "atol": 2e-5}
ENDS = ("ended_by", "has_value_after_the_end", "get_value_after_the_end")
"""How a walk ends; a tf.function has an error of its own for it."""


def name_of(case):
    said = ("replicas", "examples", "global_batch", "loop", "loss", "source", "policy", "layers", "optimizer")
    return json.dumps([case[key] for key in said if key in case])


def check_steps(loop, case):
    """Fail unless each step saw the same examples, with the same losses."""
    steps = case["steps"]
    if "sum_of_losses" in steps[0]:
        [epoch] = steps
        assert len(loop.steps) == epoch["steps_of_epoch"]
        total = sum(each["loss_reduced_SUM"] for each in loop.steps)
        np.testing.assert_allclose(total, epoch["sum_of_losses"], **LOOSE)
        return
    assert len(loop.steps) == len(steps)
    for found, expected in zip(loop.steps, steps, strict=True):
        for name, value in expected.items():
            here = value[loop.here] if name.endswith("_of_replicas") else value
            if name == "examples_of_replicas":
                assert found[name] == here
            else:
                np.testing.assert_allclose(found[name], np.array(here, np.float64), **LOOSE)


def check_trained(loop, case):
    """Fail unless a loop's steps, weights, counts and end are TensorFlow's."""
    check_steps(loop, case)
    values = [loop.values[0], loop.values[-1]] if "sum_of_losses" in case["steps"][0] else loop.values
    np.testing.assert_allclose(values, case["values"], **LOOSE)
    # Where `next` is within a tf.function TensorFlow counts the batch that is missing at the end.
    assert loop.found["iterations"] == case["iterations"] - (case["loop"] == "next_in_function")
    np.testing.assert_allclose(
        loop.found["metric_MeanSquaredError"], case["metric_MeanSquaredError"], **LOOSE
    )
    for name in ENDS:
        if name in case and not case["loop"].endswith("_in_function"):
            assert loop.found[name] == case[name]


@every_row("case", GOLDEN["cases"], ids=name_of)
def test_loop(case, tmp_path):
    x, y = (np.array(GOLDEN[name], np.float32) for name in "xy")
    loop = Loop(mirrored(case["replicas"]), case, x, y, tmp_path)
    loop.run()
    check_trained(loop.outcome(), case)


OF_WORKERS = load_json("m5_multiworker_loops.json")


def of_worker(case, number):
    """A case as one worker sees it: what differs between workers is by the worker's number."""
    suffix = "_of_workers"
    own = {name.removesuffix(suffix): value[number] for name, value in case.items() if name.endswith(suffix)}
    return case | own


def loop_of_worker(case, folder, strategy):
    x, y = (np.array(OF_WORKERS[name], np.float32) for name in "xy")
    number = strategy.loops.first
    loop = Loop(strategy, of_worker(case, number), x, y, folder / f"{number}")
    loop.run()
    return loop.outcome()


def of_threads(case, folder):
    return on_workers(case["workers"], lambda strategy: loop_of_worker(case, folder, strategy))


@functools.cache
def outcomes_of_processes(workers, folder):
    """What each of so many processes finds in all cases, one after another."""
    cases = [case for case in OF_WORKERS["cases"] if case["workers"] == workers]
    found = on_processes(workers, lambda strategy: [loop_of_worker(case, folder, strategy) for case in cases])
    return {id(case): each for case, *each in zip(cases, *found, strict=True)}


def of_processes(case, folder):
    return outcomes_of_processes(case["workers"], Path(tempfile.gettempdir()))[id(case)]


@every_row("found_by", [of_threads, of_processes])
@every_row("case", OF_WORKERS["cases"], ids=name_of)
def test_loop_of_workers(case, found_by, tmp_path):
    for number, loop in enumerate(found_by(case, tmp_path)):
        check_trained(loop, of_worker(case, number))
