"""Models of other libraries, trained by dtrain's strategies: a PyTorch module (dtrain[torch])."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dtrain.errors import ProgramError
from dtrain.training.functions import FunctionModel, from_function
from dtrain.types import Array, Arrays


def from_torch(module: Any, loss: Callable[[Any, Any], Any], name: str | None = None) -> FunctionModel:
    """Return a model that trains a `torch.nn.Module` on every strategy.

    Args:
        module: its parameters are trained, its buffers of floats (moving averages) travel beside them. The
            leader's values count.
        loss: ``(outputs, targets) -> scalar tensor``, for example `torch.nn.functional.cross_entropy`.
        name: of the model; None: its class's name in lower case.

    Raises:
        ProgramError: PyTorch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ProgramError(
            "from_torch: needs PyTorch: `pip install -e '.[torch]'` in dtrain's clone"
        ) from error

    parameters = {key: each for key, each in module.named_parameters() if each.requires_grad}
    buffers = {key: each for key, each in module.named_buffers() if each.is_floating_point()}
    tensors = {**parameters, **buffers}
    first = {key: each.detach().numpy().copy() for key, each in tensors.items()}

    def outputs(weights: Arrays, x: Any, *, training: bool) -> Any:
        module.train(training)
        with torch.no_grad():
            for key, tensor in tensors.items():
                tensor.copy_(torch.from_numpy(weights[key]))
        return module(torch.from_numpy(np.asarray(x)))

    def loss_and_gradients(
        weights: Arrays, x: Any, y: Any
    ) -> tuple[float, dict[str, Array], dict[str, Array]]:
        value = loss(outputs(weights, x, training=True), torch.from_numpy(np.asarray(y)))
        found = torch.autograd.grad(value, list(parameters.values()))
        gradients = {key: each.numpy() for key, each in zip(parameters, found, strict=True)}
        # copies, because a prediction writes into the buffers
        copies = {key: each.numpy().copy() for key, each in buffers.items()}
        return value.item(), gradients, copies

    def loss_alone(weights: Arrays, x: Any, y: Any) -> float:
        with torch.no_grad():
            return float(loss(outputs(weights, x, training=False), torch.from_numpy(np.asarray(y))))

    def predict(weights: Arrays, x: Any) -> Array:
        with torch.no_grad():
            return np.array(outputs(weights, x, training=False).numpy())

    return from_function(
        lambda rng: first,
        loss_and_gradients,
        loss=loss_alone,
        predict=predict,
        state=tuple(buffers),
        name=name or "torch",
    )
