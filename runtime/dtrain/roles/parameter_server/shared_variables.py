"""The variables of a program with a coordinator, on one server: values, slots, changes, answers. Machine.

Pure. The rule *Effectively once* (docs/design/coordinator.md#effectively-once): a closure whose worker dies
runs again elsewhere and makes the same changes in the same order. A server counts the changes of every
closure that has not ended; one that it has made already it answers with the result of the first time.
"""

from collections.abc import Sequence

import numpy as np

from dtrain.errors import DtrainError, InputError
from dtrain.learning import optimizers
from dtrain.learning.optimizers import Optimizer
from dtrain.learning.optimizers.optimizer import Slots
from dtrain.messages import (
    Alter,
    Alteration,
    Altered,
    AnyMessage,
    Look,
    Refusal,
    RefusalKind,
    Share,
    Shared,
    Shown,
)
from dtrain.parameters.placement import Plan
from dtrain.types import Array, Blocks


class SharedVariables:
    """The variables of one session on one server.

    Attributes:
        iterations: by the optimizers' keys, how many updates each has made here.
    """

    def __init__(self, session: int, plan: Plan, server: int, blocks: Blocks) -> None:
        """Copy the first values, flat, in the plan's order. Raises an InputError if they do not fit it."""
        self.session = session
        self.iterations: dict[str, int] = {}
        own = [number for number, shard in enumerate(plan.shards) if shard.server == server]
        self._shards = {number: plan.shards[number] for number in own}
        self._values: dict[int, Array] = {}
        self._check(own, blocks, "the first values")
        self._values = {number: np.array(block) for number, block in zip(own, blocks, strict=True)}
        self.nbytes = sum(value.nbytes for value in self._values.values())
        self._slots: dict[tuple[int, str], Slots] = {}
        self._rules: dict[str, tuple[dict[str, object], Optimizer]] = {}
        self._settled = 1
        self._made: dict[int, list[list[Array]]] = {}
        self._newest_outside = (-1, list[Array]())

    def read(self, shards: Sequence[int]) -> list[Array]:
        """Return the newest values, flat and read-only; the next change may overwrite them."""
        if missing := [number for number in shards if number not in self._values]:
            raise InputError(f"shard {missing[0]} does not lie on this server")
        return [self._values[number] for number in shards]

    def alter(self, message: Alter, blocks: Blocks) -> list[Array]:
        """Make a change once; return the new values of an assignment or addition. Raises an InputError if it
        does not fit, its closure has ended, or changes before it are missing.
        """
        self._check(message.shards, blocks, f"a change of kind {message.kind}")
        if message.closure == 0:
            if message.number > self._newest_outside[0]:
                self._newest_outside = message.number, self._change(message, blocks)
            return self._newest_outside[1]
        self._settle(message.settled)
        if message.closure < self._settled:
            raise InputError(f"closure {message.closure} has ended, and changes nothing any more")
        made = self._made.get(message.closure, [])
        if not 0 <= message.number <= len(made):
            raise InputError(
                f"closure {message.closure} makes change {message.number} on this server, which has "
                f"{len(made)} of it"
            )
        if message.number == len(made):
            self._made[message.closure] = [*made, self._change(message, blocks)]
        return self._made[message.closure][message.number]

    def _settle(self, settled: int) -> None:
        if settled > self._settled:
            self._settled = settled
            self._made = {closure: made for closure, made in self._made.items() if closure >= settled}

    def _check(self, shards: Sequence[int], blocks: Blocks, what: str) -> None:
        wanted = [self._shards.get(number) for number in shards]
        fits = len(blocks) == len(wanted) and all(
            shard is not None and block.dtype == shard.dtype and block.size == shard.size
            for shard, block in zip(wanted, blocks, strict=True)
        )
        if not fits:
            found = [(str(block.dtype), block.size) for block in blocks]
            expected = [shard and (shard.dtype, shard.size) for shard in wanted]
            raise InputError(f"{what}: expected blocks of {expected}, found {found}")

    def _change(self, message: Alter, blocks: Blocks) -> list[Array]:
        if message.kind is Alteration.GRADIENT:
            self._update(message, blocks)
            return []
        for number, block in zip(message.shards, blocks, strict=True):
            value = self._values[number]
            if message.kind is Alteration.ADD:
                np.add(value, block, out=value)
            else:
                value[...] = block
        return [self._values[number].copy() for number in message.shards]

    def _update(self, message: Alter, blocks: Blocks) -> None:
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


class SharedAnswers:
    """The variables that this server holds for a coordinator; `held` is None before they are shared."""

    def __init__(self, server: int, servers: int) -> None:
        self._server = server
        self._servers = servers
        self.held: SharedVariables | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self.held is None else self.held.nbytes

    def answer(self, message: Share | Look | Alter, blocks: Blocks) -> tuple[AnyMessage, Blocks]:
        """Answer a message; the blocks of the answer may be this server's own memory."""
        match message:
            case Share():
                return self._share(message, blocks), ()
            case Look():
                return self._read(message)
            case Alter():
                return self._alter(message, blocks)

    def _share(self, message: Share, blocks: Blocks) -> AnyMessage:
        """Hold other variables; those of an earlier session are given up. Repeating it changes nothing."""
        if self.held is not None and message.session <= self.held.session:
            if message.session == self.held.session:
                return Shared()
            return Refusal(reason=f"{self._name} holds the variables of a later session")
        try:
            plan = Plan.from_dict(message.plan)
            if plan.servers != self._servers:
                raise InputError(f"a plan for {plan.servers} servers, and the cluster has {self._servers}")
            self.held = SharedVariables(message.session, plan, self._server, blocks)
        except DtrainError as error:
            return Refusal(reason=f"the coordinator's plan and values do not fit together: {error}")
        return Shared()

    def _read(self, message: Look) -> tuple[AnyMessage, Blocks]:
        if isinstance(held := self._of(message.session), Refusal):
            return held, ()
        try:
            return Shown(iterations=held.iterations), held.read(message.shards)
        except InputError as error:
            return Refusal(reason=f"{self._name}: {error}"), ()

    def _alter(self, message: Alter, blocks: Blocks) -> tuple[AnyMessage, Blocks]:
        if isinstance(held := self._of(message.session), Refusal):
            return held, ()
        try:
            values = held.alter(message, blocks)
            return Altered(iterations=held.iterations.get(message.optimizer, 0)), values
        except DtrainError as error:
            return Refusal(reason=f"{self._name}: {error}"), ()

    @property
    def _name(self) -> str:
        return f"ps:{self._server}"

    def _of(self, session: int) -> SharedVariables | Refusal:
        if self.held is not None and self.held.session == session:
            return self.held
        if self.held is None or self.held.session < session:
            reason = f"{self._name} has lost the variables of this program: it was started again"
            return Refusal(reason=reason, kind=RefusalKind.LOST)
        reason = f"{self._name} serves a later process of the coordinator"
        return Refusal(reason=reason, kind=RefusalKind.ENDED)
