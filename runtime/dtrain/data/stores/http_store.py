"""Files on web servers, read by ranges with the standard library; proxies are those of the environment."""

import re
import time
from http.client import HTTPException, InvalidURL
from typing import Any, cast
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from dtrain.data.stores.ranges import Found, RefusedError

READ_BYTES = 256 * 1024
PARTIAL, WHOLE, OUT_OF_RANGE = 206, 200, 416
NOT_FOUND = (404, 410)
WORTH_RETRYING = (408, 425, 429)
_CONTENT_RANGE = re.compile(r"bytes (?:\d+-\d+|\*)/(\d{1,18})$")


class HttpStore:
    """The file at one URL.

    Attributes:
        tells_changes: whether `fetch` itself says which version it read.
    """

    tells_changes = True

    def __init__(self, url: str) -> None:
        self._url = url

    def find(self, timeout_s: float) -> Found:
        """Return the facts of the file.

        Raises:
            FileNotFoundError: there is none.
            RefusedError: the server refuses it, or gives no ranges of bytes.
            OSError: the server does not answer.
        """
        with self._asked(0, 1, timeout_s) as answer:
            return _found(answer)

    def fetch(self, start: int, end: int, timeout_s: float) -> tuple[bytes, Found]:
        """Return a range of bytes, and the facts of the file that they are of; raises as `find`."""
        until_s = time.monotonic() + timeout_s
        with self._asked(start, end, timeout_s) as answer:
            found = _found(answer)
            data = bytearray()
            while len(data) < end - start and (block := _read(answer, end - start - len(data))):
                data += block
                if time.monotonic() > until_s:
                    raise TimeoutError(f"only {len(data)} of {end - start} bytes came within {timeout_s:g} s")
            return bytes(data), found

    def _asked(self, start: int, end: int, timeout_s: float) -> Any:
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        try:
            return build_opener(_Redirects).open(Request(self._url, headers=headers), timeout=timeout_s)
        except HTTPError as error:
            if error.code == OUT_OF_RANGE and "content-range" in error.headers:
                return error  # an empty file, or one that has become shorter
            error.close()
            if error.code in NOT_FOUND:
                raise FileNotFoundError(f"the server answers {error.code} {error.reason}") from None
            if error.code < 500 and error.code not in WORTH_RETRYING:
                raise RefusedError(f"the server answers {error.code} {error.reason}") from None
            raise OSError(f"the server answers {error.code} {error.reason}") from None
        except URLError as error:
            raise OSError(f"{error.reason}") from None
        except (InvalidURL, ValueError) as error:
            raise RefusedError(f"it is no URL: {error}") from None
        except HTTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from None


class _Redirects(HTTPRedirectHandler):
    """Follows a web server to another address of the web, and from TLS to TLS alone."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        schemes = ("https",) if req.type == "https" else ("http", "https")
        if (scheme := newurl.partition(":")[0].lower()) not in schemes:
            raise RefusedError(
                f"the server sends to {newurl[:200]}: expected {' or '.join(schemes)}, found {scheme}"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _found(answer: Any) -> Found:
    headers = answer.headers
    match = _CONTENT_RANGE.match(headers.get("Content-Range", ""))
    if match is None:
        raise RefusedError(
            "the server gives whole files only: it ignores the header Range; copy the file to this host, or "
            "serve it by a server that knows ranges"
        )
    return Found(int(match[1]), headers.get("ETag") or headers.get("Last-Modified") or "")


def _read(answer: Any, nbytes: int) -> bytes:
    try:
        return cast(bytes, answer.read1(min(READ_BYTES, nbytes)))
    except HTTPException as error:
        raise OSError(f"the connection ended early: {type(error).__name__}") from None
