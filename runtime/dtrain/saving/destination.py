"""Where a file goes that a program saves, and how it comes there whole."""

import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dtrain.checkpoints.file_operations import DISK, FileOperations
from dtrain.errors import CheckpointError
from dtrain.strategy import Strategy

FilePath = str | os.PathLike[str]

KERAS_SUFFIXES = (".h5", ".hdf5", ".keras")


def tell_format(path: FilePath) -> None:
    """Warn, at the caller's caller, that a name which says Keras's format does not get it."""
    if Path(path).suffix in KERAS_SUFFIXES:
        warnings.warn(
            f"{path} is written in the safetensors format, which dtrain.load_model and load_weights read and Keras does not; "
            "a name that ends in .safetensors says so",
            stacklevel=3,
        )


@contextmanager
def destination(strategy: Strategy | None, path: FilePath) -> Iterator[Path]:
    """`path` in the leader, or without a strategy; in every other task a place of the same name that is thrown away at once."""
    if strategy is None or strategy.is_leader:
        yield Path(path)
    else:
        with TemporaryDirectory(prefix="dtrain-") as directory:
            yield Path(directory) / (Path(path).name or "file")


def write_whole(
    path: Path,
    blocks: Iterable[bytes | memoryview],
    *,
    overwrite: bool = True,
    correction: Callable[[], tuple[int, bytes]] | None = None,
    disk: FileOperations = DISK,
) -> None:
    """Write a file so that a crash leaves it whole or what was there before; folders above it are made.

    Args:
        blocks: the content, made while it is written.
        overwrite: whether it may replace a file.
        correction: says, after the last block, what is to stand at an earlier place.
        disk: what writes.

    Raises:
        CheckpointError: it is there and is not to be overwritten, or cannot be written.
    """
    if path.is_dir():
        raise CheckpointError(f"cannot write {path}: it is a directory; expected the name of a file")
    if not overwrite and path.exists():
        raise CheckpointError(f"cannot write {path}: it is there; overwrite=True replaces it")
    aside = path.with_name(f".tmp-{secrets.token_hex(4)}-{path.name}")
    try:
        disk.make_directory(path.parent)
        try:
            with disk.create(aside) as file:
                for block in blocks:
                    disk.write(file, memoryview(block))
                if correction is not None:
                    offset, content = correction()
                    file.seek(offset)
                    disk.write(file, memoryview(content))
                disk.sync(file)
            disk.rename(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        disk.sync_directory(path.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
