"""A layer's weights as Keras shows them: variables and arrays of the model in which the layer stands.

A layer holds no values itself. It knows the models that it was put into, and reads and writes the values of
the first of them that is built; models that use the same layer share them. So these names show the trained
values wherever `Model.predict` uses them, and the initial ones before.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from dtrain.errors import InputError
from dtrain.types import Array

_INSTEAD = dict.fromkeys(
    ("add_loss", "add_metric"),
    "; give an activity_regularizer, or add the term in a loss or train_step of your own",
)
"""What to use in the place of methods of Keras's layers."""


class WithWeights:
    """The part of every layer that shows its weights; compare `tf.keras.layers.Layer`."""

    trainable: bool

    if TYPE_CHECKING:

        @property
        def label(self) -> str: ...

    @cached_property
    def used_in(self) -> "WeakSet[Any]":
        """The models that were made of it."""
        return WeakSet()

    @cached_property
    def used_by(self) -> "WeakSet[Any]":
        """Models that hold values of its weights, and share them."""
        return WeakSet()

    @property
    def built(self) -> bool:
        """Whether the shapes of its weights are known, as the layer stands in a model that is built."""
        return self._owner() is not None

    @built.setter
    def built(self, value: bool) -> None:
        """Let the `build` of a layer of a program's own say so, as Keras's do; it has no effect."""

    @property
    def weights(self) -> list[Any]:
        """The variables, the trained ones first; none before the layer stands in a model that is built.

        They have `numpy()`, `assign`, `name`, `shape` and `dtype`; see `dt.Variable`.
        """
        owner = self._owner()
        if owner is None:
            return []
        by_name = owner.in_replicas().by_name
        return [by_name[name] for name in self._names(owner).values()]

    variables = weights

    @property
    def trainable_weights(self) -> list[Any]:
        """The variables that are trained: none of a layer that is frozen."""
        return [each for each in self.weights if each.trainable and self.trainable]

    trainable_variables = trainable_weights

    @property
    def non_trainable_weights(self) -> list[Any]:
        """The other variables, such as moving averages."""
        return [each for each in self.weights if not (each.trainable and self.trainable)]

    non_trainable_variables = non_trainable_weights

    def get_weights(self) -> list[Array]:
        """Return copies of its values, in the order of `weights`."""
        owner = self._owner()
        values = {} if owner is None else owner.arrays
        return [] if owner is None else [np.array(values[name]) for name in self._names(owner).values()]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set its values, in the order of `weights`.

        Args:
            weights: an array for each variable.

        Raises:
            InputError: the layer is not built, there are more or fewer arrays, or a shape differs.
        """
        owner = self._owner()
        names = [] if owner is None else list(self._names(owner).values())
        if len(weights) != len(names):
            unbuilt = "; it stands in no model that is built, so it has no weights yet" if not names else ""
            raise InputError(
                f"{self.label}: set_weights: expected {len(names)} arrays, found {len(weights)}{unbuilt}"
            )
        if owner is not None:
            known = owner.arrays
            pairs = zip(names, weights, strict=True)
            owner.arrays = known | {
                name: fitting(f"{self.label}: set_weights", name, value, known[name]) for name, value in pairs
            }

    def count_params(self) -> int:
        """Return the number of elements of its weights; raise an `InputError` before they are known."""
        if self._owner() is None:
            raise InputError(f"{self.label}: count_params: it stands in no model that is built")
        return sum(int(np.prod(each.shape, dtype=np.int64)) for each in self.weights)

    def __getattr__(self, name: str) -> Any:
        """Return the variable of a weight's name, such as `kernel`, `bias`, `gamma` or `embeddings`."""
        if not name.startswith("_"):
            owner = self._owner()
            names = {} if owner is None else self._names(owner)
            if name in names:
                return owner.in_replicas().by_name[names[name]]
            if owner is None and name in ("kernel", "bias", "gamma", "beta", "embeddings"):
                raise AttributeError(
                    f"{self.label}: has no {name} before it stands in a model that is built; give the first "
                    "layer an input_shape, or call the model's build",
                    name=name,
                )
        use = _INSTEAD.get(name, "")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{use}", name=name)

    def _owner(self) -> Any:
        """Return the model whose values they are: the first made of those that are built, or None."""
        built = [each for each in self.used_in | self.used_by if each.built]
        return min(built, key=lambda each: each.number, default=None)

    def _names(self, owner: Any) -> dict[str, str]:
        """Return the names of its variables in a model, by the weights' names; the trained ones first."""
        own = [(weight, name) for layer, weight, name in owner.network.graph.weights() if layer is self]
        own.sort(key=lambda each: not each[0].trainable)
        return {weight.name: name for weight, name in own}


def fitting(where: str, name: str, value: Any, known: Any) -> Array:
    """Return a copy of a value that a variable is to have; `known` has its shape and dtype."""
    if np.shape(value) != known.shape:
        raise InputError(f"{where}: {name} has shape {known.shape}, found {np.shape(value)}")
    return np.array(value, known.dtype)


def of_model(model: Any, layers: Sequence[Any]) -> None:
    """Let layers know a model that is made of them."""
    for layer in layers:
        if isinstance(layer, WithWeights):
            layer.used_in.add(model)
