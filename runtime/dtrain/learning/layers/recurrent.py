"""Recurrent layers over [batch, time, features]: SimpleRNN, LSTM, GRU, and RNN of any cells.

`LSTM(64)` is a cell that loops over time with itself; see `dtrain.learning.layers.cells`.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.layers.base import Call, Layer, Weight
from dtrain.learning.layers.cells import GRUCell, LSTMCell, SimpleRNNCell, State, cell_of
from dtrain.types import Array, Arrays, Shape


class TakesStates(Layer):
    """A layer that is called with initial states, of the lengths `state_sizes`."""

    call_arguments: ClassVar[tuple[str, ...]] = ("mask", "initial_state")

    state_sizes: ClassVar[Any]

    def __call__(self, inputs: Any, training: bool | None = None, **arguments: Any) -> Any:
        """Use the layer in a functional model; return its symbolic output (a list with `return_state`).

        Args:
            inputs: a symbolic tensor, or a list of one and the initial states.
            training: see `Layer.__call__`.
            arguments: `mask`: a symbolic tensor [batch, time] in place of the mask that comes with the
                input; `initial_state`: symbolic tensors, such as the states that another layer returned.

        Raises:
            InputError: there are more or fewer initial states than the layer has states.
        """
        if isinstance(inputs, list | tuple) and len(inputs) > 1:
            inputs, *arguments["initial_state"] = inputs
        states = arguments.get("initial_state")
        if states is not None:
            states = list(states) if isinstance(states, list | tuple) else [states]
            arguments["initial_state"] = states
            widths = [getattr(each, "shape", (None,))[-1] for each in states]
            sizes = self.state_sizes
            if widths != sizes:
                raise InputError(
                    f"{self.label}: initial_state: expected {len(sizes)} tensors of the lengths {sizes}, "
                    f"found {len(widths)} of the lengths {widths}"
                )
        return super().__call__(inputs, training, **arguments)


@dataclass(eq=False)
class RecurrentLayer(TakesStates):
    """Base of the recurrent layers, which loop over time with a cell: themselves, or that of an `RNN`.

    The output is the last hidden state, or with `return_sequences` all of them [batch, time, units];
    `return_state` appends the final state (h, or h and c).
    """

    supports_masking = True

    _: KW_ONLY
    return_sequences: bool = False
    return_state: bool = False
    go_backwards: bool = False
    zero_output_for_mask: bool = False
    unroll: bool = False

    @property
    def _cell(self) -> Any:
        return self

    def output_shape(self, input_shape: Shape) -> Any:
        """Return the output's shape; with `return_state` followed by those of the final states."""
        self.expect(len(input_shape) == 2, "3 axes: batch, time, features", input_shape)
        units = self._cell.units
        output = (input_shape[0], units) if self.return_sequences else (units,)
        return [output, *((n,) for n in self._cell.state_sizes)] if self.return_state else output

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return the input's mask with `return_sequences`, else None."""
        of_output = mask if self.return_sequences else None
        return [of_output] + [None] * len(self._cell.state_sizes) if self.return_state else of_output

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Any, Any]:
        """Loop over time."""
        batch, times, _ = x.shape
        if call.mask is not None and call.mask.shape != (batch, times):
            raise InputError(
                f"{self.label}: mask: expected shape ({batch}, {times}), found {call.mask.shape}"
            )
        way = slice(None, None, -1 if self.go_backwards else 1)
        steps = np.ascontiguousarray(x.swapaxes(0, 1)[way])
        mask = None if call.mask is None else call.mask.swapaxes(0, 1)[way, :, np.newaxis]
        first: State = tuple(
            call.arguments.get(f"initial_state/{number}", np.zeros((batch, size), np.float32))
            for number, size in enumerate(self._cell.state_sizes)
        )
        hidden, state, cache = self._cell.run(weights, steps, first, mask, call)
        mask = mask if self.zero_output_for_mask else None
        if mask is not None:
            hidden = hidden * mask
        if self.return_sequences:
            output = hidden.swapaxes(0, 1)
        else:
            output = hidden[-1] if times else np.zeros((batch, self._cell.units), np.float32)
        return [output, *state] if self.return_state else output, (cache, batch, times, mask)

    def backward(self, weights: Arrays, cache: Any, dy: Any, gradients: Arrays, call: Call) -> Any:
        """Go back through time: each time's gradient comes from its output and from the time after it."""
        caches, batch, times, mask = cache
        doutput, *dstate = [*dy] if self.return_state else [dy]
        if not self.return_state:
            dstate = [np.zeros((batch, size), np.float32) for size in self._cell.state_sizes]
        dhidden: Any = [*[None] * (times - 1), doutput]
        if self.return_sequences:
            dhidden = doutput.swapaxes(0, 1)
        if mask is not None:
            dhidden = [None if each is None else each * at for each, at in zip(dhidden, mask, strict=True)]
        dsteps, dfirst = self._cell.run_back(weights, caches, dhidden, tuple(dstate), gradients)
        for number, gradient in enumerate(dfirst):
            call.argument_gradients[f"initial_state/{number}"] = gradient
        return dsteps[:: -1 if self.go_backwards else 1].swapaxes(0, 1)


@dataclass(eq=False)
class RNN(RecurrentLayer):
    """A cell over all times.

    Shapes: [batch, time, features] becomes [batch, units], with `return_sequences` [batch, time, units].
    `return_state` appends the states, each [batch, units].

    Differs from Keras: cells are those of dtrain, no classes of one's own and no stacks.

    Args:
        cell: a `SimpleRNNCell`, `LSTMCell` or `GRUCell`.
        return_sequences: whether the outputs of all times are returned, not the last alone.
        return_state: whether the final states follow the output in a list.
        go_backwards: whether time runs from the end to the beginning.
        zero_output_for_mask: whether the output is 0 where the mask is False.
        unroll: without effect.

    Raises:
        SpecError: `cell` is no cell.
    """

    cell: Any

    def __post_init__(self) -> None:
        self.cell = cell_of(self.cell, self.label)

    @property
    def _cell(self) -> Any:
        return self.cell

    @property
    def state_sizes(self) -> list[int]:
        """The lengths of the cell's states."""
        return list(self.cell.state_sizes)

    def declare(self, input_shape: Shape) -> Sequence[Weight]:
        """Return the weights of the cell."""
        return list(self.cell.declare(input_shape))


@dataclass(eq=False)
class SimpleRNN(RecurrentLayer, SimpleRNNCell):
    """``h' = activation(x @ kernel + h @ recurrent_kernel + bias)``.

    Shapes: [batch, time, features] becomes [batch, units], with `return_sequences` [batch, time, units].

    Differs from Keras: `recurrent_dropout` drops the same places of the state for all gates, and no state is
    kept from one batch to the next.

    Args:
        units: length of the state, and of the output.
        activation: the activation of the candidate and of the state.
        use_bias: whether there is a bias.
        kernel_initializer: first values of the kernel: a name or an `Initializer`.
        recurrent_initializer: first values of the kernel of the state.
        bias_initializer: first values of the bias.
        kernel_regularizer: penalty on the kernel: a name, a `Regularizer` or None.
        recurrent_regularizer: penalty on the kernel of the state.
        bias_regularizer: penalty on the bias.
        kernel_constraint: a limit of the kernel, kept after each update: a name or a `Constraint`.
        recurrent_constraint: a limit of the kernel of the state, likewise.
        bias_constraint: a limit of the bias, likewise.
        dropout: fraction of the input features that is dropped, the same at all times of an example.
        recurrent_dropout: fraction of the state that the recurrent kernel is not fed with, likewise.
        return_sequences: whether the states of all times are returned, not the last alone.
        return_state: whether the final state follows the output in a list.
        go_backwards: whether time runs from the end to the beginning.
        zero_output_for_mask: whether the output is 0 where the mask is False.
        unroll: without effect.
    """


@dataclass(eq=False)
class LSTM(RecurrentLayer, LSTMCell):
    """``c' = f * c + i * activation(z_c)`` and ``h' = o * activation(c')``, with gates i, f and o.

    All four come from ``z = x @ kernel + h @ recurrent_kernel + bias``; with `unit_forget_bias` f begins
    open.

    Shapes: [batch, time, features] becomes [batch, units], with `return_sequences` [batch, time, units].
    `return_state` appends h and c, each [batch, units].

    Differs from Keras: `recurrent_dropout` drops the same places of the state for all gates, and no state is
    kept from one batch to the next.

    Args:
        units: length of the state, and of the output.
        activation: the activation of the candidate and of the state.
        recurrent_activation: the activation of the gates.
        unit_forget_bias: whether the bias of the forget gate begins with 1.
        use_bias: whether there is a bias.
        kernel_initializer: first values of the kernel: a name or an `Initializer`.
        recurrent_initializer: first values of the kernel of the state.
        bias_initializer: first values of the bias.
        kernel_regularizer: penalty on the kernel: a name, a `Regularizer` or None.
        recurrent_regularizer: penalty on the kernel of the state.
        bias_regularizer: penalty on the bias.
        kernel_constraint: a limit of the kernel, kept after each update: a name or a `Constraint`.
        recurrent_constraint: a limit of the kernel of the state, likewise.
        bias_constraint: a limit of the bias, likewise.
        dropout: fraction of the input features that is dropped, the same at all times of an example.
        recurrent_dropout: fraction of the state that the recurrent kernel is not fed with, likewise.
        return_sequences: whether the states of all times are returned, not the last alone.
        return_state: whether the final state follows the output in a list.
        go_backwards: whether time runs from the end to the beginning.
        zero_output_for_mask: whether the output is 0 where the mask is False.
        unroll: without effect.
    """


@dataclass(eq=False)
class GRU(RecurrentLayer, GRUCell):
    """``h' = z * h + (1 - z) * activation(candidate)``, with gates z (update) and r (reset).

    With `reset_after` the candidate is ``x_h + r * (h @ recurrent_kernel_h + recurrent bias)`` and there are
    two rows of biases, for inputs and state; without, it is ``x_h + (r * h) @ recurrent_kernel_h``.

    Shapes: [batch, time, features] becomes [batch, units], with `return_sequences` [batch, time, units].

    Differs from Keras: `recurrent_dropout` drops the same places of the state for all gates, and no state is
    kept from one batch to the next.

    Args:
        units: length of the state, and of the output.
        activation: the activation of the candidate and of the state.
        recurrent_activation: the activation of the gates.
        reset_after: whether the reset gate comes after the product with the state.
        use_bias: whether there is a bias.
        kernel_initializer: first values of the kernel: a name or an `Initializer`.
        recurrent_initializer: first values of the kernel of the state.
        bias_initializer: first values of the bias.
        kernel_regularizer: penalty on the kernel: a name, a `Regularizer` or None.
        recurrent_regularizer: penalty on the kernel of the state.
        bias_regularizer: penalty on the bias.
        kernel_constraint: a limit of the kernel, kept after each update: a name or a `Constraint`.
        recurrent_constraint: a limit of the kernel of the state, likewise.
        bias_constraint: a limit of the bias, likewise.
        dropout: fraction of the input features that is dropped, the same at all times of an example.
        recurrent_dropout: fraction of the state that the recurrent kernel is not fed with, likewise.
        return_sequences: whether the states of all times are returned, not the last alone.
        return_state: whether the final state follows the output in a list.
        go_backwards: whether time runs from the end to the beginning.
        zero_output_for_mask: whether the output is 0 where the mask is False.
        unroll: without effect.
    """
