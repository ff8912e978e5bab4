"""`dt.utils.check_gradients`: gradients against finite differences."""

from collections.abc import Callable
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
    result is weighed by random numbers. Random numbers that the function itself draws must not differ from
    call to call. Choose inputs away from places without a derivative.

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
    with GradientTape() as tape:
        watched = [tape.watch(each) if each.dtype.kind == "f" else each for each in arrays]
        result = function(*watched)
        factors = rng.standard_normal(np.shape(bare(result))).astype(np.float32)
        target = np.sum(result * factors)
    numbers = [number for number, each in enumerate(arrays) if each.dtype.kind == "f"]
    moved: list[Any] = [*numbers, *tape.watched_variables()]
    gradients = tape.gradient(target, [watched[each] if isinstance(each, int) else each for each in moved])
    worst = 0.0
    for each, gradient in zip(moved, gradients, strict=True):
        name = f"input {each}" if isinstance(each, int) else f"variable {each.name}"
        before = np.array(arrays[each] if isinstance(each, int) else each.read())
        direction = rng.choice([-1.0, 1.0], np.shape(before)).astype(before.dtype)
        values = []
        for step in (STEP, -STEP, 0.0):
            value = before + np.float32(step) * direction
            if isinstance(each, int):
                arrays[each] = value
            else:
                each.assign(value)
            values.append(float(np.sum(np.asarray(bare(function(*arrays)), np.float64) * factors)))
        expected = (values[0] - values[1]) / (2 * STEP)
        given = 0.0 if gradient is None else float(np.sum(np.asarray(gradient, np.float64) * direction))
        difference = abs(given - expected) / max(1.0, abs(expected))
        if difference > tolerance:
            raise InputError(
                f"check_gradients: {name}: expected the derivative {expected:.5g} by finite differences, "
                f"found {given:.5g}"
            )
        worst = max(worst, difference)
    return worst
