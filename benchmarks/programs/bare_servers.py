"""What an exchange with servers on one host costs without a protocol: memory that all share, a socket to each
server as doorbell.

    python bare_servers.py --servers 2 --megabytes 32 --optimizer sgd --steps 200

The worker looks for NaN, rings, and waits until every server, a process each, has applied its part of the
gradient in place: the same passes over memory as dtrain's, nothing else.
"""

import argparse
import math
import mmap
import os
import socket
import statistics
import time

import numpy as np

import dtrain as dt

OPTIMIZERS = {"sgd": dt.optimizers.SGD, "adam": dt.optimizers.Adam}


def serve(
    doorbell: socket.socket, optimizer: dt.optimizers.Optimizer, gradient: np.ndarray, values: np.ndarray
) -> None:
    slots, step = optimizer.initial_slots(values), 0
    while doorbell.recv(1):
        optimizer.update(values, gradient, slots, step)
        step += 1
        doorbell.send(b"\0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, required=True)
    parser.add_argument("--megabytes", type=int, required=True, help="of the gradient, and of the values")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    size = args.megabytes * 250_000
    gradient, values = (np.frombuffer(mmap.mmap(-1, 4 * size), np.float32) for _ in range(2))
    doorbells = []
    for part in zip(
        np.array_split(gradient, args.servers), np.array_split(values, args.servers), strict=True
    ):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            for each in (ours, *doorbells):  # a server ends with the worker
                each.close()
            serve(theirs, OPTIMIZERS[args.optimizer](1e-3), *part)
            os._exit(0)
        theirs.close()
        doorbells.append(ours)
    times_s = []
    for _ in range(args.steps):
        np.subtract(values, 1.0, out=gradient)
        begun_s = time.perf_counter()
        assert math.isfinite(np.dot(gradient, gradient))
        for doorbell in doorbells:
            doorbell.send(b"\0")
        for doorbell in doorbells:
            doorbell.recv(1)
        times_s.append(time.perf_counter() - begun_s)
    print("exchange_ms", statistics.median(times_s) * 1000)
    print("sum", float(np.sum(values)), flush=True)


if __name__ == "__main__":
    main()
