"""StringLookup and IntegerLookup: a table of ONNX's extension ``ai.onnx.ml``."""

from typing import Any

import numpy as np
from onnx import TensorProto

from dtrain.errors import SpecError
from dtrain.learning.layers import StringLookup
from dtrain.saving.onnx_export.graph import OnnxGraph, Use, integers

DOMAIN = "ai.onnx.ml"
_NOWHERE = -1


def lookup(graph: OnnxGraph, use: Use) -> str:
    """Map tokens to integers or encodings, or back; raise a `SpecError` if ONNX has no form of it."""
    layer = use.layer
    strings = isinstance(use.layer, StringLookup)
    tokens = layer.get_vocabulary(include_special_tokens=False)
    if not tokens:
        raise SpecError(f"{use.label}: has no vocabulary; give one, or call adapt(data) first")
    if layer.invert:
        table = layer.get_vocabulary()
        ids = graph.operator("Cast", use.x, to=TensorProto.INT64)
        return _translated(graph, ids, list(range(len(table))), table, layer.oov_token)
    if layer.num_oov_indices != 1:
        raise SpecError(
            f"{use.label}: in ONNX unknown tokens have one integer; expected num_oov_indices 1, found "
            f"{layer.num_oov_indices}"
        )
    first = layer.vocabulary_size() - len(tokens)
    keys = list(tokens)
    ids_of = [first + index for index in range(len(tokens))]
    if layer.mask_token is not None:
        keys = [layer.mask_token, *keys]
        ids_of = [0 if layer.output_mode == "int" else _NOWHERE, *ids_of]
    x = use.x if strings else graph.operator("Cast", use.x, to=TensorProto.INT64)
    ids = _translated(graph, x, keys, ids_of, first - 1)
    return ids if layer.output_mode == "int" else _encoded(graph, use, ids)


def _translated(graph: OnnxGraph, x: str, keys: list[Any], values: list[Any], default: Any) -> str:
    attributes = {
        f"keys_{_kind(keys[0])}s": keys,
        f"values_{_kind(values[0])}s": values,
        f"default_{_kind(values[0])}": default,
    }
    return graph.operator("LabelEncoder", x, domain=DOMAIN, **attributes)


def _encoded(graph: OnnxGraph, use: Use, ids: str) -> str:
    """Return 0 and 1, or counts, over the vocabulary, summed over the last axis (one_hot: of length 1)."""
    layer = use.layer
    hits = graph.operator("Equal", graph.operator("Unsqueeze", ids, integers(-1)), np.arange(layer.depth))
    encoded = graph.operator("Cast", hits, to=TensorProto.FLOAT)
    if use.rank > 1 and (layer.output_mode != "one_hot" or use.shape[-1] == 1):
        encoded = graph.operator("ReduceSum", encoded, integers(-2), keepdims=0)
    if layer.output_mode == "tf_idf":
        return graph.operator("Mul", encoded, layer.rarities)
    return graph.operator("Min", encoded, np.float32(1)) if layer.output_mode == "multi_hot" else encoded  # type: ignore[arg-type]


def _kind(value: Any) -> str:
    return "string" if isinstance(value, str) else "int64"
