"""The cause of a gradient with NaN or infinity: the first place on its way that is not finite."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dtrain.learning.graphs.networks import Network
from dtrain.strategies.interface import StepClock
from dtrain.training.steps import TrainingStep


def why_not_finite(network: Network | None, step: TrainingStep) -> str:
    """Return one line that names the place, what was expected there and what was found.

    Args:
        network: None for a model without layers.
        step: one that has filled its gradients.
    """
    with np.errstate(all="ignore"):
        for place, given in _places(network, step):
            array = np.asarray(given)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                found = "NaN" if np.isnan(array).any() else "infinity"
                at = np.argwhere(~np.isfinite(array))[0].tolist()
                return (
                    f"{place}: expected finite numbers, found {found}, first at {at} of shape {array.shape}"
                )
    return "the loss alone is not finite"


def step_in_work(clock: StepClock) -> str:
    """Return the name of the next step: its number in this call of `fit`, and in all if that differs."""
    step = clock.global_step + 1
    done = clock.first_step
    return f"step {step - done} of this fit (global step {step})" if done else f"step {step}"


def _places(network: Network | None, step: TrainingStep) -> Iterator[tuple[str, Any]]:
    """Yield everything of which a gradient is made, causes before effects."""
    for place, given in (("inputs", step.x), ("targets", step.y), ("sample weights", step.sample_weight)):
        parts = list(given.values()) if isinstance(given, Mapping) else given
        yield from ((place, part) for part in (parts if isinstance(parts, list | tuple) else [parts]))
    yield from ((f"variable {name}", weight) for name, weight in step.weights.items())
    if network is not None:
        for label, outputs in network.outputs_of_layers(step.weights, step.x):
            yield from ((f"outputs of {label}", output) for output in outputs)
    yield from ((f"gradient of {name}", gradient) for name, gradient in step.gradients.items())
