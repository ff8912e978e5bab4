"""Files at any URL that fsspec knows, such as ``s3://bucket/file``; the extra `remote` brings it."""

from typing import Any

from dtrain.data.stores.found import Found, RefusedError
from dtrain.errors import InputError
from dtrain.formats.masked_urls import masked

VERSIONS = (
    *("ETag", "etag", "md5Hash", "content_md5", "generation", "LastModified", "last_modified", "updated"),
    *("mtime", "modified", "created"),
)
"""The names under which stores tell what changes with a file; the first that one has counts."""


class FsspecStore:
    """The file at one URL.

    Attributes:
        tells_changes: see `HttpStore`; here the store has to be asked.
    """

    tells_changes = False

    def __init__(self, url: str) -> None:
        """Find the driver; no connection is made yet.

        Raises:
            InputError: see `driver_of`.
        """
        self._files, self._path = driver_of(url)

    def find(self, timeout_s: float) -> Found:
        """Return the facts of the file; raises as `HttpStore.find`."""
        self._files.invalidate_cache()
        about = self._asked("info", timeout_s)
        if about.get("type") == "directory":
            raise RefusedError("expected a file, found a folder")
        if about.get("size") is None:
            raise RefusedError("the store does not tell the size of the file")
        version = next((str(about[name]) for name in VERSIONS if about.get(name)), "")
        return Found(int(about["size"]), version)

    def fetch(self, start: int, end: int, timeout_s: float) -> tuple[bytes, None]:
        """Return a range of bytes; raises as `find`."""
        return self._asked("cat_file", timeout_s, start=start, end=end), None

    def _asked(self, name: str, timeout_s: float, **arguments: Any) -> Any:
        files = self._files
        try:
            if files.async_impl and not files.asynchronous:
                from fsspec.asyn import sync

                call = getattr(files, f"_{name}")
                return sync(files.loop, call, self._path, timeout=timeout_s, **arguments)
            return getattr(files, name)(self._path, **arguments)
        except (FileNotFoundError, RefusedError):
            raise
        except (PermissionError, IsADirectoryError, NotImplementedError) as error:
            raise RefusedError(str(error) or type(error).__name__) from error
        except Exception as error:  # drivers raise whatever their store's library does
            raise OSError(f"{type(error).__name__}: {error}") from error


def driver_of(url: str) -> tuple[Any, str]:
    """Return fsspec's driver for a URL, and the path that it has there.

    Raises:
        InputError: fsspec or the driver is not installed, or the protocol is unknown.
    """
    try:
        import fsspec  # takes a third of a second, so only where a URL is given

        files, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise InputError(
            masked(f"{url}: {error}; `pip install -e '.[remote]'` in dtrain's clone brings fsspec")
        ) from None
    except ValueError as error:
        raise InputError(masked(f"{url}: {error}; expected a URL such as s3://bucket/file")) from None
    return files, str(path)
