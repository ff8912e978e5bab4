r"""The cost of one step's exchange with one server without a protocol: send a gradient, receive new values.

    dtrain launch --workers 1 --ps 1 --set cluster.chief=0 -- python bare_exchange.py \
        --way socket|unary --bytes 32000000 --steps 50

`socket`: a raw TCP socket; the server receives all, applies, sends all. `unary`: one gRPC message each way.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),
)
BLOCK = 64 * 1024
LEARNING_RATE = 1e-3

Connect = Callable[[str, np.ndarray, np.ndarray], Callable[[], None]]
"""To the server at an address; the result exchanges a gradient for values."""


def apply(gradient: np.ndarray, values: np.ndarray) -> None:
    """SGD, in blocks that stay in the cache; the gradient is used up."""
    for start in range(0, len(values), BLOCK):
        block = gradient[start : start + BLOCK]
        block *= LEARNING_RATE
        values[start : start + BLOCK] -= block


def receive(connection: socket.socket, array: np.ndarray) -> bool:
    """Fill the array; False when the other end has gone."""
    view = memoryview(array).cast("B")
    while view:
        count = connection.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def serve_socket(address: str, size: int) -> None:
    host, port = address.split(":")
    gradient, values = np.empty(size, np.float32), np.zeros(size, np.float32)
    with socket.create_server((host, int(port)), reuse_port=True) as server:
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while receive(connection, gradient):
            apply(gradient, values)
            connection.sendall(values)
    signal.pause()


def exchange_by_socket(address: str, gradient: np.ndarray, values: np.ndarray) -> Callable[[], None]:
    host, port = address.split(":")
    connection = connected(host, int(port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange() -> None:
        connection.sendall(gradient)
        receive(connection, values)

    return exchange


def connected(host: str, port: int) -> socket.socket:
    deadline_s = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def serve_unary(address: str, size: int) -> None:
    values = np.zeros(size, np.float32)

    def push(request: bytes, context: object) -> bytes:
        apply(np.frombuffer(bytearray(request), np.float32), values)
        return values.tobytes()

    server = grpc.server(ThreadPoolExecutor(2), options=OPTIONS)
    handler = grpc.unary_unary_rpc_method_handler(push)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", {"Push": handler}),))
    server.add_insecure_port(address)
    server.start()
    signal.pause()


def exchange_by_unary(address: str, gradient: np.ndarray, values: np.ndarray) -> Callable[[], None]:
    channel = grpc.insecure_channel(address, options=OPTIONS)
    grpc.channel_ready_future(channel).result(timeout=60)
    push = channel.unary_unary("/bare/Push")

    def exchange() -> None:
        values[...] = np.frombuffer(push(gradient.tobytes()), np.float32)

    return exchange


WAYS = {"socket": (serve_socket, exchange_by_socket), "unary": (serve_unary, exchange_by_unary)}


def options(doc: str, ways: Iterable[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--way", choices=ways, required=True)
    parser.add_argument("--bytes", type=int, required=True, help="of the gradient, and of the values")
    parser.add_argument("--steps", type=int, required=True)
    return parser


def place() -> tuple[bool, str]:
    """Whether this task is the server, and where that serves."""
    config = json.loads(os.environ["TF_CONFIG"])
    return config["task"]["type"] == "ps", config["cluster"]["ps"][0]


def measure(connect: Connect, address: str, size: int, steps: int) -> None:
    gradient, values = np.ones(size, np.float32), np.zeros(size, np.float32)
    exchange, times_s = connect(address, gradient, values), []
    for _ in range(steps):
        begun_s = time.perf_counter()
        exchange()
        times_s.append(time.perf_counter() - begun_s)
    print("exchange_ms", statistics.median(times_s) * 1000)
    print("value", round(float(values[-1]), 4), flush=True)


def main() -> None:
    args = options(__doc__, WAYS).parse_args()
    (serves, address), (serve, connect) = place(), WAYS[args.way]
    if serves:
        serve(address, args.bytes // 4)
    else:
        measure(connect, address, args.bytes // 4, args.steps)


if __name__ == "__main__":
    main()
