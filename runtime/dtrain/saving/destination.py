"""The places of files that a program saves and reads, and the way in which they are written whole."""

import atexit
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from dtrain.checkpoints.folder import DISK, FileOperations
from dtrain.errors import CheckpointError, DtrainError, InputError, SpecError
from dtrain.formats.remote_files import RemoteFiles, is_url
from dtrain.runs.claims import claim
from dtrain.strategies.interface import Strategy

FilePath = str | os.PathLike[str]

NAME_IN_FOLDER = "model.safetensors"
KERAS_SUFFIXES = (".h5", ".hdf5", ".keras")


def tell_format(path: FilePath | None) -> None:
    """Warn, at the caller's caller, that a name of Keras's format does not get that format."""
    if path is not None and (suffix := Path(path).suffix) in KERAS_SUFFIXES:
        warnings.warn(
            f"the file is written in the safetensors format although its name ends in {suffix}: "
            "dtrain.load_model and "
            "load_weights read it, Keras does not; use a name that ends in .safetensors",
            stacklevel=3,
        )


@contextmanager
def written(strategy: Strategy | None, path: FilePath, overwrite: bool = True) -> Iterator[Path]:
    """Yield where to write a file: `path` in the leader, whose run claims it, or without a strategy.

    In every other task it is a file of that task alone, deleted when its process ends; see `source`. At a
    URL the file is copied afterwards; one that ends in a slash, as AIP_MODEL_DIR does, gets a file
    `NAME_IN_FOLDER`.

    Raises:
        CheckpointError: it cannot be copied, or is there and is not to be overwritten.
        RunInUseError: another run writes it.
        SpecError: nothing here knows the URL.
    """
    if path is None:
        raise InputError("save: expected the path of a file, found None")
    if strategy is not None and not strategy.is_leader:
        yield _own_copy(strategy, path)
        return
    if not is_url(path):
        if strategy is not None:
            claim(path, strategy.context.run_id)
        yield Path(path)
        return
    remote = RemoteFiles(str(path), "save")
    name = "" if remote.name else NAME_IN_FOLDER
    with TemporaryDirectory(prefix="dtrain-upload-") as folder:
        local = Path(folder) / (remote.name or name)
        try:
            if not overwrite and remote.exists(name):
                raise CheckpointError(f"cannot write {remote.url}: it is there; overwrite=True replaces it")
            yield local
            remote.upload(local, name)
        except (CheckpointError, SpecError):
            raise
        except DtrainError as error:
            raise CheckpointError(str(error)) from error


def source(strategy: Strategy, path: FilePath) -> Path:
    """Return where to read a file: a task's own copy if it saved one under this path, else `path`.

    What a URL names is copied here first, and deleted when the process ends; errors are those of `written`.
    """
    if path is None:
        raise InputError("load: expected the path of a file, found None; has latest_checkpoint found none?")
    if not strategy.is_leader and (own := _own_copy(strategy, path)).is_file():
        return own
    if not is_url(path):
        return Path(path)
    remote = RemoteFiles(str(path), "load")
    local = _thrown_away(strategy.directory, os.getpid()) / f"{secrets.token_hex(4)}-{remote.name}"
    try:
        remote.download(local, "" if remote.name else NAME_IN_FOLDER)
    except SpecError:
        raise
    except DtrainError as error:
        raise CheckpointError(str(error)) from error
    return local


def _own_copy(strategy: Strategy, path: FilePath) -> Path:
    """Return the place of a path in the task's temporary directory, which holds every path below its root."""
    whole = Path(os.path.realpath(path))
    return _thrown_away(strategy.directory, os.getpid()) / whole.relative_to(whole.anchor)


@cache
def _thrown_away(run_directory: Path | None, pid: int) -> Path:
    """Make a process's temporary directory, in the run directory if any, so that the run's end removes it."""
    directory = Path(mkdtemp(prefix="dtrain-thrown-away-", dir=run_directory))

    def remove() -> None:
        if os.getpid() == pid:  # and not in a process that the program has forked
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory


def write_whole(
    path: Path,
    blocks: Iterable[bytes | memoryview],
    *,
    overwrite: bool = True,
    correction: Callable[[], tuple[int, bytes]] | None = None,
    disk: FileOperations = DISK,
) -> None:
    """Write a file so that a crash leaves it whole or as it was before; folders above it are made.

    `correction` is called after the last block, and returns an earlier offset and the bytes for it. A file
    that is there and is not to be overwritten, or cannot be written, is a `CheckpointError`.
    """
    if path.is_dir():
        raise CheckpointError(f"cannot write {path}: it is a directory; expected the name of a file")
    if not overwrite and path.exists():
        raise CheckpointError(f"cannot write {path}: it is there; overwrite=True replaces it")
    aside = path.with_name(f".tmp-{secrets.token_hex(4)}-{path.name}")
    try:
        new = not path.parent.exists()
        disk.make_directory(path.parent)
        if new:
            disk.sync_directory(path.parent.parent)
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
