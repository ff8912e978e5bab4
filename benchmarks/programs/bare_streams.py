r"""The bare loop under a step: workers send so many bytes to each server over a persistent gRPC stream and get
as many back.

    dtrain launch --set cluster.chief=0 --set success=all_workers -- python bare_streams.py \
        --steps 3000 --bytes 100 100

It does no training, has no protocol and uses nothing of dtrain: it shows the lowest cost of a step over gRPC.
Both ends move the bytes in and out of memory of their own in chunks, as arrays must be.
"""

import argparse
import json
import os
import queue
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

CHUNK_BYTES = 1024 * 1024
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),
)


class Memory:
    """Bytes of one step and server."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(bytearray(size))
        self.received = 0

    def chunks(self) -> Iterator[bytes]:
        for start in range(0, len(self.view), CHUNK_BYTES):
            yield bytes(self.view[start : start + CHUNK_BYTES])

    def take(self, chunk: bytes) -> bool:
        """Write a chunk; whether the memory is full now."""
        self.view[self.received : self.received + len(chunk)] = chunk
        self.received = (self.received + len(chunk)) % len(self.view)
        return self.received == 0


def serve(address: str, size: int) -> None:
    def talk(requests: Iterator[bytes], context: object) -> Iterator[bytes]:
        memory = Memory(size)
        for chunk in requests:
            if memory.take(chunk):
                yield from memory.chunks()

    server = grpc.server(ThreadPoolExecutor(8), options=OPTIONS)
    handler = grpc.stream_stream_rpc_method_handler(talk)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", {"Talk": handler}),))
    server.add_insecure_port(address)
    server.start()
    signal.pause()


class Connection:
    """One stream to one server."""

    def __init__(self, address: str, size: int) -> None:
        self.memory = Memory(size)
        self.requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        channel = grpc.insecure_channel(address, options=OPTIONS)
        grpc.channel_ready_future(channel).result(timeout=60)
        self.answers = channel.stream_stream("/bare/Talk")(self.outgoing())

    def outgoing(self) -> Iterator[bytes]:
        while self.requests.get():
            yield from self.memory.chunks()

    def receive(self) -> None:
        while not self.memory.take(next(self.answers)):
            pass


def work(addresses: list[str], sizes: list[int], steps: int, every: int) -> None:
    connections = [Connection(address, size) for address, size in zip(addresses, sizes, strict=True)]
    marks = []
    for done in range(steps):
        if done % every == 0:
            marks.append((done, time.monotonic()))
        for connection in connections:
            connection.requests.put(True)
        for connection in connections:
            connection.receive()
    print("marks", json.dumps(marks), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, required=True, help="of each worker")
    parser.add_argument("--every", type=int, default=50, help="steps from one mark of the clock to the next")
    parser.add_argument("--bytes", type=int, nargs="+", required=True, help="a step, to and from each server")
    args = parser.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    servers, task = config["cluster"]["ps"], config["task"]
    if task["type"] == "ps":
        serve(servers[task["index"]], args.bytes[task["index"]])
    else:
        work(servers, args.bytes, args.steps, args.every)


if __name__ == "__main__":
    main()
