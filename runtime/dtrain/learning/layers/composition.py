"""Layers whose `call` composes other layers and functions of dt; the gradient is autograd's.

While a `call` runs, its `CallFrame` says where its weights and those of the layers that it calls are. The
weights of inner layers are the outer one's, called ``<inner layer>/<weight>``. They become known by a trial:
`call` runs on ones, for two sizes of the batch, in place of inner layers arrays of the shape of their output.
What differs between the two has an unknown length.
"""

import inspect
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np

from dtrain.errors import InputError, ProgramError
from dtrain.learning.core.arrays import as_float32, shape_text
from dtrain.learning.functions.recording import Backward, Forward, Recording, bare, compute
from dtrain.learning.functions.tensors import CHANCE, Source, leaves, plain, tensor
from dtrain.learning.layers.base import Call, CallArguments, Layer, Weight
from dtrain.types import Array, Arrays

SIZES = (2, 3)
"""The sizes of the batch in a trial."""
LENGTHS = (12, 17)
"""Lengths that are tried where they are unknown."""


class LayerWeight(Source):
    """A weight that `add_weight` has made; it stands for its value.

    Args:
        layer: whose weight it is.
        declared: name, shape, initializer, ...
    """

    def __init__(self, layer: Layer, declared: Weight) -> None:
        self.layer = layer
        self.trainable = declared.trainable
        self.name = declared.name
        self.shape = declared.shape
        self.dtype = np.dtype(declared.dtype)

    def read(self) -> Any:
        """Return the value in the step that is computed, or that of the model with the layer."""
        frame = FRAME.get()
        if frame is not None and self.layer in frame.prefixes:
            return frame.weights[frame.prefixes[self.layer] + self.name]
        if self.layer.built:
            return self._variable().read()
        raise ProgramError(
            f"{self.layer.label}: its weight {self.name} has no value before the layer is called"
        )

    def assign(self, value: Any) -> None:
        """Take a new value; within `call` in training, of a weight with ``trainable=False``."""
        frame = FRAME.get()
        if frame is None and self.layer.built:
            self._variable().assign(value)
        elif frame is None or self.trainable or self.layer not in frame.prefixes:
            raise ProgramError(
                f"{self.layer.label}: {self.name}: expected assign of a layer that is built, or within "
                "`call` of a weight with trainable=False"
            )
        else:
            name = frame.prefixes[self.layer] + self.name
            frame.weights[name] = new = np.array(bare(value), self.dtype)
            if frame.call.training:
                frame.call.updates[name] = new

    def _variable(self) -> Any:
        owner = self.layer._owner()
        return owner.in_replicas().by_name[self.layer._names(owner)[self.name]]

    def __repr__(self) -> str:
        return f"<LayerWeight {self.layer.label} {self.name} {self.shape}>"


class CallFrame:
    """One run of a layer's `call`.

    Attributes:
        weights: values by name, of the layer and of those within; it may be changed.
        call: the circumstances of the step.
        prefixes: of the names of each layer's weights.
        declared: the weights of inner layers, in a trial; None in a step.
    """

    def __init__(
        self, layer: Layer, weights: dict[str, Any], call: Call, declared: dict[str, Weight] | None = None
    ) -> None:
        self.weights = weights
        self.call = call
        self.declared = declared
        self.prefixes: dict[Layer, str] = {layer: ""}
        self._taken: set[str] = set()

    def run(
        self, layer: Layer, tensors: Sequence[Any], training: bool | None, arguments: CallArguments
    ) -> Any:
        """Return the output of an inner layer for its inputs and, behind them, arguments that are tensors."""
        values = [tensor(plain(each)) for each in tensors]
        prefix = self._prefix(layer)
        if self.declared is not None:
            return self._tried(layer, prefix, values, arguments)
        names = [name for name in self.weights if name.startswith(prefix)]
        trains = self.call.training if training is None else training
        call = Call(trains, self.call.rng, sums=self.call.sums, goes_back=self.call.goes_back)
        weights = {name.removeprefix(prefix): self.weights[name] for name in names}
        run = _of_layer(layer, len(values), list(weights), call, arguments)
        result = compute(layer.label, *run, *values, *weights.values())
        for name, value in call.updates.items():
            self.weights[prefix + name] = self.call.updates[prefix + name] = value
        return list(result) if isinstance(result, tuple) else result

    def _prefix(self, layer: Layer) -> str:
        if layer not in self.prefixes:
            own = layer.name if layer.name and not layer.numbered else layer.base_name
            names = (f"{own}_{number}" if number else own for number in count())
            name = next(name for name in names if name not in self._taken)
            self._taken.add(name)
            self.prefixes[layer] = f"{name}/"
        return self.prefixes[layer]

    def _tried(self, layer: Layer, prefix: str, values: list[Any], arguments: CallArguments) -> Any:
        shapes = [np.shape(each)[1:] for each in values[: len(values) - len(arguments.tensors)]]
        given: Any = shapes if layer.takes_list else shapes[0]
        assert self.declared is not None
        for weight in layer.declare(given):
            trainable = weight.trainable and layer.trainable
            name = prefix + weight.name
            self.declared[name] = replace(weight, name=name, trainable=trainable, sparse=False)
        made = layer.shape_of_use(given, arguments)
        size = len(values[0])
        ones = [np.ones((size, *shape), np.float32) for shape in (made if isinstance(made, list) else [made])]
        return ones if isinstance(made, list) else ones[0]

    def in_order(self, layer: Layer) -> dict[str, Weight]:
        """Return the weights that a trial has found in Keras's order: by the layer's attributes."""
        parts = [part for each in leaves(vars(layer)) for part in (each, *getattr(each, "layers", ()))]
        places = [self.prefixes[each] for each in parts if isinstance(each, Layer) and each in self.prefixes]
        declared = self.declared or {}
        own = [name for name in declared if "/" not in name]
        inner = [name for place in places for name in declared if place and name.startswith(place)]
        return {name: declared[name] for name in [*own, *inner, *declared]}


FRAME: ContextVar[CallFrame | None] = ContextVar("frame", default=None)
"""The run of a `call` in which a line stands; None: in none."""


def _of_layer(
    layer: Layer, n: int, names: list[str], call: Call, arguments: CallArguments
) -> tuple[Forward, Backward]:
    """Return forward and backward of one layer within another, functions of `n` inputs and the named weights.

    The last of the inputs are the arguments of the call that are tensors.
    """
    first = n - len(arguments.tensors)
    cache: Any = None

    def forward(*arrays: Array) -> Any:
        nonlocal cache
        x: list[Any] = list(arrays[:first])
        if not layer.any_dtype:
            x = [as_float32(each, layer.label) for each in x]
        given = dict(zip(arguments.tensors, arrays[first:n], strict=True))
        call.arguments = {**arguments.options, **given}
        call.mask = given.get("mask", [None] * first if layer.takes_list else None)
        weights = dict(zip(names, arrays[n:], strict=True))
        y, cache = layer.forward(weights, x if layer.takes_list else x[0], call)
        return tuple(np.array(each) for each in y) if isinstance(y, list) else np.array(y)

    def backward(gradient: Any, *arrays: Array) -> list[Any]:
        weights = dict(zip(names, arrays[n:], strict=True))
        places = {name: np.zeros_like(array) for name, array in weights.items()}
        several = isinstance(gradient, tuple)
        dy: Any = [np.array(each, np.float32) for each in (gradient if several else [gradient])]
        dx = layer.backward(weights, cache, dy if several else dy[0], places, call)
        of_arguments = map(call.argument_gradients.get, arguments.tensors)
        return [*(dx if layer.takes_list else [dx]), *of_arguments, *places.values()]

    return forward, backward


class Composition:
    """The `call` of a layer: its weights, shapes, forward and backward."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._own: dict[str, Weight] = {}
        self._built = False
        self._tried: dict[Any, tuple[Any, dict[str, Weight], Any]] = {}
        self._declared: dict[str, Weight] = {}

    @cached_property
    def _parameters(self) -> Sequence[str]:
        return tuple(inspect.signature(self._layer.call).parameters)

    def add(self, declared: Weight) -> LayerWeight:
        base = declared.name or "variable"
        names = (base if number == 0 else f"{base}_{number}" for number in count())
        declared = replace(declared, name=next(name for name in names if name not in self._own))
        self._own[declared.name] = declared
        return LayerWeight(self._layer, declared)

    def declare(self, input_shape: Any) -> list[Weight]:
        return [*self._trial(input_shape)[1].values()]

    def output_shape(self, input_shape: Any) -> Any:
        return self._trial(input_shape)[0]

    def output_dtype(self, input_shape: Any) -> Any:
        return self._trial(input_shape)[2]

    def forward(self, weights: Arrays, x: Any, call: Call) -> tuple[Any, Any]:
        """Return the output; where `backward` may follow, the cache is the recording of the run."""
        values: list[Any] = [_single(each) for each in (x if self._layer.takes_list else [x])]
        trained = [name for name, weight in self._declared.items() if weight.trainable]
        floats = [each.dtype.kind == "f" for each in values]
        seen: dict[str, Any] = dict(weights)
        recording = None
        if call.goes_back and (call.needs_input_gradient or trained):
            recording = Recording()
            watched = zip(values, floats, strict=True)
            values = [recording.watch(each) if is_float else each for each, is_float in watched]
            seen |= {name: recording.watch(weights[name]) for name in trained}
        y = self._run(values, CallFrame(self._layer, seen, call))
        outputs = y if isinstance(y, list) else [y]
        arrays = [np.asarray(bare(each)) for each in outputs]
        return (arrays if isinstance(y, list) else arrays[0]), (recording, outputs, floats, trained)

    def backward(self, cache: Any, dy: Any, gradients: Arrays) -> Any:
        """Fill the gradients of the weights, and return those of the inputs; whole numbers have none."""
        recording, outputs, floats, trained = cache
        upstream = dy if isinstance(dy, list) else [dy]
        target = outputs[0], upstream[0]
        if len(outputs) > 1:
            target = sum(np.sum(y * each) for y, each in zip(outputs, upstream, strict=True)), None
        found = recording.gradients(*target)
        inputs = [found.pop(0) if is_float else None for is_float in floats]
        by_name = dict(zip(trained, found, strict=True))
        for name, place in gradients.items():
            place[...] = 0 if by_name.get(name) is None else by_name[name]
        return inputs if self._layer.takes_list else inputs[0]

    def _run(self, values: list[Any], frame: CallFrame) -> Any:
        given = values if self._layer.takes_list else values[0]
        rng = frame.call.rng if frame.call.goes_back or frame.call.training else None
        tokens = FRAME.set(frame), CHANCE.set(None if rng is None else lambda: rng)
        found = {"training": frame.call.training, "mask": frame.call.mask}
        named = {name: value for name, value in found.items() if name in self._parameters[1:]}
        try:
            y = self._layer.call(given, **named)
        finally:
            FRAME.reset(tokens[0])
            CHANCE.reset(tokens[1])
        if y is None:
            raise ProgramError(f"{self._layer.label}: expected `call` to return its output, found None")
        return [plain(each) for each in y] if isinstance(y, list | tuple) else plain(y)

    def _trial(self, input_shape: Any) -> tuple[Any, dict[str, Weight], Any]:
        """Return the output's shape, all weights and the output's dtype for an input's, of one example."""
        shapes = [tuple(each) for each in input_shape] if self._layer.takes_list else [tuple(input_shape)]
        if (key := tuple(shapes)) in self._tried:
            return self._tried[key]
        if not self._built:
            self._built = True
            batches: list[Any] = [(None, *shape) for shape in shapes]
            self._layer.build(batches if self._layer.takes_list else batches[0])
        if loose := [name for name, each in vars(self._layer).items() if _is_loose(each)]:
            raise ProgramError(
                f"{self._layer.label}: self.{loose[0]} is a Variable, which no model would train; make it "
                "with self.add_weight"
            )

        found = []
        for size, length in zip(SIZES, LENGTHS, strict=True):
            declared = dict(self._own)
            ones = {name: np.ones(weight.shape, weight.dtype) for name, weight in declared.items()}
            given = [
                np.ones((size, *(length if n is None else n for n in shape)), np.float32) for shape in shapes
            ]
            call = Call(rng=np.random.default_rng(0))
            masks = [np.ones(each.shape[:2], bool) for each in given]
            call.mask = masks if self._layer.takes_list else masks[0]
            frame = CallFrame(self._layer, ones, call, declared)
            try:
                with np.errstate(all="ignore"):
                    found.append((self._run(given, frame), frame.in_order(self._layer)))
            except (ValueError, IndexError) as error:
                wanted = ", ".join(map(shape_text, shapes))
                raise InputError(
                    f"{self._layer.label}: cannot be computed for inputs of shape {wanted}, tried with a "
                    f"batch of {size}: {error}"
                ) from error
        (one, self._declared), (other, again) = found
        if self._declared != again:
            raise InputError(f"{self._layer.label}: its weights need a length of {shapes} that is unknown")
        dtype = np.asarray(one[0] if isinstance(one, list) else one).dtype
        self._tried[key] = _shape_of(self._layer.label, (one, other)), self._declared, dtype
        return self._tried[key]


def _is_loose(value: Any) -> bool:
    return isinstance(value, Source) and not isinstance(value, LayerWeight)


def _single(value: Array) -> Array:
    return value.astype(np.float32) if value.dtype == np.float64 else value


def _shape_of(label: str, runs: Sequence[Any]) -> Any:
    """Return the shape of one example in what two trials gave; a list if they gave several results."""
    if isinstance(runs[0], list):
        return [_shape_of(label, each) for each in zip(*runs, strict=True)]
    lengths = list(zip(*map(np.shape, runs), strict=True))
    if not lengths or lengths[0] != SIZES:
        raise InputError(
            f"{label}: expected the examples along the first axis of the result, found shape "
            f"{np.shape(runs[0])} for {SIZES[0]} examples; name the axes, as in axis=1"
        )
    return tuple(one if one == other else None for one, other in lengths[1:])


def arrays_of(layer: Layer, inputs: Any) -> tuple[Any, ...]:
    """Return the arrays that a layer is called on; raise an error that names it if they are none."""
    if isinstance(inputs, str | bytes | Mapping | None):
        raise ProgramError(f"{layer.label}: expected an array or a symbol, found {inputs!r}")
    several = isinstance(inputs, list | tuple) and (layer.takes_list or layer.composition is not None)
    if layer.takes_list and not several:
        raise InputError(f"{layer.label}: expected a list of inputs, found {type(inputs).__name__}")
    return tuple(tensor(plain(each)) for each in (inputs if several else [inputs]))


def at_once(layer: Layer, tensors: Sequence[Any], training: bool | None, arguments: CallArguments) -> Any:
    """Return the output of a layer for arrays: within the `call` of another, or of a model of its own."""
    frame = FRAME.get()
    if frame is not None:
        return frame.run(layer, tensors, training, arguments)
    shapes = [np.shape(each)[1:] for each in tensors]
    model = import_module("dtrain.training.models").model_of(layer, shapes, arguments)
    return model(tensors if len(tensors) > 1 else tensors[0], training)
