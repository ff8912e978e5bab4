"""`dt.utils.check_gradients`: gradients against finite differences."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.functions.recording import bare
from dtrain.learning.functions.tapes import GradientTape

__all__ = ["check_gradients"]

STEP = 4e-3
"""By how much values move. Numbers of float32 are too coarse for much less."""


def check_gradients(function: Callable[..., Any], *inputs: Any, tolerance: float = 0.02) -> float:
    """Compare the gradients of a function, layer or model with finite differences; return the difference.

    Each input of floats, and each variable that is read, moves along a direction of -1 and 1 at random; the
    result is weighed by random numbers. Random numbers that the function itself draws must not differ
    from call to call. Choose inputs away from places without a derivative.

    Args:
        function: ``(*inputs) -> result``, an array or a recorded value; or a layer or model.
        inputs: arrays.
        tolerance: for the difference, as a fraction of the derivative (of 1, if that is less).

    Returns: The largest difference of all.

    Raises:
        InputError: a difference is greater; it names the input or the variable.
    """
    rng = np.random.default_rng(0)
    arrays = [np.array(each) for each in inputs]
    floats = [number for number, each in enumerate(arrays) if each.dtype.kind == "f"]
    with GradientTape() as tape:
        watched = {number: tape.watch(arrays[number]) for number in floats}
        result = function(*({**dict(enumerate(arrays)), **watched}.values()))
        factors = rng.standard_normal(np.shape(bare(result))).astype(np.float32)
        target = np.sum(result * factors)
    variables = tape.watched_variables()
    gradients = tape.gradient(target, [*watched.values(), *variables])
    moved = [
        *((f"input {number}", arrays[number], partial(arrays.__setitem__, number)) for number in floats),
        *((f"variable {each.name}", np.array(each.read()), each.assign) for each in variables),
    ]
    worst = 0.0
    for (name, before, put), gradient in zip(moved, gradients, strict=True):
        way = rng.choice([-1.0, 1.0], before.shape).astype(before.dtype)
        ends = []
        for step in (STEP, -STEP, 0.0):
            put(before + np.float32(step) * way)
            ends.append(float(np.sum(np.asarray(bare(function(*arrays)), np.float64) * factors)))
        expected = (ends[0] - ends[1]) / (2 * STEP)
        found = 0.0 if gradient is None else float(np.sum(np.asarray(gradient, np.float64) * way))
        worst = max(worst, abs(found - expected) / max(1.0, abs(expected)))
        if worst > tolerance:
            raise InputError(
                f"check_gradients: {name}: expected the derivative {expected:.5g} by finite differences, "
                f"found {found:.5g}"
            )
    return worst
