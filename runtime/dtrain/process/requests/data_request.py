"""The request of `dtrain data` to `python -m dtrain.task.data_command`: JSON."""

import msgspec


class DataRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One look at files of data.

    Attributes:
        action: ``index`` | ``inspect``.
        files: their paths.
        kind: of the files; None: each by its name or its first bytes.
        header: whether the first row of .csv files names the columns.
        as_json: the answer on stdout is one JSON object.
    """

    action: str
    files: list[str]
    kind: str | None = None
    header: bool = True
    as_json: bool = False


def encode(request: DataRequest) -> str:
    """Return a request as one argument of a command."""
    return msgspec.json.encode(request).decode()


def decode(argument: str) -> DataRequest:
    """Return the request that `encode` encoded."""
    return msgspec.json.decode(argument, type=DataRequest)
