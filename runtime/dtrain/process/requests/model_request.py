"""The request of `dtrain evaluate`, `predict` and `export` to `python -m dtrain.task.model_command`: JSON."""

import msgspec


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One use of a trained model.

    Attributes:
        action: ``evaluate`` | ``predict`` | ``export``.
        model: a file, or the folder of a run, of checkpoints, or of one checkpoint.
        data: a file of examples; see `dtrain.data.tables`.
        x, y: names in it.
        output: the file that is written; None: stdout.
        as_json: the answer on stdout is one JSON object.
        steps: how many batches; None: all there are.
        loss, metrics: in place of those that the model was compiled with.
        classes: print the number of an example's largest output in place of the outputs.
        custom_objects: a Python file whose classes the model may name.
    """

    action: str
    model: str
    data: str = ""
    x: str | None = None
    y: str | None = None
    output: str | None = None
    as_json: bool = False
    batch_size: int = 32
    steps: int | None = None
    loss: str | None = None
    metrics: list[str] = []
    classes: bool = False
    custom_objects: str | None = None


def encode(request: ModelRequest) -> str:
    """Return a request as one argument of a command."""
    return msgspec.json.encode(request).decode()


def decode(argument: str) -> ModelRequest:
    """Return the request that `encode` encoded."""
    return msgspec.json.decode(argument, type=ModelRequest)
