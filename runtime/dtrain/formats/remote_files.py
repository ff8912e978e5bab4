"""Files at URLs that fsspec knows, such as ``gs://bucket/model/``, and URLs as records show them."""

import os
import re
from pathlib import Path
from typing import Any

from dtrain.errors import DtrainError, SpecError


def is_url(path: str | os.PathLike[str]) -> bool:
    return "://" in str(path)


class RemoteFiles:
    """A file or folder at a URL, which is shown without user and password; its calls raise a `DtrainError`.

    `name` is the last part of the path; it is empty for a folder that ends in a slash.
    """

    def __init__(self, url: str, who: str) -> None:
        """Find the driver for `who`, without a connection; raise a `SpecError` if there is none."""
        self.url = masked(url)
        self.name = url.rpartition("/")[2]
        self._files, root = driver_of(url, f"{who}: ")
        self._root = root.rstrip("/")
        self._uploaded: dict[str, tuple[int, int]] = {}

    def exists(self, name: str = "") -> bool:
        return bool(self._asked("read", self._files.exists, self._path(name)))

    def upload(self, local: Path, name: str = "") -> None:
        path = self._path(name)
        self._asked("write", self._files.makedirs, path.rpartition("/")[0], exist_ok=True)
        self._asked("write", self._files.put_file, str(local), path)

    def upload_changed(self, folder: Path) -> None:
        """Copy the files below a folder that have changed since the last call."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name, look = path.relative_to(folder).as_posix(), path.stat()
                if self._uploaded.get(name) != (look.st_size, look.st_mtime_ns):
                    self.upload(path, name)
                    self._uploaded[name] = (look.st_size, look.st_mtime_ns)

    def download(self, local: Path, name: str = "") -> None:
        self._asked("read", self._files.get_file, self._path(name), str(local))

    def remove(self) -> None:
        if self.exists():
            self._asked("remove", self._files.rm, self._root, recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _asked(self, what: str, call: Any, *arguments: Any, **more: Any) -> Any:
        try:
            return call(*arguments, **more)
        except Exception as error:  # drivers raise whatever their store's library does
            said = masked(f"{type(error).__name__}: {error}")
            raise DtrainError(f"cannot {what} {self.url}: {said}") from error


def driver_of(
    url: str,
    who: str = "",
    example: str = "s3://bucket/file",
    kind: type[DtrainError] = SpecError,
) -> tuple[Any, str]:
    """Return fsspec's driver for a URL, and its path there, without a connection.

    Raises:
        DtrainError: of the class `kind`, where fsspec or the driver is not installed, or the protocol is
            unknown; its message begins with `who`, and may show an `example`.
    """
    try:
        import fsspec  # takes a third of a second, so only where a URL is given

        files, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        remedy = "`pip install -e '.[remote]'` in dtrain's clone brings fsspec"
        raise kind(masked(f"{who}{url}: {error}; {remedy}")) from None
    except ValueError as error:
        raise kind(masked(f"{who}{url}: {error}; expected a URL such as {example}")) from None
    return files, str(path)


MASKED = "***"
_USERINFO = re.compile(r'(://)[^/\s"\'\\<>]*@')
_USERINFO_BYTES = re.compile(_USERINFO.pattern.encode())
_PASSWORD = re.compile(r'://[^/\s"\'\\<>:@]*:[^/\s"\'\\<>]+@')


def masked(text: str) -> str:
    """Return a text in which no URL shows its user and password: ``s3://***@bucket/run``."""
    return _USERINFO.sub(rf"\1{MASKED}@", text)


def masked_bytes(data: bytes) -> bytes:
    return _USERINFO_BYTES.sub(rb"\1" + MASKED.encode() + b"@", data)


def has_password(text: str) -> bool:
    """Return whether a text shows a URL with a user's password; a name of a user alone is none."""
    return _PASSWORD.search(text) is not None
