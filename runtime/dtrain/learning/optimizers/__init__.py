"""Optimizers: `optimizers.SGD(0.1)`, `optimizers.get("adam")`, `optimizers.from_config(config)`.

Learning rate schedules are in `.schedules`, the optimizers of Keras before 2.11 in `.legacy`.
"""

from collections.abc import Mapping
from typing import Any

from dtrain.learning.core.configuration import NO_OBJECTS, CustomObjects, from_data, to_data
from dtrain.learning.optimizers import legacy, schedules
from dtrain.learning.optimizers.optimizer import Optimizer
from dtrain.learning.optimizers.update_rules import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Ftrl,
    Lion,
    Nadam,
    OuterSGD,
    RMSprop,
)

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lion",
    "Nadam",
    "Optimizer",
    "RMSprop",
    "deserialize",
    "from_config",
    "get",
    "legacy",
    "schedules",
    "serialize",
]


RULES: dict[str, type[Optimizer]] = {
    rule.__name__: rule for rule in (SGD, Adagrad, Adadelta, RMSprop, Adam, AdamW, Adamax, Nadam, Ftrl, Lion)
}


KNOWN: dict[str, type[Optimizer]] = {**RULES, OuterSGD.__name__: OuterSGD}
"""The optimizers that a program may choose, and the one that servers use in local steps."""


def from_config(config: Mapping[str, Any], custom_objects: CustomObjects = NO_OBJECTS) -> Optimizer:
    """Return the optimizer that `serialize` described; raise a `SpecError` if it is none.

    Args:
        config: the dict of `serialize`.
        custom_objects: classes of your own by the names that data mention.
    """
    return from_data(
        config, "optimizer", legacy.RULES if config.get("is_legacy_optimizer") else KNOWN, custom_objects
    )


deserialize = from_config


def serialize(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer as JSON types, for servers and files: its class's name and its arguments.

    Args:
        optimizer: the optimizer.
    """
    known = optimizer.with_known_schedule()
    return {**to_data(known), "is_legacy_optimizer": optimizer.is_legacy_optimizer}


def get(identifier: str | Mapping[str, Any] | Optimizer) -> Optimizer:
    """Return an optimizer from its name in any case (with default arguments), its data, or itself.

    Args:
        identifier: a name such as ``adam``, the dict of `serialize`, or an `Optimizer`.
    """
    if isinstance(identifier, Mapping):
        return from_config(identifier)
    if isinstance(identifier, str):
        names = {name.lower(): name for name in RULES}
        identifier = names.get(identifier.lower(), identifier)
    return from_data(identifier, "optimizer", RULES)
