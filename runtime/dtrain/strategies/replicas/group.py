"""The replicas that train together: how many there are, where, and sums over all of them."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.errors import ProgramError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.strategies.reduction import ReduceOp
from dtrain.strategies.replicas import reducing
from dtrain.strategies.replicas.calls import Call
from dtrain.strategies.replicas.host_peers import PeerProcesses
from dtrain.strategies.replicas.reducing import Leaf
from dtrain.types import Array


class Group:
    """The replicas of this process, and through `peers` those of others.

    Attributes:
        strategy: whose replicas these are.
        replicas: how many run in this process.
        first: the number of its first one among all.
        peers: the other processes; None where there are none.
        updates: how many an optimizer has made in these replicas, for the status of the run.
        refusal: why the program's functions cannot run in them; None: they can.
        devices: the names of the devices of this process's replicas.
        one_copy: whether variables have one copy, on one device; else each replica has one.
        ends: why this process ends where a loop begins; None: it does not.
    """

    def __init__(
        self,
        strategy: Any,
        replicas: int = 1,
        first: int = 0,
        peers: PeerProcesses | None = None,
        refusal: str | None = None,
        ends: str | None = None,
        *,
        devices: Sequence[str] = (),
        one_copy: bool = False,
    ) -> None:
        self.strategy = strategy
        self.refusal = refusal
        self.ends = ends
        self.devices = tuple(devices) or tuple(f"device:CPU:{index}" for index in range(replicas))
        self.one_copy = one_copy
        self.updates = 0
        self.replicas = replicas
        self.first = first
        self.peers = peers

    def check(self, what: str) -> None:
        """Raise a `ProgramError` if functions of the program cannot run in these replicas.

        Raises:
            SystemExit: with code 0, in a process that has no part in a loop.
        """
        if self.ends is not None:
            sys.stdout.write(f"{self.ends}\n")
            raise SystemExit(0)
        if self.refusal is not None:
            raise ProgramError(f"{what}: {self.refusal}")

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are, in all processes."""
        return self.replicas * (1 if self.peers is None else self.peers.tasks)

    def summed(self, call: Call, op: ReduceOp, of_replicas: Sequence[Sequence[Leaf]]) -> list[Leaf]:
        """Return sums or means over all replicas of all processes.

        Args:
            call: to be compared with that of other processes.
            op: the sum or the mean.
            of_replicas: one leaf for each result, from each replica of this process.
        """
        sums = [reducing.total(parts) for parts in zip(*of_replicas, strict=True)]
        if self.peers is not None:
            sums = self._summed_over_tasks(self.peers, call, sums)
        if op is ReduceOp.MEAN:
            return [reducing.divided(each, self.num_replicas_in_sync) for each in sums]
        return sums

    def gathered(self, call: Call, axis: int, of_replicas: Sequence[Sequence[Array]]) -> list[Array]:
        """Return arrays joined over all replicas of all processes; see `summed`."""
        parts = [reducing.joined(each, axis, call.kind) for each in zip(*of_replicas, strict=True)]
        if self.peers is None or not parts:
            return parts
        of_tasks = self.peers.exchange(call, parts)
        return [reducing.joined(each, axis, call.kind) for each in zip(*of_tasks, strict=True)]

    def _summed_over_tasks(self, peers: PeerProcesses, call: Call, sums: Sequence[Leaf]) -> list[Leaf]:
        dense = iter(peers.all_reduce(call, [each for each in sums if isinstance(each, np.ndarray)]))
        result: list[Leaf] = []
        for each in sums:
            if isinstance(each, SparseRows):
                of_tasks = peers.exchange(call, [each.ids, each.rows])
                result.append(reducing.total([SparseRows(ids, rows) for ids, rows in of_tasks]))
            else:
                result.append(next(dense))
        return result
