"""A listener on the wire: a proxy that records all that passes."""

import contextlib
import socket
import threading


def free_port() -> int:
    """A port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Recorder:
    """Forwards every connection to its `address` to another one, and keeps what passes."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._heard: list[bytes] = []
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def heard(self) -> bytes:
        """All that has passed, in both directions."""
        return b"".join(self._heard)

    def __enter__(self) -> "Recorder":
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10.0)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for source, sink in ((client, server), (server, client)):
                    self._threads.append(
                        threading.Thread(target=self._forward, args=(source, sink), daemon=True)
                    )
                    self._threads[-1].start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._heard.append(data)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
