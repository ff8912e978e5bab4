"""Trying addresses from this host: all at once, each for a limited time."""

import errno
import os
import selectors
import socket
import time
from collections.abc import Iterable


def unreachable(addresses: Iterable[str], timeout_s: float) -> dict[str, str]:
    """Return why each address (``host:port``) that does not answer cannot be reached."""
    problems: dict[str, str] = {}
    deadline_s = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for address in addresses:
            try:
                trying = _begin(address)
            except OSError as error:
                problems[address] = error.strerror or str(error)
            else:
                selector.register(trying, selectors.EVENT_WRITE, address)
        while selector.get_map() and (left_s := deadline_s - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                tried = key.fileobj
                assert isinstance(tried, socket.socket)
                if number := tried.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    problems[key.data] = os.strerror(number)
                selector.unregister(tried)
                tried.close()
        for key in list(selector.get_map().values()):
            problems[key.data] = f"no answer within {timeout_s:g} s"
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
    return problems


def _begin(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family, kind, protocol, _, place = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM
    )[0]
    trying = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
    number = trying.connect_ex(place)
    if number not in (0, errno.EINPROGRESS):
        trying.close()
        raise OSError(number, os.strerror(number))
    return trying
