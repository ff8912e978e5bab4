"""Optimizers: `optimizers.SGD(0.1)`, `optimizers.get("adam")`, `optimizers.from_config(config)`; schedules in `.schedules`."""

from collections.abc import Mapping
from typing import Any

from dtrain.errors import SpecError
from dtrain.learning.optimizers import schedules
from dtrain.learning.optimizers.adagrad import Adagrad
from dtrain.learning.optimizers.adam import Adam, AdamW
from dtrain.learning.optimizers.optimizer import Optimizer
from dtrain.learning.optimizers.sgd import SGD

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Optimizer", "from_config", "get", "schedules"]

OPTIMIZERS: dict[str, type[Optimizer]] = {rule.__name__: rule for rule in (SGD, Adagrad, Adam, AdamW)}


def from_config(config: Mapping[str, Any]) -> Optimizer:
    """The optimizer that `Optimizer.get_config` described.

    Raises:
        SpecError: there is no optimizer of that name, or its arguments are wrong.
    """
    name = config.get("class_name")
    if name not in OPTIMIZERS:
        raise SpecError(f"optimizer: none is called {name!r}; there are {', '.join(OPTIMIZERS)}.")
    try:
        return OPTIMIZERS[name](**config.get("config", {}))
    except TypeError as error:
        raise SpecError(f"optimizer: wrong arguments for {name}: {error}.") from error


def get(identifier: str | Mapping[str, Any] | Optimizer) -> Optimizer:
    """An optimizer from its name in any case (with default arguments), its config, or itself."""
    if isinstance(identifier, Optimizer):
        return identifier
    if isinstance(identifier, Mapping):
        return from_config(identifier)
    names = {name.lower(): name for name in OPTIMIZERS}
    return from_config({"class_name": names.get(identifier.lower(), identifier)})
