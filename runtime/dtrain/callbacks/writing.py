"""Files that callbacks write. A relative path begins at the working directory; a URL is any of fsspec's."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dtrain.errors import DtrainError
from dtrain.formats.remote_files import RemoteFiles, is_url


@contextmanager
def writing(owner: object, path: str | Path) -> Iterator[Path]:
    """Let a callback write to `path`; name both in the `DtrainError` if it cannot."""
    try:
        yield Path(path)
    except OSError as error:
        raise DtrainError(
            f"{type(owner).__name__}: cannot write {path}: {error.strerror or error}"
        ) from error


class WrittenPath:
    """The file or folder that a callback writes: the path itself, or a copy here of what a URL names.

    Attributes:
        local: on this machine.
    """

    def __init__(self, owner: object, path: str | Path) -> None:
        """Find the place; nothing is made or read yet but an empty folder for a URL's copy.

        Raises:
            SpecError: nothing here knows the URL.
        """
        self._remote = RemoteFiles(str(path), type(owner).__name__) if is_url(path) else None
        self._folder = TemporaryDirectory(prefix="dtrain-upload-") if self._remote else None
        name = self._remote.name if self._remote else ""
        self.local = Path(self._folder.name, name or "there") if self._folder else Path(path)

    def fetch(self) -> None:
        """Copy the file from its URL, if it is one and is there; raise a `DtrainError`."""
        if self._remote is not None and self._remote.exists():
            self._remote.download(self.local)

    def push(self) -> None:
        """Copy what has changed to the URL, if it is one; raise a `DtrainError`."""
        if self._remote is None:
            return
        if self.local.is_dir():
            self._remote.upload_changed(self.local)
        elif self.local.exists():
            self._remote.upload(self.local)

    def close(self) -> None:
        """Remove the copy."""
        if self._folder is not None:
            self._folder.cleanup()
