"""The variables of a program with a coordinator, on one server: values, slots, operations, answers. Machine.

Pure. The rule *Effectively once* (docs/design/protocol.md#closures): a closure whose worker dies
runs again elsewhere and makes the same changes in the same order. A server counts the changes of every
closure that has not ended; one that it has made already it answers with the result of the first time.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dtrain.errors import DtrainError, InputError
from dtrain.learning import optimizers
from dtrain.learning.optimizers import Optimizer
from dtrain.learning.optimizers.optimizer import Slots
from dtrain.messages import AnyMessage, Operate, Operated, Operation, Refusal, RefusalKind, Share
from dtrain.parameters.placement import Plan, Shard
from dtrain.types import Array, Blocks


class SharedVariables:
    """The variables of the newest session on one server; before the first one there are none.

    Attributes:
        iterations: by the optimizers' keys, how many updates each has made here.
    """

    def __init__(self, server: int, servers: int) -> None:
        self._name = f"ps:{server}"
        self._server = server
        self._servers = servers
        self._begin(0, {}, ())

    def _begin(self, session: int, shards: Mapping[int, Shard], blocks: Blocks) -> None:
        """Copy the first values of a session, flat; those of an earlier one are given up."""
        self._check(shards.values(), blocks, "the first values")
        self._session = session
        self._shards = shards
        self._values = {number: np.array(block) for number, block in zip(shards, blocks, strict=True)}
        self.nbytes = sum(value.nbytes for value in self._values.values())
        self._slots: dict[tuple[int, str], Slots] = {}
        self._rules: dict[str, tuple[dict[str, object], Optimizer]] = {}
        self.iterations: dict[str, int] = {}
        self._settled = 1
        self._made: dict[int, list[list[Array]]] = {}
        self._newest_outside = (-1, list[Array]())

    def answer(self, message: Share | Operate, blocks: Blocks) -> tuple[AnyMessage, Blocks]:
        """Answer a message; the blocks of the answer may be this server's own memory. What does not fit, is
        of another session, or of a closure that has ended, is refused and changes nothing.
        """
        try:
            if isinstance(message, Share):
                self._share(message, blocks)
                return Operated(), ()
            if message.session > self._session:
                reason = f"{self._name} has lost the variables of this program: it was started again"
                return Refusal(reason=reason, kind=RefusalKind.LOST), ()
            if message.session < self._session:
                reason = f"{self._name} serves a later process of the coordinator"
                return Refusal(reason=reason, kind=RefusalKind.ENDED), ()
            values = self._operate(message, blocks)
            return Operated(iterations=dict(self.iterations)), values
        except DtrainError as error:
            return Refusal(reason=f"{self._name}: {error}"), ()

    def _share(self, message: Share, blocks: Blocks) -> None:
        """Begin a session; to repeat it changes nothing."""
        if message.session < self._session:
            raise InputError("it holds the variables of a later session")
        plan = Plan.from_dict(message.plan)
        if plan.servers != self._servers:
            raise InputError(f"a plan for {plan.servers} servers, and the cluster has {self._servers}")
        if message.session > self._session:
            own = {number: shard for number, shard in enumerate(plan.shards) if shard.server == self._server}
            self._begin(message.session, own, blocks)

    def _operate(self, message: Operate, blocks: Blocks) -> list[Array]:
        """Read, or make a change once; return the values that are answered."""
        if missing := [number for number in message.shards if number not in self._shards]:
            raise InputError(f"shard {missing[0]} does not lie on this server")
        if message.kind is Operation.READ:
            return [self._values[number] for number in message.shards]
        self._check(
            [self._shards[number] for number in message.shards], blocks, f"{message.kind} of variables"
        )
        if message.closure == 0:
            if message.number > self._newest_outside[0]:
                self._newest_outside = message.number, self._change(message, blocks)
            return self._newest_outside[1]
        if message.settled > self._settled:
            self._settled = message.settled
            self._made = {number: made for number, made in self._made.items() if number >= self._settled}
        if message.closure < self._settled:
            raise InputError(f"closure {message.closure} has ended, and changes nothing any more")
        made = self._made.get(message.closure, [])
        if not 0 <= message.number <= len(made):
            raise InputError(
                f"closure {message.closure} makes change {message.number} on this server, which has "
                f"{len(made)} of it"
            )
        if message.number == len(made):
            self._made[message.closure] = made = [*made, self._change(message, blocks)]
        return made[message.number]

    @staticmethod
    def _check(shards: Iterable[Shard], blocks: Blocks, what: str) -> None:
        expected = [(shard.dtype, shard.size) for shard in shards]
        found: list[Any] = [(block.dtype, block.size) for block in blocks]
        if found != expected:
            raise InputError(f"{what}: expected blocks of {expected}, found {found}")

    def _change(self, message: Operate, blocks: Blocks) -> list[Array]:
        values = [self._values[number] for number in message.shards]
        if message.kind is Operation.GRADIENT:
            self._update(message, blocks)
            return []
        for value, block in zip(values, blocks, strict=True):
            if message.kind is Operation.ADD:
                np.add(value, block, out=value)
            else:
                np.copyto(value, block)
        return [value.copy() for value in values]

    def _update(self, message: Operate, blocks: Blocks) -> None:
        """Let an optimizer update these shards; it counts every update, also one of none of its shards."""
        key = message.optimizer
        for shard in map(self._shards.__getitem__, message.shards):
            if not shard.dtype.startswith("float"):
                raise InputError(f"{shard.name} has dtype {shard.dtype}, which no optimizer updates")
        config, rule = self._rules.get(key, (None, None))
        if rule is None or config != message.config:
            rule = optimizers.from_config(message.config)
            self._rules[key] = message.config, rule
        step = self.iterations.get(key, 0)
        for number, gradient in zip(message.shards, blocks, strict=True):
            value = self._values[number]
            slots = self._slots.get((number, key))
            if slots is None:
                slots = self._slots[number, key] = rule.initial_slots(value)
            rule.update(value, gradient, slots, step)
        self.iterations[key] = step + 1
