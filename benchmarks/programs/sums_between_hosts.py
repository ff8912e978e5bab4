"""The mean of an array over several processes, each of which stands for a host, over TCP on loopback.

    python sums_between_hosts.py --processes 2 --megabytes 32 --rounds 9 [--gloo]

Each round has one sum of each way, in turn, so that a busy machine slows all. The arrays are written anew
before each sum. The last line is JSON: by way, the milliseconds of each round between two barriers, the CPU
milliseconds of all processes together, and the mean of the last round.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dtrain.collectives.all_reduce import (
    ElementRange,
    Terms,
    ordered_chain,
    ring,
    segment_length,
)
from dtrain.messages import Hello
from dtrain.roles.collective.sums_over_hosts import HostSum, Ways, exchange
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.streams import Listener, open_stream

PATIENCE_S = 60.0
SCHEDULES = {"ring": ring, "chain": ordered_chain}


class Host:
    """One process; `ips` has the addresses of the hosts, by default of this one."""

    def __init__(self, place: int, count: int, elements: int, ips: Sequence[str] = ()) -> None:
        self.place, self.count, self.elements = place, count, elements
        self._ips = ips or ["127.0.0.1"] * count
        hello = Hello(run_id="sums", cluster_hash="0", task=f"worker:{place}")
        self._credentials = Credentials.made(hello, "a secret of this run")
        self._listener = Listener(f"{self._ips[place]}:1", self._credentials, lambda hello: None, 4 * count)
        self.port = int(self._listener.address.rpartition(":")[2])
        self.gradient = np.zeros(elements, np.float32)
        self.mean = np.zeros(elements, np.float32)
        self.ports: list[int] = []
        tasks = {other: f"worker:{other}" for other in range(count)}
        self._ways = {way: Ways(tasks, way, self._open, self._listener.accept) for way in SCHEDULES}
        self._step = 0

    def _open(self, task: str, name: str, timeout_s: float) -> Any:
        place = int(task.partition(":")[2])
        return open_stream(
            task, f"{self._ips[place]}:{self.ports[place]}", name, self._credentials, timeout_s
        )

    def sum(self, way: str) -> None:
        """Make the mean."""
        self._step += 1
        parts = {host: (host,) for host in range(self.count)}
        span, length = ElementRange(0, self.elements), segment_length(4)
        flows = SCHEDULES[way](range(self.count), self.place, parts, span, length)
        which, deadline = HostSum(self._step, 0, 0, self.elements), time.monotonic() + PATIENCE_S
        terms = Terms({self.place: self.gradient}, self.count)
        exchange(which, flows, terms, self.mean, self._ways[way], deadline)
        self._ways[way].flush(deadline)


def gloo_sum(host: Host, init: str) -> Callable[[], None]:
    """The same by gloo, which leaves the sum in the place of the gradient."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo", init_method=f"file://{init}", rank=host.place, world_size=host.count
    )
    return partial(distributed.all_reduce, torch.from_numpy(host.gradient))


def body(place: int, words: argparse.Namespace, barrier: Any, ports: Any, cpu: Any, said: Any) -> None:
    """Run one process."""
    host = Host(place, words.processes, words.megabytes * 1_000_000 // 4)
    ports[place] = host.port
    barrier.wait()
    host.ports = list(ports)
    ways: dict[str, Callable[[], None]] = {way: partial(host.sum, way) for way in SCHEDULES}
    if words.gloo:
        ways["gloo"] = gloo_sum(host, words.init)
    spent: dict[str, list[float]] = {way: [] for way in ways}
    used = dict.fromkeys(ways, 0.0)
    for number in range(-1, words.rounds):
        for way, run in ways.items():
            host.gradient[:] = place + max(number, 0)
            barrier.wait()
            began, cpu_began = time.perf_counter(), time.process_time()
            run()
            barrier.wait()
            if number >= 0:
                spent[way].append((time.perf_counter() - began) * 1e3)
                used[way] += (time.process_time() - cpu_began) * 1e3 / words.rounds
            found = host.gradient / host.count if way == "gloo" else host.mean
            assert np.all(found == found[0]), way
            assert abs(found[0] - (host.count - 1) / 2 - max(number, 0)) < 1e-4, way
    for way in ways:
        cpu[place] = used[way]
        barrier.wait()
        used[way] = sum(cpu)
        barrier.wait()
    if place == 0:
        said.put(json.dumps({"ms": spent, "cpu_ms": used, "mean": float(host.mean[0])}))
    barrier.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--gloo", action="store_true")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words.init = f"{folder}/init"
        fork = multiprocessing.get_context("fork")
        barrier, said = fork.Barrier(words.processes), fork.SimpleQueue()
        ports, cpu = fork.Array("i", words.processes), fork.Array("d", words.processes)
        shared = (words, barrier, ports, cpu, said)
        started = [fork.Process(target=body, args=(place, *shared)) for place in range(words.processes)]
        for process in started:
            process.start()
        while all(process.exitcode in (None, 0) for process in started) and any(
            process.is_alive() for process in started
        ):
            for process in started:
                process.join(0.1)
        for process in started:
            process.kill()
            process.join()
        assert all(process.exitcode == 0 for process in started), "a process failed"
        print(said.get())


if __name__ == "__main__":
    main()
