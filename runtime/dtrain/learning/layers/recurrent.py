"""Recurrent layers over [batch, time, features]: SimpleRNN, LSTM and GRU, as Keras computes them.

All share one loop: the inputs' part of every gate is one matrix product over all times, then each time adds
the state's part. Gates lie side by side on the last axis: i, f, c, o (LSTM) and z, r, h (GRU). A cell is a
pair of functions, forward and back.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core import activations, initializers
from dtrain.learning.core.activations import Activation, ActivationLike
from dtrain.learning.core.initializers import Initializer, InitializerLike
from dtrain.learning.core.regularizers import RegularizerLike
from dtrain.learning.layers.base import Call, Layer, Weight
from dtrain.learning.layers.shaping import dropout_mask
from dtrain.types import Array, Arrays, Shape

State = tuple[Array, ...]
"""The hidden state h [batch, units], and for an LSTM the cell's c."""


@dataclass(eq=False)
class _Recurrent(Layer):
    """Base of the recurrent layers.

    `dropout` drops the same input features at all times of an example. The output is the last hidden state,
    or with `return_sequences` all of them [batch, time, units]; `return_state` appends the final state (h, or
    h and c).
    """

    GATES: ClassVar[int]
    STATES: ClassVar[int] = 1

    units: int
    activation: ActivationLike = "tanh"
    _: KW_ONLY
    use_bias: bool = True
    kernel_initializer: InitializerLike = "glorot_uniform"
    recurrent_initializer: InitializerLike = "orthogonal"
    bias_initializer: InitializerLike = "zeros"
    kernel_regularizer: RegularizerLike = None
    recurrent_regularizer: RegularizerLike = None
    bias_regularizer: RegularizerLike = None
    dropout: float = 0.0
    return_sequences: bool = False
    return_state: bool = False
    go_backwards: bool = False
    unroll: bool = False

    def __post_init__(self) -> None:
        self.expect_positive(units=self.units)
        if not 0 <= self.dropout < 1:
            raise SpecError(f"{self.label}: expected dropout in [0, 1), found {self.dropout}")
        self._function = activations.get(self.activation)

    def declare(self, input_shape: Shape) -> Sequence[Weight]:
        """Return kernel [features, gates], recurrent_kernel [units, gates] and bias."""
        width = self.GATES * self.units
        weights = (
            Weight(
                "kernel",
                (self.known_length(input_shape), width),
                self.kernel_initializer,
                self.kernel_regularizer,
            ),
            Weight(
                "recurrent_kernel",
                (self.units, width),
                self.recurrent_initializer,
                self.recurrent_regularizer,
            ),
        )
        bias = Weight("bias", self._bias_shape(), self._bias_begins(), self.bias_regularizer)
        return (*weights, bias) if self.use_bias else weights

    def output_shape(self, input_shape: Shape) -> Any:
        """Return the output's shape; with `return_state` followed by those of the final states."""
        self.expect(len(input_shape) == 2, "3 axes: batch, time, features", input_shape)
        output = (input_shape[0], self.units) if self.return_sequences else (self.units,)
        return [output] + [(self.units,)] * self.STATES if self.return_state else output

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Any, Any]:
        """Loop over time."""
        batch, times, features = x.shape
        steps = np.ascontiguousarray(x.swapaxes(0, 1)[:: -1 if self.go_backwards else 1])
        mask = None
        if call.training and self.dropout:
            mask = dropout_mask(self._generator(call), (batch, features), self.dropout)
            steps = steps * mask
        z = np.matmul(steps.reshape(-1, features), weights["kernel"]).reshape(
            times, batch, self.GATES * self.units
        )
        if self.use_bias:
            z += np.atleast_2d(weights["bias"])[0]
        state: State = (np.zeros((batch, self.units), np.float32),) * self.STATES
        hidden = np.empty((times, batch, self.units), np.float32)
        caches = []
        for time in range(times):
            state, cache = self._step(weights, z[time], state)
            hidden[time] = state[0]
            caches.append(cache)
        output = hidden.swapaxes(0, 1) if self.return_sequences else state[0]
        return [output, *state] if self.return_state else output, (steps, mask, caches)

    def backward(self, weights: Arrays, cache: Any, dy: Any, gradients: Arrays, call: Call) -> Any:
        """Go back through time: each time's gradient comes from its output and from the time after it."""
        steps, mask, caches = cache
        times, batch, features = steps.shape
        doutput, *dstates = (
            dy if self.return_state else [dy, *[np.zeros((batch, self.units), np.float32)] * self.STATES]
        )
        dstate: State = tuple(dstates)
        for gradient in gradients.values():
            gradient.fill(0)
        dz = np.empty((times, batch, self.GATES * self.units), np.float32)
        for time in reversed(range(times)):
            if self.return_sequences:
                dstate = (dstate[0] + doutput[:, time], *dstate[1:])
            elif time == times - 1:
                dstate = (dstate[0] + doutput, *dstate[1:])
            dz[time], dstate = self._step_back(weights, caches[time], dstate, gradients)
        flat = dz.reshape(-1, dz.shape[-1])
        np.matmul(steps.reshape(-1, features).T, flat, out=gradients["kernel"])
        if self.use_bias:
            np.sum(flat, axis=0, out=np.atleast_2d(gradients["bias"])[0])
        dsteps = np.matmul(flat, weights["kernel"].T).reshape(steps.shape)
        if mask is not None:
            dsteps *= mask
        return dsteps[:: -1 if self.go_backwards else 1].swapaxes(0, 1)

    def _bias_shape(self) -> tuple[int, ...]:
        return (self.GATES * self.units,)

    def _bias_begins(self) -> InitializerLike:
        return self.bias_initializer

    def _step(self, weights: Arrays, z: Array, state: State) -> tuple[State, Any]:
        """Return the next state and a cache, from the state and the inputs' part `z`, which may change."""
        raise NotImplementedError

    def _step_back(
        self, weights: Arrays, cache: Any, dstate: State, gradients: Arrays
    ) -> tuple[Array, State]:
        """Return the gradients by z and by the state before; add to the gradient of the recurrent kernel."""
        raise NotImplementedError


@dataclass(eq=False)
class SimpleRNN(_Recurrent):
    """``h' = activation(x @ kernel + h @ recurrent_kernel + bias)``.

    Shapes: [batch, time, features] becomes [batch, units], with `return_sequences` [batch, time, units].

    Differs from Keras: there are no masks, every call begins with a state of zeros, and the state has no
    dropout.

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
        dropout: fraction of the input features that is dropped, the same at all times of an example.
        return_sequences: whether the states of all times are returned, not the last alone.
        return_state: whether the final state follows the output in a list.
        go_backwards: whether time runs from the end to the beginning.
        unroll: without effect.
    """

    GATES: ClassVar[int] = 1

    def _step(self, weights: Arrays, z: Array, state: State) -> tuple[State, Any]:
        z += state[0] @ weights["recurrent_kernel"]
        h, kept = self._function.apply(z)
        return (h,), (state[0], kept)

    def _step_back(
        self, weights: Arrays, cache: Any, dstate: State, gradients: Arrays
    ) -> tuple[Array, State]:
        h_before, kept = cache
        dz = self._function.apply_back(kept, dstate[0])
        gradients["recurrent_kernel"][...] += h_before.T @ dz
        return dz, (dz @ weights["recurrent_kernel"].T,)


@dataclass(eq=False)
class _Gated(_Recurrent):
    recurrent_activation: ActivationLike = "sigmoid"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._gate: Activation = activations.get(self.recurrent_activation)

    def _split(self, gates: Array) -> list[Array]:
        return [gates[..., k * self.units : (k + 1) * self.units] for k in range(self.GATES)]


@dataclass(eq=False)
class LSTM(_Gated):
    """``c' = f * c + i * activation(z_c)`` and ``h' = o * activation(c')``, with gates i, f and o.

    All four come from ``z = x @ kernel + h @ recurrent_kernel + bias``; with `unit_forget_bias` f begins
    open.

    Shapes: [batch, time, features] becomes [batch, units], with `return_sequences` [batch, time, units].
    `return_state` appends h and c, each [batch, units].

    Differs from Keras: there are no masks, every call begins with a state of zeros, and the state has no
    dropout.

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
        dropout: fraction of the input features that is dropped, the same at all times of an example.
        return_sequences: whether the states of all times are returned, not the last alone.
        return_state: whether the final state follows the output in a list.
        go_backwards: whether time runs from the end to the beginning.
        unroll: without effect.
    """

    GATES: ClassVar[int] = 4
    STATES: ClassVar[int] = 2

    unit_forget_bias: bool = True

    def _bias_begins(self) -> InitializerLike:
        return (
            _ForgetBias(self.bias_initializer, self.units) if self.unit_forget_bias else self.bias_initializer
        )

    def _step(self, weights: Arrays, z: Array, state: State) -> tuple[State, Any]:
        h_before, c_before = state
        z += h_before @ weights["recurrent_kernel"]
        z_i, z_f, z_c, z_o = self._split(z)
        (i, kept_i), (f, kept_f), (o, kept_o) = (self._gate.apply(each.copy()) for each in (z_i, z_f, z_o))
        g, kept_g = self._function.apply(z_c.copy())
        c = f * c_before + i * g
        a, kept_a = self._function.apply(c.copy())
        return (o * a, c), (h_before, c_before, (i, f, g, o, a), (kept_i, kept_f, kept_g, kept_o, kept_a))

    def _step_back(
        self, weights: Arrays, cache: Any, dstate: State, gradients: Arrays
    ) -> tuple[Array, State]:
        h_before, c_before, (i, f, g, o, a), (kept_i, kept_f, kept_g, kept_o, kept_a) = cache
        dh, dc = dstate
        dc = dc + self._function.apply_back(kept_a, dh * o)
        dz = np.concatenate(
            [
                self._gate.apply_back(kept_i, dc * g),
                self._gate.apply_back(kept_f, dc * c_before),
                self._function.apply_back(kept_g, dc * i),
                self._gate.apply_back(kept_o, dh * a),
            ],
            axis=1,
        )
        gradients["recurrent_kernel"][...] += h_before.T @ dz
        return dz, (dz @ weights["recurrent_kernel"].T, dc * f)


@dataclass(eq=False)
class GRU(_Gated):
    """``h' = z * h + (1 - z) * activation(candidate)``, with gates z (update) and r (reset).

    With `reset_after` the candidate is ``x_h + r * (h @ recurrent_kernel_h + recurrent bias)`` and there are
    two rows of biases, for inputs and state; without, it is ``x_h + (r * h) @ recurrent_kernel_h``.

    Shapes: [batch, time, features] becomes [batch, units], with `return_sequences` [batch, time, units].

    Differs from Keras: there are no masks, every call begins with a state of zeros, and the state has no
    dropout.

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
        dropout: fraction of the input features that is dropped, the same at all times of an example.
        return_sequences: whether the states of all times are returned, not the last alone.
        return_state: whether the final state follows the output in a list.
        go_backwards: whether time runs from the end to the beginning.
        unroll: without effect.
    """

    GATES: ClassVar[int] = 3

    reset_after: bool = True

    def _bias_shape(self) -> tuple[int, ...]:
        return (2, 3 * self.units) if self.reset_after else (3 * self.units,)

    def _step(self, weights: Arrays, z: Array, state: State) -> tuple[State, Any]:
        (h,) = state
        recurrent = weights["recurrent_kernel"]
        n = 2 * self.units
        if self.reset_after:
            inner = h @ recurrent
            if self.use_bias:
                inner += weights["bias"][1]
            from_state = inner[:, n:]
        else:
            inner = h @ recurrent[:, :n]
        gates, kept_gates = self._gate.apply(z[:, :n] + inner[:, :n])
        update = gates[:, : self.units]
        reset = gates[:, self.units :]
        if not self.reset_after:
            from_state = (reset * h) @ recurrent[:, n:]
        candidate, kept = self._function.apply(
            z[:, n:] + (reset * from_state if self.reset_after else from_state)
        )
        return (update * h + (1 - update) * candidate,), (
            h,
            update,
            reset,
            candidate,
            from_state,
            kept_gates,
            kept,
        )

    def _step_back(
        self, weights: Arrays, cache: Any, dstate: State, gradients: Arrays
    ) -> tuple[Array, State]:
        h, update, reset, candidate, from_state, kept_gates, kept = cache
        (dh_after,) = dstate
        recurrent = weights["recurrent_kernel"]
        n = 2 * self.units
        dcandidate = self._function.apply_back(kept, dh_after * (1 - update))
        dh = dh_after * update
        if self.reset_after:
            dreset = dcandidate * from_state
            dfrom_state = dcandidate * reset
        else:
            dreset_h = dcandidate @ recurrent[:, n:].T
            dreset = dreset_h * h
            dh = dh + dreset_h * reset
        dgates = self._gate.apply_back(
            kept_gates, np.concatenate([dh_after * (h - candidate), dreset], axis=1)
        )
        if self.reset_after:
            dinner = np.concatenate([dgates, dfrom_state], axis=1)
            gradients["recurrent_kernel"][...] += h.T @ dinner
            if self.use_bias:
                gradients["bias"][1] += dinner.sum(axis=0)
            dh += dinner @ recurrent.T
        else:
            gradients["recurrent_kernel"][:, :n] += h.T @ dgates
            gradients["recurrent_kernel"][:, n:] += (reset * h).T @ dcandidate
            dh += dgates @ recurrent[:, :n].T
        return np.concatenate([dgates, dcandidate], axis=1), (dh,)


@dataclass(frozen=True)
class _ForgetBias(Initializer):
    """An LSTM's biases: 1 for the forget gate, which begins open, and another initializer for the rest."""

    others: InitializerLike
    units: int

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        values = initializers.get(self.others)(shape, rng)
        values[self.units : 2 * self.units] = 1
        return values
