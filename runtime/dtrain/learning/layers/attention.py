"""Attention: outputs that are averages of values, weighted by how well keys fit queries.

Both layers share `_Attending`: a softmax over scores, of which masked places lose 1e9, and dropout of
the weights. Queries are [batch, T, dim], values [batch, S, dim], and so are keys, which are the values where
none are given.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core.activations import softmax_along, softmax_along_derivative
from dtrain.learning.core.initializers import InitializerLike
from dtrain.learning.core.regularizers import RegularizerLike
from dtrain.learning.layers.base import Call, CallArguments, Layer, SymbolicTensor, Weight, prefixed
from dtrain.learning.layers.noise import dropout_mask
from dtrain.types import Array, Arrays, Shape

_FAR = np.float32(1e9)


class _Attending(Layer):
    """Base of layers of attention, which are called with a list of queries, values and perhaps keys."""

    takes_list: ClassVar[bool] = True
    dropout: float

    def shape_of_use(self, shapes: Sequence[Shape], arguments: CallArguments) -> Any:
        """Return the output's shape; with `return_attention_scores` a list of it and that of the scores."""
        self.expect(
            len(shapes) in (2, 3), "a list of queries, values and perhaps keys", f"{len(shapes)} inputs"
        )
        for shape in shapes:
            self.expect(len(shape) == 2, "inputs of 3 axes: batch, time, features", shape)
        output = self.output_shape(shapes)
        returns = arguments.options.get("return_attention_scores")
        return [output, self._scores_shape(shapes)] if returns else output

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return the mask of the queries."""
        return mask[0] if mask else None

    def _scores_shape(self, shapes: Sequence[Shape]) -> Shape:
        return (shapes[0][0], shapes[1][0])

    def _attend(self, scores: Array, value: Array, mask: Array | None, call: Call) -> tuple[Array, Any]:
        """Return the weighted averages of the values, and a cache whose first item are the weights."""
        if mask is not None:
            scores = scores - _FAR * ~mask
        share = softmax_along(scores)
        noise = None
        if call.training and self.dropout:
            noise = dropout_mask(self._generator(call), share.shape, self.dropout)
        dropped = share if noise is None else share * noise
        return dropped @ value, (share, dropped, noise, value)

    def _attend_back(self, cache: Any, dy: Array, dshare: Array | None) -> tuple[Array, Array]:
        """Return the gradients by scores and values, from those by output and returned scores."""
        share, dropped, noise, value = cache
        gradient = dy @ value.swapaxes(-1, -2)
        if noise is not None:
            gradient *= noise
        if dshare is not None:
            gradient += dshare
        return softmax_along_derivative(share, gradient), dropped.swapaxes(-1, -2) @ dy


def _both(one: Array | None, other: Array | None) -> Array | None:
    """Return where both masks have something; None is a mask that has everything."""
    return other if one is None else one if other is None else one & other


def _causal(scores: Array) -> Array:
    """Return a mask that lets no time see a later one."""
    return np.tri(scores.shape[-2], scores.shape[-1], dtype=bool)


@dataclass(eq=False)
class Attention(_Attending):
    """Luong's attention, of one head without projections: a key's score is its product with the query.

    Called with a list of symbolic tensors: queries [batch, T, dim], values [batch, S, dim] and perhaps keys:
    ``dt.layers.Attention()([query, value])``. The output is [batch, T, dim]. A call may have `mask` (masks of
    queries and values in a list), `use_causal_mask` and `return_attention_scores`.

    Args:
        use_scale: whether scores are multiplied by a trained number.
        score_mode: ``dot`` alone.
        dropout: fraction of the weights that is dropped while training.

    Raises:
        SpecError: `score_mode` is another.
    """

    call_arguments: ClassVar[tuple[str, ...]] = ("mask", "return_attention_scores", "use_causal_mask")

    use_scale: bool = False
    score_mode: str = "dot"
    _: KW_ONLY
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.score_mode != "dot":
            raise SpecError(f"{self.label}: score_mode: expected dot, found {self.score_mode!r}")

    def declare(self, input_shape: Sequence[Shape]) -> list[Weight]:
        """Return the number by which scores are multiplied."""
        return [Weight("scale", (), "ones")] if self.use_scale else []

    def output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        """Return the queries' times with the values' features."""
        return (input_shape[0][0], input_shape[1][-1])

    def forward(self, weights: Arrays, x: Sequence[Array], call: Call) -> tuple[Any, Any]:
        """Multiply every key by every query, and average the values."""
        query, value, key = x[0], x[1], x[-1]
        products = query @ key.swapaxes(-1, -2)
        of_query, of_value = (call.mask or [None, None])[:2]
        mask = None if of_value is None else of_value[:, np.newaxis]
        mask = _both(mask, _causal(products) if call.arguments.get("use_causal_mask") else None)
        scores = products * weights["scale"] if self.use_scale else products
        y, cache = self._attend(scores, value, mask, call)
        if of_query is not None:
            y = y * of_query[..., np.newaxis]
        returns = bool(call.arguments.get("return_attention_scores"))
        return [y, cache[0]] if returns else y, (x, products, cache, of_query, returns)

    def backward(self, weights: Arrays, cache: Any, dy: Any, gradients: Arrays, call: Call) -> Any:
        """Go back through the averages and the products."""
        x, products, attended, of_query, returns = cache
        dy, dshare = dy if returns else (dy, None)
        if of_query is not None:
            dy = dy * of_query[..., np.newaxis]
        dscores, dvalue = self._attend_back(attended, dy, dshare)
        if self.use_scale:
            gradients["scale"][...] = (dscores * products).sum()
            dscores = dscores * weights["scale"]
        dquery, dkey = dscores @ x[-1], dscores.swapaxes(-1, -2) @ x[0]
        return [dquery, dvalue, dkey] if len(x) == 3 else [dquery, dvalue + dkey]


@dataclass(eq=False)
class MultiHeadAttention(_Attending):
    """Attention of several heads, each with projections of its own (Vaswani et al., 2017).

    Called with symbolic tensors: ``dt.layers.MultiHeadAttention(2, 16)(query, value)``. Queries are [batch,
    T, dim], values and keys [batch, S, dim], the output is [batch, T, dim of the queries]. Masks of the
    inputs and `attention_mask` hide keys.

    Args:
        num_heads: how many heads.
        key_dim: length of the projected queries and keys of a head.
        value_dim: length of the projected values of a head; None: `key_dim`.
        dropout: fraction of the weights that is dropped while training.
        use_bias: whether the projections have biases.
        kernel_initializer: first values of the projections' kernels: a name or an `Initializer`.
        bias_initializer: first values of the biases.
        kernel_regularizer: penalty on the kernels: a name, a `Regularizer` or None.
        bias_regularizer: penalty on the biases.
    """

    call_arguments: ClassVar[tuple[str, ...]] = (
        *("attention_mask", "return_attention_scores", "use_causal_mask", "mask"),
    )

    num_heads: int
    key_dim: int
    value_dim: int | None = None
    dropout: float = 0.0
    use_bias: bool = True
    _: KW_ONLY
    kernel_initializer: InitializerLike = "glorot_uniform"
    bias_initializer: InitializerLike = "zeros"
    kernel_regularizer: RegularizerLike = None
    bias_regularizer: RegularizerLike = None

    def __post_init__(self) -> None:
        self.expect_positive(num_heads=self.num_heads, key_dim=self.key_dim)

    def __call__(  # type: ignore[override]
        self,
        query: SymbolicTensor,
        value: SymbolicTensor,
        key: SymbolicTensor | None = None,
        attention_mask: SymbolicTensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        """Use the layer in a functional model; return its symbolic output, or a list of it and the scores.

        Args:
            query: [batch, T, dim].
            value: [batch, S, dim].
            key: [batch, S, dim]; None: `value`.
            attention_mask: [batch, T, S] of bool, or [batch, heads or 1, T, S]: which keys a query sees.
            return_attention_scores: whether the weights [batch, heads, T, S] are returned, too.
            training: see `Layer.__call__`.
            use_causal_mask: whether a query sees no later key.
        """
        return super().__call__(
            [query, value] if key is None else [query, value, key],
            training,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            use_causal_mask=use_causal_mask,
        )

    def declare(self, input_shape: Sequence[Shape]) -> list[Weight]:
        """Return kernel [dim, heads, length] and bias [heads, length] of each projection, the output's."""
        query, value, key = (self.known_length(each) for each in (*input_shape[:2], input_shape[-1]))
        heads = self.num_heads
        width = self.value_dim or self.key_dim
        shapes = {
            "query": ((query, heads, self.key_dim), (heads, self.key_dim)),
            "key": ((key, heads, self.key_dim), (heads, self.key_dim)),
            "value": ((value, heads, width), (heads, width)),
            "attention_output": ((heads, width, query), (query,)),
        }
        return [
            weight
            for name, (kernel, bias) in shapes.items()
            for weight in prefixed(name, self._declared(kernel=kernel, bias=bias))
        ]

    def output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        """Return the queries' shape."""
        return input_shape[0]

    def _scores_shape(self, shapes: Sequence[Shape]) -> Shape:
        return (self.num_heads, shapes[0][0], shapes[1][0])

    def forward(self, weights: Arrays, x: Sequence[Array], call: Call) -> tuple[Any, Any]:
        """Project queries, keys and values for each head, attend, and project the heads' outputs together."""
        inputs = (("query", x[0]), ("key", x[-1]), ("value", x[1]))
        query, key, value = (self._projected(weights, *each) for each in inputs)
        query *= np.float32(1 / sqrt(self.key_dim))
        scores = query @ key.swapaxes(-1, -2)
        heads, cache = self._attend(scores, value, self._mask(call, scores), call)
        joined = heads.swapaxes(1, 2).reshape(-1, heads.shape[1] * heads.shape[-1])
        kernel = weights["attention_output/kernel"]
        y = joined @ kernel.reshape(-1, kernel.shape[-1])
        if self.use_bias:
            y += weights["attention_output/bias"]
        y = y.reshape(*x[0].shape[:2], kernel.shape[-1])
        returns = bool(call.arguments.get("return_attention_scores"))
        return [y, cache[0]] if returns else y, (x, query, key, cache, joined, returns)

    def backward(self, weights: Arrays, cache: Any, dy: Any, gradients: Arrays, call: Call) -> Any:
        """Go back through the output, the averages, the scores and the projections."""
        x, query, key, attended, joined, returns = cache
        dy, dshare = dy if returns else (dy, None)
        kernel = weights["attention_output/kernel"]
        flat = dy.reshape(-1, dy.shape[-1])
        gradients["attention_output/kernel"][...] = (joined.T @ flat).reshape(kernel.shape)
        if self.use_bias:
            np.sum(flat, axis=0, out=gradients["attention_output/bias"])
        djoined = flat @ kernel.reshape(-1, kernel.shape[-1]).T
        dheads = djoined.reshape(*dy.shape[:2], *kernel.shape[:2]).swapaxes(1, 2)
        dscores, dvalue = self._attend_back(attended, dheads, dshare)
        dquery = dscores @ key * np.float32(1 / sqrt(self.key_dim))
        dkey = dscores.swapaxes(-1, -2) @ query
        projected = (("query", x[0], dquery), ("value", x[1], dvalue), ("key", x[-1], dkey))
        dx = [self._projected_back(weights, name, each, dy, gradients) for name, each, dy in projected]
        return dx if len(x) == 3 else [dx[0], dx[1] + dx[2]]

    def _mask(self, call: Call, scores: Array) -> Array | None:
        """Return which keys each query sees, [batch or 1, heads or 1, T or 1, S]; None: all."""
        masks = call.mask or [None, None]
        mask = None if masks[0] is None else masks[0][:, np.newaxis, :, np.newaxis]
        for each in masks[1:]:
            mask = _both(mask, None if each is None else each[:, np.newaxis, np.newaxis])
        given = call.arguments.get("attention_mask")
        if given is not None:
            given = np.asarray(given, bool)
            mask = _both(mask, given[:, np.newaxis] if given.ndim == 3 else given)
        return _both(mask, _causal(scores) if call.arguments.get("use_causal_mask") else None)

    def _projected(self, weights: Arrays, name: str, x: Array) -> Array:
        """Return [batch, heads, time, length]."""
        kernel = weights[f"{name}/kernel"]
        y = x.reshape(-1, x.shape[-1]) @ kernel.reshape(len(kernel), -1)
        if self.use_bias:
            y += weights[f"{name}/bias"].reshape(-1)
        return y.reshape(*x.shape[:2], *kernel.shape[1:]).swapaxes(1, 2)

    def _projected_back(self, weights: Arrays, name: str, x: Array, dy: Array, gradients: Arrays) -> Array:
        kernel = weights[f"{name}/kernel"]
        flat = dy.swapaxes(1, 2).reshape(-1, kernel[0].size)
        gradients[f"{name}/kernel"][...] = (x.reshape(-1, x.shape[-1]).T @ flat).reshape(kernel.shape)
        if self.use_bias:
            gradients[f"{name}/bias"][...] = flat.sum(axis=0).reshape(kernel.shape[1:])
        return (flat @ kernel.reshape(len(kernel), -1).T).reshape(x.shape)
