r"""The cost of one step's exchange with one server over a long link: a process between them delays all bytes.

    dtrain launch --workers 1 --ps 1 --set cluster.chief=0 -- python long_link.py \
        --way grpc|socket --bytes 32000000 --steps 5

`grpc`: dtrain's connection. `socket`: a raw TCP socket; the server receives all, applies, sends all. The link
carries 1 Gbit/s each way. The process between acknowledges what it has taken, so the kernel's windows have no
effect, and only the limits of the connection itself show.
"""

import contextlib
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable

import numpy as np
from bare_exchange import apply, connected, exchange_by_socket, measure, options, place, serve_socket

from dtrain.messages import Hello, Push, Reply
from dtrain.messages.steps import Verdict
from dtrain.wire.channel import Answer, Caller
from dtrain.wire.frames import Frame, Limits
from dtrain.wire.grpc_client import GrpcChannel
from dtrain.wire.grpc_service import GrpcService
from dtrain.wire.security.credentials import Credentials

BYTES_PER_S = 125e6
CHUNK_BYTES = 128 * 1024
WORKER, SERVER = (
    Credentials.made(Hello(run_id="long-link", cluster_hash="", task=task)) for task in ("worker:0", "ps:0")
)


def carry(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    """One direction of the link."""
    under_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def deliver() -> None:
        data = b"first"
        with contextlib.suppress(OSError):  # an end has gone
            while data:
                arrival_s, data = under_way.get()
                time.sleep(max(0.0, arrival_s - time.monotonic()))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    threading.Thread(target=deliver, daemon=True).start()
    data, free_s = b"first", 0.0
    with contextlib.suppress(OSError):
        while data:
            data = source.recv(CHUNK_BYTES)
            free_s = max(free_s, time.monotonic()) + len(data) / BYTES_PER_S
            time.sleep(max(0.0, free_s - time.monotonic()))
            under_way.put((free_s + delay_s, data))


def link(listener: socket.socket, address: str, delay_s: float) -> None:
    """Connect each client to the server, once the server is up."""
    host, port = address.split(":")
    while True:
        near, _ = listener.accept()
        far = connected(host, int(port))
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for direction in ((near, far), (far, near)):
            threading.Thread(target=carry, args=(*direction, delay_s), daemon=True).start()


class Applies:
    """A handler that applies what is pushed and answers with the values; see `Handler`."""

    answers_at_once = True

    def __init__(self, size: int) -> None:
        self.values = np.zeros(size, np.float32)
        self._limit_bytes = 8 * size

    def limits(self, hello: Hello) -> Limits:
        return Limits(1 << 20, self._limit_bytes)

    def refuse(self, hello: Hello) -> str | None:
        return None

    def received(self, caller: Caller, frame: Frame) -> Answer:
        apply(frame.blocks[0], self.values)
        caller.send(Reply(verdict=Verdict.ACCEPTED, version=0), [self.values])
        return Answer.ONE

    def disconnected(self, caller: Caller) -> None:
        pass


def serve_grpc(address: str, size: int) -> None:
    service = GrpcService(Applies(size), address, SERVER, connections=4, share_port=True)
    signal.sigwait({signal.SIGTERM})
    service.stop()


def exchange_by_grpc(address: str, gradient: np.ndarray, values: np.ndarray) -> Callable[[], None]:
    channel = GrpcChannel("ps:0", address, WORKER, 60)

    def exchange() -> None:
        channel.send(Push(generation=0, incarnation=0, sequence=0, base_version=0, plan_hash=""), [gradient])
        channel.receive([values])

    return exchange


WAYS = {"grpc": (serve_grpc, exchange_by_grpc), "socket": (serve_socket, exchange_by_socket)}


def main() -> None:
    parser = options(__doc__, WAYS)
    parser.add_argument("--round_trip_ms", type=float, default=40)
    args = parser.parse_args()
    (serves, address), (serve, connect) = place(), WAYS[args.way]
    if serves:
        serve(address, args.bytes // 4)
        return
    listener = socket.create_server(("127.0.0.1", 0))
    if not (between := os.fork()):
        link(listener, address, args.round_trip_ms / 2000)
    measure(connect, f"127.0.0.1:{listener.getsockname()[1]}", args.bytes // 4, args.steps)
    os.kill(between, signal.SIGKILL)


if __name__ == "__main__":
    main()
