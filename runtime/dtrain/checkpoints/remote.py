"""A second home of checkpoints: at any URL that fsspec knows, such as ``s3://bucket/run``.

A checkpoint is written to the local directory first and then copied. Object stores know no rename, so the manifest goes last:
where it is, everything is. It also goes first when a checkpoint is removed. A run that has none of its own begins with what lies
there.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from dtrain.checkpoints.file_operations import DISK
from dtrain.checkpoints.folder import WRITTEN, checkpoint_path, free_name, latest, list_checkpoints
from dtrain.checkpoints.manifest import MANIFEST, Manifest
from dtrain.errors import CheckpointError, SpecError

PREFIX = "ckpt-"


class RemoteCopies:
    """The copies at one URL. One process writes there."""

    def __init__(self, url: str) -> None:
        """Find the driver; nobody is talked to yet.

        Raises:
            SpecError: fsspec or the URL's driver is not installed, or nobody knows the protocol.
        """
        self.url = url
        try:
            import fsspec  # a third of a second that only those pay who give a URL

            self._files, self._root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise SpecError(f"checkpoint.remote: {url}: {error}; `pip install dtrain[remote]` brings fsspec itself") from None
        except ValueError as error:
            raise SpecError(f"checkpoint.remote: {url}: {error}; expected a URL such as s3://bucket/run") from None

    def upload(self, directory: Path) -> None:
        """Make the copies those of the checkpoints that `directory` holds now.

        Raises:
            CheckpointError: they cannot be written.
        """
        with self._explained("copy to"):
            local = {found.step: found.path for found in list_checkpoints(directory)}
            for step in sorted(self._steps() - local.keys()):
                self._remove(step)
            for step, path in sorted(local.items()):
                self._copy(step, path)

    def fetch(self, directory: Path) -> bool:
        """Bring the newest copy, if it is newer than what `directory` holds; whether one was brought.

        Raises:
            CheckpointError: it cannot be read or written.
        """
        with self._explained("read from"):
            newest, own = max(self._steps(), default=-1), latest(directory)
            if newest <= (own.step if own else -1):
                return False
            directory.mkdir(parents=True, exist_ok=True)
            aside = free_name(directory, WRITTEN, newest)
            aside.mkdir()
            manifest = self._files.cat_file(self._path(newest, MANIFEST))
            for name in Manifest.decode(manifest).files:
                self._files.get_file(self._path(newest, name), str(aside / name))
            (aside / MANIFEST).write_bytes(manifest)
            DISK.rename(aside, checkpoint_path(directory, newest))
            return True

    def _steps(self) -> set[int]:
        """Of the copies that are whole, as far as their manifests say."""
        self._files.invalidate_cache()
        try:
            names = [str(path).rstrip("/").rpartition("/")[2] for path in self._files.ls(self._root, detail=False)]
        except FileNotFoundError:
            return set()
        steps = {int(name.removeprefix(PREFIX)) for name in names if name.startswith(PREFIX) and name[len(PREFIX) :].isdecimal()}
        return {step for step in steps if self._files.exists(self._path(step, MANIFEST))}

    def _copy(self, step: int, path: Path) -> None:
        manifest = (path / MANIFEST).read_bytes()
        with contextlib.suppress(FileNotFoundError):
            if self._files.cat_file(self._path(step, MANIFEST)) == manifest:
                return
            self._remove(step)  # of the same step, from which training has gone back since
        self._files.makedirs(self._path(step), exist_ok=True)
        for name in Manifest.decode(manifest).files:
            self._files.put_file(str(path / name), self._path(step, name))
        self._files.pipe_file(self._path(step, MANIFEST), manifest)

    def _remove(self, step: int) -> None:
        self._files.rm_file(self._path(step, MANIFEST))
        self._files.rm(self._path(step), recursive=True)

    def _path(self, step: int, name: str = "") -> str:
        return f"{self._root}/{PREFIX}{step}/{name}".rstrip("/")

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:  # drivers raise whatever their store's library does
            raise CheckpointError(f"cannot {what} {self.url}: {type(error).__name__}: {error}") from error


def remote_copies(url: str | None) -> RemoteCopies | None:
    """As the spec's `checkpoint.remote` says."""
    return RemoteCopies(url) if url else None
