"""Files in the ONNX format. The package onnx is an extra, and is loaded only when a model is exported."""

from math import prod
from pathlib import Path

from dtrain.errors import DtrainError, SpecError
from dtrain.learning.graphs.graph import Graph
from dtrain.saving.destination import FilePath, destination, write_whole
from dtrain.strategies.interface import Strategy
from dtrain.types import Arrays

SUFFIX = ".onnx"
# The limit of a protobuf message.
MAX_BYTES = (1 << 31) - 1


def write_onnx(
    path: FilePath,
    graph: Graph,
    weights: Arrays,
    name: str,
    strategy: Strategy,
    format: str = "onnx",  # noqa: A002 - Keras's name
) -> None:
    """Write a network.

    Raises:
        SpecError: ONNX has no form of a layer, or the format or the file's name is another's.
        CheckpointError: the file cannot be written.
        DtrainError: the package onnx is not installed, or the model is larger than its files can be.
    """
    if format != "onnx" or Path(path).suffix != SUFFIX:
        raise SpecError(
            f"export: expected a name that ends in {SUFFIX}, the only format there is; found {path} as "
            f"{format}"
        )
    total = sum(array.dtype.itemsize * prod(array.shape) for array in weights.values())
    if total > MAX_BYTES:
        raise DtrainError(
            f"export: the weights have {total:,} bytes; an ONNX file holds at most {MAX_BYTES:,}"
        )
    try:
        from dtrain.saving.onnx_export.exporter import onnx_model
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise DtrainError("export needs the package onnx: pip install 'dtrain[onnx]'") from None
    content = onnx_model(graph, weights, name).SerializeToString()
    write_whole(destination(strategy, path), [content])
