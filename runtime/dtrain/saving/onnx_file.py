"""Files in the ONNX format. The package onnx is an extra, and is loaded only when a model is exported."""

from math import prod
from pathlib import Path

from dtrain.errors import DtrainError, SpecError
from dtrain.learning.graphs.graph import Graph
from dtrain.saving.destination import FilePath, write_whole, written
from dtrain.saving.model_folder import path_or_job_folder
from dtrain.strategies.interface import Strategy
from dtrain.types import Arrays

SUFFIX = ".onnx"
_NAME = "model.onnx"
# The limit of a protobuf message.
MAX_BYTES = (1 << 31) - 1


def write_onnx(
    path: FilePath | None,
    graph: Graph,
    weights: Arrays,
    name: str,
    strategy: Strategy,
    format: str = "onnx",  # noqa: A002 - Keras's name
) -> None:
    """Write a network.

    Raises:
        SpecError: ONNX has no form of a layer, the format or the file's name is another's, or there is none.
        CheckpointError: the file cannot be written.
        DtrainError: the package onnx is not installed, or the model is larger than its files can be.
    """
    path = path_or_job_folder(path, _NAME)
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
        raise DtrainError(
            "export needs the package onnx: `pip install -e '.[onnx]'` in dtrain's clone"
        ) from None
    content = onnx_model(graph, weights, name).SerializeToString()
    with written(strategy, path) as place:
        write_whole(place, [content])
