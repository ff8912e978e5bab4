"""`Sequential`: a model that is a stack of layers."""

from collections.abc import Sequence
from typing import Any, Self

from dtrain.errors import InputError
from dtrain.learning.graphs.networks import Network
from dtrain.learning.layers import InputLayer, Layer, SymbolicTensor
from dtrain.training.architecture import CLASSES, submodel
from dtrain.training.models import Model

Item = Layer | Model | SymbolicTensor


class Sequential(Model):
    """A stack of layers: ``Sequential([dt.layers.Dense(64, activation="relu"), dt.layers.Dense(10)])``.

    A model may stand among them like a layer; the two models share the values of its variables.

    Args:
        layers: layers, models, or a `dt.Input` as the first; more with `add`.
        name: of the model; None: its class's name in lower case.
    """

    def __init__(self, layers: Sequence[Item] | Item = (), name: str | None = None) -> None:
        super().__init__(name=name)
        self._stack: list[Item] = []
        for layer in [layers] if isinstance(layers, Item) else layers:
            self.add(layer)

    @classmethod
    def of_network(cls, network: Network, name: str) -> Self:
        """Return a model of these layers."""
        model = super().of_network(network, name)
        model._stack = list(network.layers)
        return model

    def add(self, layer: Item) -> None:
        """Add a layer at the end.

        Raises:
            InputError: the stack is already in use, or this is no layer.
        """
        if not isinstance(layer, Item):
            raise InputError(
                f"{self.name}: expected a layer such as dtrain.layers.Dense(10), found {layer!r}"
            )
        if self._network is not None:
            raise InputError(
                f"{self.name}: layers can only be added before the model is used; make a model of its layers "
                "and this one, Sequential([*model.layers, layer]), which keeps their values"
            )
        self._stack.append(layer)

    @property
    def network(self) -> Network:
        """The layers as a whole."""
        if self._network is None and self._stack:
            self._network = Network(
                [submodel(each) if isinstance(each, Model) else each for each in self._stack]
            )
        return super().network

    @property
    def layers(self) -> list[Any]:
        """Every layer and model once, in the order of use, without the input that stands before them."""
        return [layer for layer in super().layers if not isinstance(layer, InputLayer)]

    @property
    def built(self) -> bool:
        """True if the variables' shapes are known."""
        return bool(self._stack) and self.network.built


CLASSES["Sequential"] = Sequential
