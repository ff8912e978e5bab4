"""`Sequential`: a model that is a stack of layers."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from dtrain.errors import InputError
from dtrain.learning.configuration import NO_OBJECTS, CustomObjects
from dtrain.learning.layers import Input, InputLayer, Layer, SymbolicTensor
from dtrain.learning.networks import Network
from dtrain.training.models import Model

Item = Layer | Model | SymbolicTensor


class Sequential(Model):
    """A stack of layers: ``Sequential([dt.layers.Dense(64, activation="relu"), dt.layers.Dense(10)])``.

    A model may stand among them, for its layers, whose variables' values the two models share.
    """

    def __init__(self, layers: Sequence[Item] | Item = (), name: str | None = None) -> None:
        super().__init__(name=name)
        self._stack: list[Item] = []
        for layer in [layers] if isinstance(layers, Item) else layers:
            self.add(layer)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: CustomObjects = NO_OBJECTS) -> Self:
        """A model of the layers that `get_config` described."""
        model = super().from_config(config, custom_objects)
        model._stack = list(model.network.layers)
        return model

    def add(self, layer: Item) -> None:
        """Put a layer on top.

        Raises:
            InputError: the stack is already in use, or this is no layer.
        """
        if not isinstance(layer, Item):
            raise InputError(f"{self.name}: expected a layer such as dtrain.layers.Dense(10), found {layer!r}")
        if self._network is not None:
            raise InputError(f"{self.name}: layers can only be added before the model is used")
        self._stack.append(layer)

    @property
    def network(self) -> Network:
        """The layers as a whole."""
        if self._network is None and self._stack:
            layers = [each for each in self._stack if not isinstance(each, Model)]
            self._network = Network(layers) if len(layers) == len(self._stack) else self._of_models()
        return super().network

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer once, in the order of use, without the input that stands before them."""
        return tuple(layer for layer in super().layers if not isinstance(layer, InputLayer))

    @property
    def built(self) -> bool:
        """Whether the variables' shapes are known."""
        return bool(self._stack) and self.network.built

    def _of_models(self) -> Network:
        """What it is where models stand in the stack."""
        begin, *rest = self._stack
        if not isinstance(begin, SymbolicTensor):
            shape = begin.network.input_shapes[0] if isinstance(begin, Model) and begin.built else begin.input_shape
            if shape is None:
                raise InputError(f"{self.name}: the first layer of a stack with a model in it needs an input_shape")
            begin, rest = Input(shape), self._stack
        tensor = begin
        for item in rest:
            assert not isinstance(item, SymbolicTensor)
            tensor = item(tensor)
        return Network.from_graph(begin, tensor)
