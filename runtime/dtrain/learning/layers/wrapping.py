"""Layers around another: Bidirectional and TimeDistributed."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core.arrays import as_float32
from dtrain.learning.layers.base import Call, Layer, Weight, of_part, prefixed
from dtrain.learning.layers.cells import layer_of
from dtrain.learning.layers.merging import Add, Average, Concatenate, Multiply
from dtrain.learning.layers.recurrent import RecurrentLayer, TakesStates
from dtrain.types import Array, Arrays, Shape

MERGES: dict[str, type[Layer]] = {"concat": Concatenate, "sum": Add, "ave": Average, "mul": Multiply}


@dataclass(eq=False)
class Bidirectional(TakesStates):
    """A recurrent layer that reads forwards, and another that reads backwards; their outputs are merged.

    Shapes: [batch, time, features] becomes [batch, 2 * units], with `return_sequences` of the layer [batch,
    time, 2 * units]; [..., units] unless the outputs are concatenated. With `return_state` the final states
    follow, those of the forward layer first. `initial_state` has the states of the forward layer first.

    Args:
        layer: a recurrent layer, of which both ways are made; it is itself not used.
        merge_mode: ``concat``, ``sum``, ``ave``, ``mul``, or None: two outputs in a list.
        backward_layer: reads backwards; it has `go_backwards`. None: as `layer`.

    Raises:
        SpecError: `layer` is not recurrent, or the two do not fit together.
    """

    layer: Any
    merge_mode: str | None = "concat"
    _: KW_ONLY
    backward_layer: Any = None

    def __post_init__(self) -> None:
        self.layer = layer_of(self.layer)
        if not isinstance(self.layer, RecurrentLayer):
            raise SpecError(f"{self.label}: expected a recurrent layer, found {self.layer!r}")
        self._expect_one_of("merge_mode", [*MERGES, None])
        self._merge = None if self.merge_mode is None else MERGES[self.merge_mode]()
        config = self.layer.get_config()
        config["zero_output_for_mask"] = self.layer.return_sequences
        name = self.layer.name or self.layer.base_name
        cls = type(self.layer)
        self.forward_layer: RecurrentLayer = cls.from_config(config | {"name": f"forward_{name}"})
        turned = config | {"name": f"backward_{name}", "go_backwards": not self.layer.go_backwards}
        self.backward_layer = (
            cls.from_config(turned) if self.backward_layer is None else layer_of(self.backward_layer)
        )
        for argument, fits in (("go_backwards", False), ("return_sequences", True), ("return_state", True)):
            same = getattr(self.backward_layer, argument, None) == getattr(self.layer, argument)
            if same is not fits:
                expected = "equal" if fits else "different"
                raise SpecError(
                    f"{self.label}: backward_layer: expected {expected} {argument} of the two layers"
                )

    @property
    def _ways(self) -> tuple[tuple[str, RecurrentLayer], tuple[str, RecurrentLayer]]:
        forward, backward = self.forward_layer, self.backward_layer
        return (forward.name or "forward", forward), (backward.name or "backward", backward)

    def declare(self, input_shape: Shape) -> list[Weight]:
        """Return the weights of both: ``forward_lstm/kernel``, ..."""
        return [each for name, layer in self._ways for each in prefixed(name, layer.declare(input_shape))]

    def output_shape(self, input_shape: Shape) -> Any:
        """Return the shape of the merged output; with `return_state` followed by those of the states."""
        shapes = [layer.output_shape(input_shape) for _, layer in self._ways]
        if not self.layer.return_state:
            shapes = [[shape] for shape in shapes]
        (one, *states), (other, *more) = shapes
        if self._merge is None:
            return [one, other, *states, *more]
        merged = self._merge.output_shape([one, other])
        return [merged, *states, *more] if self.layer.return_state else merged

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return the input's mask for outputs of all times."""
        of_output = mask if self.layer.return_sequences else None
        outputs = [of_output] * (2 if self.merge_mode is None else 1)
        states = [None] * (sum(self._state_counts) if self.layer.return_state else 0)
        return [*outputs, *states] if len(outputs) + len(states) > 1 else of_output

    @property
    def state_sizes(self) -> list[int]:
        """The lengths of the states of both."""
        return [size for _, layer in self._ways for size in layer.state_sizes]

    @property
    def _state_counts(self) -> list[int]:
        return [len(layer.state_sizes) for _, layer in self._ways]

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Any, Any]:
        """Read both ways, turn the second's outputs of all times around, and merge."""
        outputs: list[Array] = []
        states: list[Array] = []
        caches = []
        begin = 0
        for (name, layer), count in zip(self._ways, self._state_counts, strict=True):
            inner = call.of_part(name)
            inner.mask = call.mask
            given = [call.arguments.get(f"initial_state/{begin + n}") for n in range(count)]
            inner.arguments = {f"initial_state/{n}": at for n, at in enumerate(given) if at is not None}
            begin += count
            y, cache = layer.forward(of_part(name, weights), x, inner)
            output, *more = y if self.layer.return_state else [y]
            outputs.append(output)
            states += more
            caches.append((inner, cache))
        one, other = outputs
        if self.layer.return_sequences:
            other = other[:, ::-1]
        if self._merge is None:
            return [one, other, *states], (caches, None)
        merged, kept = self._merge.forward({}, [one, other], call)
        return ([merged, *states] if self.layer.return_state else merged), (caches, kept)

    def backward(self, weights: Arrays, cache: Any, dy: Any, gradients: Arrays, call: Call) -> Any:
        """Take the merged output's gradient apart, and go back both ways."""
        caches, merged = cache
        arrived = list(dy) if isinstance(dy, list) else [dy]
        outputs = 2 if self._merge is None else 1
        parts, states = arrived[:outputs], arrived[outputs:]
        if self._merge is not None:
            parts = self._merge.backward({}, merged, parts[0], {}, call)
        begin = 0
        total: Any = 0
        for number, (name, layer) in enumerate(self._ways):
            inner, kept = caches[number]
            count = self._state_counts[number]
            part = parts[number][:, ::-1] if number and self.layer.return_sequences else parts[number]
            given = [part, *states[begin : begin + count]] if self.layer.return_state else part
            dx = layer.backward(of_part(name, weights), kept, given, of_part(name, gradients), inner)
            total = total + dx
            for n in range(count):
                found = inner.argument_gradients[f"initial_state/{n}"]
                call.argument_gradients[f"initial_state/{begin + n}"] = found
            begin += count
        return total


@dataclass(eq=False)
class TimeDistributed(Layer):
    """A layer that is applied to each time by itself.

    Shapes: [batch, time, ...] becomes [batch, time, ...], with what the layer makes of the other axes.

    Differs from Keras: it takes one layer, no model; the times of a batch are one larger batch for it, also
    for batch normalization.

    Args:
        layer: with one input and one output.

    Raises:
        SpecError: `layer` is no layer, or takes several inputs.
    """

    any_dtype: ClassVar[bool] = True

    layer: Any

    def __post_init__(self) -> None:
        self.layer = layer_of(self.layer)
        if not isinstance(self.layer, Layer) or self.layer.takes_list:
            raise SpecError(
                f"{self.label}: expected a layer with one input, found {self.layer!r}; put a TimeDistributed "
                "around each layer of a model"
            )

    @property
    def sums_over_replicas(self) -> bool:
        """Whether the layer needs them."""
        return bool(self.layer.sums_over_replicas)

    def declare(self, input_shape: Shape) -> list[Weight]:
        """Return the layer's weights."""
        return list(self.layer.declare(input_shape[1:]))

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the time axis, and the layer's output for the others."""
        self.expect(len(input_shape) >= 2, "at least 3 axes: batch, time, features", input_shape)
        inner = self.layer.output_shape(input_shape[1:])
        if isinstance(inner, list):
            raise SpecError(f"{self.label}: expected a layer with one output, found {len(inner)}")
        return (input_shape[0], *inner)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return the layer's mask of each time; else where any of a time is there, of the input's mask."""
        inner = None if mask is None or mask.ndim < 3 else _flat(mask)
        found = self.layer.compute_mask(_flat(inputs), inner)
        if found is not None:
            return found.reshape(*inputs.shape[:2], *found.shape[1:])
        return None if mask is None else mask.any(axis=tuple(range(2, mask.ndim)))

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Apply the layer to all times as one batch."""
        batch, times = x.shape[:2]
        mask = call.mask
        call.mask = None if mask is None or mask.ndim < 3 else _flat(mask)
        rows = _flat(x) if self.layer.any_dtype else as_float32(_flat(x), self.label)
        y, cache = self.layer.forward(weights, rows, call)
        return y.reshape(batch, times, *y.shape[1:]), (x.shape, cache)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Go back through the layer with all times as one batch."""
        shape, inner = cache
        dx = self.layer.backward(weights, inner, np.ascontiguousarray(_flat(dy)), gradients, call)
        return None if dx is None else dx.reshape(shape)


def _flat(x: Array) -> Array:
    return x.reshape(-1, *x.shape[2:])
