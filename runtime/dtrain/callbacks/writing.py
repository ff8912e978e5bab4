"""Files that callbacks write. A relative path is relative to the working directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dtrain.errors import DtrainError


@contextmanager
def writing(owner: object, path: str | Path) -> Iterator[Path]:
    """Let a callback write to `path`; name both in the `DtrainError` if it cannot."""
    try:
        yield Path(path)
    except OSError as error:
        raise DtrainError(
            f"{type(owner).__name__}: cannot write {path}: {error.strerror or error}"
        ) from error
