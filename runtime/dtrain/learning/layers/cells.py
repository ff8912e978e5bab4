"""Cells of recurrent layers, as Keras computes them: one time, and the loop over all times with one cell.

The inputs' part of every gate is one matrix product over all times, then each time adds the state's part.
Gates lie side by side on the last axis: i, f, c, o (LSTM) and z, r, h (GRU). A cell is a pair of functions,
forward and back.

Where the input's mask is False the state stays as it is, and the output is that of the time before (zeros at
the beginning), as in `tf.keras.backend.rnn`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core import activations, initializers
from dtrain.learning.core.activations import Activation, ActivationLike
from dtrain.learning.core.configuration import from_data
from dtrain.learning.core.constraints import ConstraintLike
from dtrain.learning.core.initializers import Initializer, InitializerLike
from dtrain.learning.core.regularizers import RegularizerLike
from dtrain.learning.layers.base import Call, Layer, Weight
from dtrain.learning.layers.noise import dropout_mask
from dtrain.types import Array, Arrays, Shape

State = tuple[Array, ...]
"""The hidden state h [batch, units], and for an LSTM the cell's c."""


@dataclass(eq=False)
class _Cell(Layer):
    """Base of the cells.

    `dropout` and `recurrent_dropout` drop the same places at all times of an example.
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
    kernel_constraint: ConstraintLike = None
    recurrent_constraint: ConstraintLike = None
    bias_constraint: ConstraintLike = None
    dropout: float = 0.0
    recurrent_dropout: float = 0.0

    def __post_init__(self) -> None:
        self.expect_positive(units=self.units)
        for name in ("dropout", "recurrent_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise SpecError(f"{self.label}: expected {name} in [0, 1), found {getattr(self, name)}")
        self._function = activations.get(self.activation)

    @property
    def state_sizes(self) -> list[int]:
        """The lengths of the states."""
        return [self.units] * self.STATES

    def declare(self, input_shape: Shape) -> Sequence[Weight]:
        """Return kernel [features, gates], recurrent_kernel [units, gates] and bias."""
        width = self.GATES * self.units
        return self._declared(
            kernel=(self.known_length(input_shape), width),
            recurrent_kernel=(self.units, width),
            bias=self._bias_shape(),
        )

    def output_shape(self, input_shape: Any) -> Any:
        """Raise a `SpecError`: a cell alone has no times."""
        raise SpecError(f"{self.label}: a cell computes one time; give it to dt.layers.RNN")

    def run(
        self, weights: Arrays, x: Array, state: State, mask: Array | None, call: Call
    ) -> tuple[Array, State, Any]:
        """Loop over time: return all outputs, the final state, and a cache.

        Args:
            weights: the cell's.
            x: [times, batch, features].
            state: the first one.
            mask: [times, batch, 1] of bool.
            call: for random numbers.
        """
        times, batch, features = x.shape
        dropped = self._drawn(call, self.dropout, (batch, features))
        fed = self._drawn(call, self.recurrent_dropout, (batch, self.units))
        if dropped is not None:
            x = x * dropped
        z = np.matmul(x.reshape(-1, features), weights["kernel"]).reshape(
            times, batch, self.GATES * self.units
        )
        if self.use_bias:
            z += np.atleast_2d(weights["bias"])[0]
        hidden = np.empty((times, batch, self.units), np.float32)
        caches = []
        for time in range(times):
            after, cache = self._step(weights, z[time], state, fed)
            caches.append(cache)
            if mask is None:
                state = after
                hidden[time] = after[0]
            else:
                there = mask[time]
                state = tuple(np.where(there, new, old) for new, old in zip(after, state, strict=True))
                hidden[time] = np.where(there, after[0], hidden[time - 1] if time else np.float32(0))
        return hidden, state, (x, mask, dropped, fed, caches)

    def run_back(
        self, weights: Arrays, cache: Any, dhidden: Sequence[Any], dstate: State, gradients: Arrays
    ) -> tuple[Array, State]:
        """Go back through time; return the gradients by x and by the first state, and fill `gradients`.

        `dhidden` are the gradients by the outputs, None where there is none.
        """
        x, mask, dropped, fed, caches = cache
        for gradient in gradients.values():
            gradient.fill(0)
        dz = np.empty((*x.shape[:2], self.GATES * self.units), np.float32)
        later = np.zeros_like(dstate[0])  # the gradients by outputs that repeat an earlier one
        for time in reversed(range(len(x))):
            dh = dhidden[time]
            if mask is not None:
                there = mask[time]
                dh = later if dh is None else dh + later
                later = dh * ~there
                dh = dh * there
                held = [each * ~there for each in dstate]
                dstate = tuple(each * there for each in dstate)
            if dh is not None:
                dstate = (dstate[0] + dh, *dstate[1:])
            dz[time], dstate = self._step_back(weights, caches[time], dstate, gradients, fed)
            if mask is not None:
                dstate = tuple(each + more for each, more in zip(dstate, held, strict=True))
        flat = dz.reshape(-1, dz.shape[-1])
        np.matmul(x.reshape(-1, x.shape[-1]).T, flat, out=gradients["kernel"])
        if self.use_bias:
            np.sum(flat, axis=0, out=np.atleast_2d(gradients["bias"])[0])
        dx = np.matmul(flat, weights["kernel"].T).reshape(x.shape)
        if dropped is not None:
            dx *= dropped
        return dx, dstate

    def _drawn(self, call: Call, rate: float, shape: tuple[int, ...]) -> Array | None:
        return dropout_mask(self._generator(call), shape, rate) if call.training and rate else None

    def _bias_shape(self) -> tuple[int, ...]:
        return (self.GATES * self.units,)

    def _step(self, weights: Arrays, z: Array, state: State, fed: Array | None) -> tuple[State, Any]:
        """Return the next state and a cache, from the state and the inputs' part `z`, which may change.

        The recurrent kernel is fed with h, or with h times `fed`.
        """
        raise NotImplementedError

    def _step_back(
        self, weights: Arrays, cache: Any, dstate: State, gradients: Arrays, fed: Array | None
    ) -> tuple[Array, State]:
        """Return the gradients by z and by the state before; add to the gradient of the recurrent kernel."""
        raise NotImplementedError


class SimpleRNNCell(_Cell):
    """One time of `SimpleRNN`, for `RNN`.

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
    """

    GATES: ClassVar[int] = 1

    def _step(self, weights: Arrays, z: Array, state: State, fed: Array | None) -> tuple[State, Any]:
        h_fed = _fed(state[0], fed)
        z += h_fed @ weights["recurrent_kernel"]
        h, kept = self._function.apply(z)
        return (h,), (h_fed, kept)

    def _step_back(
        self, weights: Arrays, cache: Any, dstate: State, gradients: Arrays, fed: Array | None
    ) -> tuple[Array, State]:
        h_fed, kept = cache
        dz = self._function.apply_back(kept, dstate[0])
        gradients["recurrent_kernel"][...] += h_fed.T @ dz
        return dz, (_fed(dz @ weights["recurrent_kernel"].T, fed),)


@dataclass(eq=False)
class _Gated(_Cell):
    recurrent_activation: ActivationLike = "sigmoid"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._gate: Activation = activations.get(self.recurrent_activation)

    def _split(self, gates: Array) -> list[Array]:
        return [gates[..., k * self.units : (k + 1) * self.units] for k in range(self.GATES)]


@dataclass(eq=False)
class LSTMCell(_Gated):
    """One time of `LSTM`, for `RNN`.

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
    """

    GATES: ClassVar[int] = 4
    STATES: ClassVar[int] = 2

    unit_forget_bias: bool = True

    def declare(self, input_shape: Shape) -> Sequence[Weight]:
        """Return the weights of any cell; the forget gate's bias begins with 1."""
        kernel, recurrent, *bias = super().declare(input_shape)
        if self.unit_forget_bias:
            opened = _ForgetBias(self.bias_initializer, self.units)
            bias = [replace(each, initializer=opened) for each in bias]
        return [kernel, recurrent, *bias]

    def _step(self, weights: Arrays, z: Array, state: State, fed: Array | None) -> tuple[State, Any]:
        h_fed = _fed(state[0], fed)
        c_before = state[1]
        z += h_fed @ weights["recurrent_kernel"]
        z_i, z_f, z_c, z_o = self._split(z)
        (i, kept_i), (f, kept_f), (o, kept_o) = (self._gate.apply(each.copy()) for each in (z_i, z_f, z_o))
        g, kept_g = self._function.apply(z_c.copy())
        c = f * c_before + i * g
        a, kept_a = self._function.apply(c.copy())
        return (o * a, c), (h_fed, c_before, (i, f, g, o, a), (kept_i, kept_f, kept_g, kept_o, kept_a))

    def _step_back(
        self, weights: Arrays, cache: Any, dstate: State, gradients: Arrays, fed: Array | None
    ) -> tuple[Array, State]:
        h_fed, c_before, (i, f, g, o, a), (kept_i, kept_f, kept_g, kept_o, kept_a) = cache
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
        gradients["recurrent_kernel"][...] += h_fed.T @ dz
        return dz, (_fed(dz @ weights["recurrent_kernel"].T, fed), dc * f)


@dataclass(eq=False)
class GRUCell(_Gated):
    """One time of `GRU`, for `RNN`.

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
    """

    GATES: ClassVar[int] = 3

    reset_after: bool = True

    def _bias_shape(self) -> tuple[int, ...]:
        return (2, 3 * self.units) if self.reset_after else (3 * self.units,)

    def _step(self, weights: Arrays, z: Array, state: State, fed: Array | None) -> tuple[State, Any]:
        (h,) = state
        h_fed = _fed(h, fed)
        recurrent = weights["recurrent_kernel"]
        n = 2 * self.units
        if self.reset_after:
            inner = h_fed @ recurrent
            if self.use_bias:
                inner += weights["bias"][1]
            from_state = inner[:, n:]
        else:
            inner = h_fed @ recurrent[:, :n]
        gates, kept_gates = self._gate.apply(z[:, :n] + inner[:, :n])
        update = gates[:, : self.units]
        reset = gates[:, self.units :]
        if not self.reset_after:
            from_state = (reset * h_fed) @ recurrent[:, n:]
        candidate, kept = self._function.apply(
            z[:, n:] + (reset * from_state if self.reset_after else from_state)
        )
        gated = update, reset, candidate, from_state, kept_gates, kept
        return (update * h + (1 - update) * candidate,), (h, h_fed, *gated)

    def _step_back(
        self, weights: Arrays, cache: Any, dstate: State, gradients: Arrays, fed: Array | None
    ) -> tuple[Array, State]:
        h, h_fed, update, reset, candidate, from_state, kept_gates, kept = cache
        (dh_after,) = dstate
        recurrent = weights["recurrent_kernel"]
        n = 2 * self.units
        dcandidate = self._function.apply_back(kept, dh_after * (1 - update))
        dh_fed: Any = 0
        if self.reset_after:
            dreset = dcandidate * from_state
            dfrom_state = dcandidate * reset
        else:
            dreset_h = dcandidate @ recurrent[:, n:].T
            dreset = dreset_h * h_fed
            dh_fed = dreset_h * reset
        dgates = self._gate.apply_back(
            kept_gates, np.concatenate([dh_after * (h - candidate), dreset], axis=1)
        )
        if self.reset_after:
            dinner = np.concatenate([dgates, dfrom_state], axis=1)
            gradients["recurrent_kernel"][...] += h_fed.T @ dinner
            if self.use_bias:
                gradients["bias"][1] += dinner.sum(axis=0)
            dh_fed = dinner @ recurrent.T
        else:
            gradients["recurrent_kernel"][:, :n] += h_fed.T @ dgates
            gradients["recurrent_kernel"][:, n:] += (reset * h_fed).T @ dcandidate
            dh_fed = dh_fed + dgates @ recurrent[:, :n].T
        return np.concatenate([dgates, dcandidate], axis=1), (dh_after * update + _fed(dh_fed, fed),)


@dataclass(frozen=True)
class _ForgetBias(Initializer):
    """An LSTM's biases: 1 for the forget gate, which begins open, and another initializer for the rest."""

    others: InitializerLike
    units: int

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        values = initializers.get(self.others)(shape, rng)
        values[self.units : 2 * self.units] = 1
        return values


def _fed(h: Array, fed: Array | None) -> Array:
    return h if fed is None else h * fed


def layer_of(given: Any) -> Any:
    """Return a layer within another from itself or from its config."""
    return from_data(given, "layer", import_module(__package__).classes())  # which imports this file


def cell_of(given: Any, label: str) -> Any:
    """Return a cell from itself or from its config; raise a `SpecError` if it is none."""
    cell = layer_of(given) if isinstance(given, Mapping) else given
    if not isinstance(cell, _Cell) or hasattr(cell, "return_sequences"):
        raise SpecError(
            f"{label}: expected a cell, such as dt.layers.LSTMCell(64), found {cell!r}; cells of "
            "one's own have no gradient, and a stack is one RNN behind the other, with return_sequences=True"
        )
    return cell
