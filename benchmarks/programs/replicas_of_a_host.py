"""Sums and steps of replicas that share the memory of one host, beside gloo and torch.optim.

    python replicas_of_a_host.py --replicas 2 --rounds 9 [--gloo] [--megabytes 32] [--sizes 8 4096 1000000]

The replicas do one thing after the other and by turns in ways of their own and of gloo, so that a busy machine
slows both. Large arrays are written anew before each operation; of small ones 100 operations are one round. The
last line is JSON: by operation and way, the milliseconds of each round between two barriers, and the CPU
milliseconds of all processes together.

`--death` measures instead: from the SIGKILL of one replica to the end of that very step in the others.
"""

import argparse
import json
import math
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dtrain.config.choices import Weighting
from dtrain.exchange.calls import ReplicaCall
from dtrain.learning import optimizers
from dtrain.messages.rounds import Known, MemberSeat
from dtrain.parameters.placement import plan
from dtrain.protocol.part_dealer import NO_PART
from dtrain.roles.collective.arena import Arena, ArenaShape
from dtrain.roles.collective.calls import CallMemory, Calls
from dtrain.roles.collective.lane_work import LaneWork
from dtrain.roles.collective.member_driver import MemberDriver
from dtrain.roles.collective.member_rounds import LeaderOrders, phases_of
from dtrain.roles.collective.rules import Rules, Waits
from dtrain.state.batch_cut import Dealt
from dtrain.steps.follower import next_term
from dtrain.steps.member import RoundMember
from dtrain.steps.round_parts import RoundRules
from dtrain.variables import VariableSpec
from dtrain.wire.one_host.members import MemberLinks
from dtrain.wire.one_host.synchronization import Doorbells, pairs

SMALL_BYTES = 64 * 1024
TURNS = 100
RULES = {"SGD": optimizers.SGD(0.01), "Adam": optimizers.Adam(0.001)}
Way = Callable[[], object]
CALL = ReplicaCall("all_reduce", "SUM of *", "replicas_of_a_host.py:1")


class Replica:
    """One process."""

    def __init__(self, rank: int, shared: "Shared", words: argparse.Namespace) -> None:
        self.rank, self.count, self.shared, self.words = rank, words.replicas, shared, words
        for ends in shared.ends.values():
            for other, sockets in ends.items():
                for each in sockets.values() if other != rank else ():
                    each.close()
        self.calls = Calls(shared.calls, Doorbells(shared.ends["calls"][rank]), rank)
        self.drivers = {
            name: self._driver(name, MemberLinks(shared.ends[name][rank])) for name in shared.arenas
        }
        for driver in self.drivers.values():
            while driver.next_part() == NO_PART:
                driver.look()  # the first parts have not been dealt yet

    def _driver(self, name: str, links: MemberLinks) -> MemberDriver:
        arena = self.shared.arenas[name]
        if name.endswith("in place"):
            arena.sides = [arena.sides[0]] * 2
        store = arena.store(optimizers.serialize(RULES[name.split()[0]]), max_steps=10**6)
        seats = tuple(MemberSeat(number=each, rank=each, task=f"worker:{each}") for each in range(self.count))
        known = Known(members=seats, dealt=Dealt(self.count))
        rules = RoundRules(replicas=self.count, max_steps=10**6, shares=True)
        member = RoundMember(self.rank, known, rules, math.inf, time.monotonic(), term=next_term(0, 0))
        work = LaneWork(
            arena,
            store,
            phases_of(store, arena),
            Weighting.REPLICAS,
            self.rank,
            sums_after=lambda before, version, sums: (),
            note=lambda job: None,
        )
        orders = LeaderOrders(lambda: None, lambda: ({}, False), lambda: False, lambda news, tally: None)
        return MemberDriver(arena, links, member, Rules(), orders, Waits(), work)

    def step(self, name: str, number: int) -> tuple[Way, Way]:
        """Return what writes the gradient, and what makes the step."""
        driver = self.drivers[name]

        def write() -> None:
            place = driver.place_of(driver.next_part())
            driver.gradients(place).blocks[0][0][:] = self.rank + number

        return write, lambda: driver.contribute(driver.next_part(), 1, None, True)

    def sum(self, number: int, given: np.ndarray) -> tuple[Way, Way]:
        """Return the same of a sum."""

        def write() -> None:
            given[:] = self.rank + number

        return write, lambda: self._check(self.calls.all_reduce(CALL, [given])[0], number)

    def _check(self, found: np.ndarray, number: int) -> None:
        assert found[-1] == sum(range(self.count)) + self.count * number, found[-1]


class Gloo:
    """The same by PyTorch."""

    def __init__(self, rank: int, count: int, init: str) -> None:
        import torch
        from torch import distributed

        self.torch, self.distributed, self.rank = torch, distributed, rank
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        distributed.init_process_group("gloo", init_method=f"file://{init}", rank=rank, world_size=count)
        self._models: dict[str, Any] = {}

    def sum(self, given: Any, number: int) -> tuple[Way, Way]:
        """Return what writes a tensor, and what sums it."""
        return lambda: given.fill_(self.rank + number), partial(self.distributed.all_reduce, given)

    def step(self, name: str, elements: int, number: int) -> tuple[Way, Way]:
        """Return what writes the gradient, and what sums it and makes the step."""
        torch = self.torch
        if name not in self._models:
            value = torch.ones(elements, requires_grad=True)
            value.grad = torch.zeros(elements)
            kind = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}[name]
            self._models[name] = value, kind([value], lr=0.001, fused=True)
        value, optimizer = self._models[name]

        def run() -> None:
            self.distributed.all_reduce(value.grad)
            value.grad.div_(self.distributed.get_world_size())
            optimizer.step()

        return lambda: value.grad.fill_(self.rank + number), run


class Shared:
    """The memory and sockets, made before the processes are."""

    def __init__(self, words: argparse.Namespace) -> None:
        ranks = range(words.replicas)
        elements = int(words.megabytes * 250_000)
        variables = plan([VariableSpec("w", (elements,), "float32", trainable=True)], servers=1)
        names = [f"{name}{more}" for name in RULES for more in ("", " in place")]
        self.arenas = {}
        for name in names if not words.death else ["SGD"]:
            rule = RULES[name.split()[0]]
            arena = Arena.make(
                ArenaShape(variables, optimizers.serialize(rule), words.replicas, words.replicas)
            )
            arena.store(optimizers.serialize(rule)).fill({"w": np.ones(elements, np.float32)})
            arena.put_tally(0, ())
            self.arenas[name] = arena
        self.calls = CallMemory.make(words.replicas)
        self.ends = {name: pairs(ranks) for name in (*self.arenas, "calls")}
        self.elements = elements


def operations(replica: Replica, gloo: Gloo | None) -> dict[str, dict[str, Callable[[int], tuple[Way, Way]]]]:
    """Return by operation and way what makes (write, run) of a round."""
    found: dict[str, dict[str, Callable[[int], tuple[Way, Way]]]] = {}
    for nbytes in replica.words.sizes:
        own = np.zeros(nbytes // 4, np.float32)
        ways: dict[str, Callable[[int], tuple[Way, Way]]] = {
            "dtrain": lambda number, own=own: replica.sum(number, own),
        }
        if gloo is not None:
            ways["gloo"] = partial(gloo.sum, gloo.torch.zeros(nbytes // 4))
        found[f"sum of {nbytes} bytes"] = ways
    for name in RULES:
        both = (name, f"{name} in place")
        ways = {each: partial(replica.step, each) for each in both}
        if gloo is not None:
            ways["gloo"] = partial(gloo.step, name, replica.shared.elements)
        found[f"step of {name}"] = ways
    return found


def body(rank: int, words: argparse.Namespace, shared: Shared, barrier: Any, cpu: Any, said: Any) -> None:
    """Run one process."""
    replica = Replica(rank, shared, words)
    gloo = Gloo(rank, words.replicas, words.init) if words.gloo else None
    told = {}
    for operation, ways in operations(replica, gloo).items():
        small = operation.startswith("sum") and int(operation.split()[2]) <= SMALL_BYTES
        turns = TURNS if small else 1
        spent: dict[str, list[float]] = {way: [] for way in ways}
        used = dict.fromkeys(ways, 0.0)
        for number in range(-2, words.rounds):
            for way, of_round in ways.items():
                write, run = of_round(max(number, 0))
                write()
                barrier.wait()
                began, cpu_began = time.perf_counter(), time.process_time()
                for turn in range(turns):
                    if turn:
                        write()
                    run()
                barrier.wait()
                if number >= 0:
                    spent[way].append((time.perf_counter() - began) * 1e3 / turns)
                    used[way] += (time.process_time() - cpu_began) * 1e3 / turns / words.rounds
        for way in ways:
            cpu[rank] = used[way]
            barrier.wait()
            used[way] = sum(cpu)
            barrier.wait()
        told[operation] = {"ms": spent, "cpu_ms": used}
    if rank == 0:
        said.put(json.dumps(told))
    barrier.wait()


def death(rank: int, words: argparse.Namespace, shared: Shared, barrier: Any, cpu: Any, said: Any) -> None:
    """Die in the midst of an update as the last rank; as another one, tell how long the step took from there."""
    driver = Replica(rank, shared, words).drivers["SGD"]
    updater, victim = driver.store.updater, words.replicas - 1
    make = updater.make
    for number in range(words.rounds):
        last = number == words.rounds - 1
        if last and rank == victim:

            def die(block: Any) -> None:
                make(block)
                cpu[0] = time.perf_counter()
                os.kill(os.getpid(), signal.SIGKILL)

            updater.make = die  # type: ignore[method-assign]
        driver.gradients(driver.place_of(driver.next_part())).blocks[0][0][:] = rank + number
        if not last:
            barrier.wait()
        began = time.perf_counter()
        driver.contribute(driver.next_part(), 1, None, True)
        if not last:
            cpu[1] = time.perf_counter() - began
            barrier.wait()
    if rank == 0:
        assert driver.version == words.rounds
        ms = (time.perf_counter() - cpu[0]) * 1e3
        said.put(json.dumps({"ms": ms, "step_ms": cpu[1] * 1e3}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--megabytes", type=float, default=32)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 4096, 1_000_000, 32_000_000])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("--death", action="store_true")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words.init = f"{folder}/init"
        shared = Shared(words)
        fork = multiprocessing.get_context("fork")
        barrier, said = fork.Barrier(words.replicas), fork.SimpleQueue()
        cpu = fork.Array("d", max(words.replicas, 2))
        run = death if words.death else body
        started = [
            fork.Process(target=run, args=(rank, words, shared, barrier, cpu, said))
            for rank in range(words.replicas)
        ]
        for process in started:
            process.start()
        for ends in shared.ends.values():
            for sockets in ends.values():
                for each in sockets.values():
                    each.close()
        for process in started:
            process.join()
        victims = 1 if words.death else 0
        assert sum(process.exitcode != 0 for process in started) == victims, "a process failed"
        print(said.get())


if __name__ == "__main__":
    main()
