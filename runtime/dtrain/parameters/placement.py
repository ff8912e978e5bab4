"""The plan of which server holds which rows of which variable, and where in its memory. Pure.

The rule *Placement* (docs/design/protocol.md#placement):

1. The chief makes the plan from the declared variables; it travels as data, and its hash rides in every push.
   The same declarations give the same plan.
2. A partitioner may cut a variable into shards `name/part_i`, whole rows each; an uncut one is one shard,
   `name`.
3. round_robin deals the shards to the servers in order of creation, cut or not, trainable or not. greedy
   gives the largest shard first to the server with the fewest bytes, the lowest index among equals.
4. A server keeps all dense shards of one dtype and trainability in one flat array, in the order of the plan.
   So a group travels as one block, and an optimizer passes over one array however many variables there are.
   The shards of sparse variables are its *tables*: each is an array of rows, of which those travel that a
   step touches.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import msgspec

from dtrain.config.choices import Placement
from dtrain.errors import InputError, SpecError
from dtrain.learning import optimizers
from dtrain.types import Array
from dtrain.variables import DTYPE_BYTES, VariableSpec
from dtrain.variables.partitioning import (
    Partitioner,
    partitioner_from_config,
    row_offsets,
    shard_count,
    shard_name,
    split_rows,
)


class _VariableData(msgspec.Struct, frozen=True):
    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    sparse: bool
    shards: list[tuple[int, int]]


class _PlanData(msgspec.Struct, frozen=True):
    servers: int
    variables: list[_VariableData]


class Shard(msgspec.Struct, frozen=True):
    """Rows `row_start` to `row_stop` of one variable, and their server. A scalar counts as one row.

    Attributes:
        name: the variable's own name if it is in one piece, else `name/part_i`.
    """

    variable: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    row_start: int
    row_stop: int
    server: int
    sparse: bool = False

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * DTYPE_BYTES[self.dtype]

    @property
    def rows(self) -> int:
        return self.row_stop - self.row_start

    @property
    def width(self) -> int:
        """Elements of a row."""
        return prod(self.shape[1:])

    @property
    def row_nbytes(self) -> int:
        return self.width * DTYPE_BYTES[self.dtype]


class Group(msgspec.Struct, frozen=True, dict=True):
    """One flat array of all `shards` of one server with the same dtype and trainability, in their order."""

    dtype: str
    trainable: bool
    shards: tuple[Shard, ...]

    @cached_property
    def size(self) -> int:
        return sum(shard.size for shard in self.shards)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        return tuple(row_offsets([shard.size for shard in self.shards]))

    def views(self, flat: Array) -> dict[str, Array]:
        """Return every shard by name, as a view of the group's array."""
        return {
            shard.name: flat[offset : offset + shard.size].reshape(shard.shape)
            for shard, offset in zip(self.shards, self.offsets, strict=True)
        }


class ServerLayout(msgspec.Struct, frozen=True):
    """The memory of one server: its groups, trainable ones first, each in order of creation; its tables."""

    server: int
    groups: tuple[Group, ...]
    tables: tuple[Shard, ...] = ()

    def views(self, flats: Sequence[Array]) -> dict[str, Array]:
        views: dict[str, Array] = {}
        for group, flat in zip(self.groups, flats, strict=True):
            views |= group.views(flat)
        return views


class Plan(msgspec.Struct, frozen=True, dict=True):
    """The placement of all variables of a model.

    Attributes:
        shards: in order of creation; those of one variable are neighbours and cover its rows.
    """

    variables: tuple[VariableSpec, ...]
    shards: tuple[Shard, ...]
    servers: int

    @cached_property
    def hash(self) -> str:
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":")).encode()
        return hashlib.blake2b(canonical, digest_size=8).hexdigest()

    @cached_property
    def layouts(self) -> tuple[ServerLayout, ...]:
        return tuple(
            _layout(server, [shard for shard in self.shards if shard.server == server])
            for server in range(self.servers)
        )

    def layout(self, server: int) -> ServerLayout:
        return self.layouts[server]

    def shards_of(self, variable: int) -> tuple[Shard, ...]:
        return self._by_variable[variable]

    @cached_property
    def _by_variable(self) -> tuple[tuple[Shard, ...], ...]:
        result: list[list[Shard]] = [[] for _ in self.variables]
        for shard in self.shards:
            result[shard.variable].append(shard)
        return tuple(map(tuple, result))

    def to_dict(self) -> dict[str, Any]:
        return {
            "servers": self.servers,
            "variables": [
                {
                    "name": variable.name,
                    "shape": list(variable.shape),
                    "dtype": variable.dtype,
                    "trainable": variable.trainable,
                    "sparse": variable.sparse,
                    "shards": [[shard.row_stop - shard.row_start, shard.server] for shard in shards],
                }
                for variable, shards in zip(self.variables, self._by_variable, strict=True)
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Plan":
        try:
            told = msgspec.convert(data, _PlanData)
        except msgspec.ValidationError as error:
            raise InputError(f"the plan of variables that was received is malformed: {error}") from None
        variables = [VariableSpec(e.name, e.shape, e.dtype, e.trainable, e.sparse) for e in told.variables]
        rows = [[count for count, _ in e.shards] for e in told.variables]
        servers = [server for e in told.variables for _, server in e.shards]
        return _assemble(variables, rows, servers, told.servers)


def plan(
    variables: Sequence[VariableSpec],
    servers: int,
    placement: str = Placement.ROUND_ROBIN,
    partitioner: Partitioner | Mapping[str, int] | None = None,
) -> Plan:
    """Place variables, in order of creation, on servers. A partitioner is as a spec names it, or a function
    of (shape, dtype). Raises a `SpecError` for a wrong placement, partitioner or number of servers, an
    `InputError` for two equal names or an unknown dtype.
    """
    if servers < 1:
        raise SpecError(f"variables need at least one parameter server to lie on, found {servers}")
    cut = partitioner_from_config(partitioner) if isinstance(partitioner, Mapping) else partitioner
    rows = [split_rows(_row_count(variable), shard_count(_checked(variable), cut)) for variable in variables]
    shards = _assemble(variables, rows, [0] * sum(map(len, rows)), servers).shards
    if placement == Placement.ROUND_ROBIN:
        chosen = [turn % servers for turn in range(len(shards))]
    elif placement == Placement.GREEDY:
        largest_first = sorted(range(len(shards)), key=lambda index: -shards[index].nbytes)
        loaded = least_loaded([shards[index].nbytes for index in largest_first], servers)
        chosen = [server for _, server in sorted(zip(largest_first, loaded, strict=True))]
    else:
        raise SpecError(f"placement: expected round_robin or greedy, found {placement!r}")
    return _assemble(variables, rows, chosen, servers)


def placed_on(variables: Sequence[VariableSpec], chosen: Sequence[int], servers: int) -> Plan:
    """Return a plan for which the caller has chosen the server of each variable; none is split."""
    return _assemble(variables, [[_row_count(variable)] for variable in variables], chosen, servers)


def least_loaded(nbytes: Sequence[int], servers: int) -> list[int]:
    loads = [0] * servers
    chosen = []
    for size in nbytes:
        server = loads.index(min(loads))
        loads[server] += size
        chosen.append(server)
    return chosen


def _row_count(variable: VariableSpec) -> int:
    return variable.shape[0] if variable.shape else 1


def _checked(variable: VariableSpec) -> VariableSpec:
    if not isinstance(variable.name, str) or variable.dtype not in DTYPE_BYTES:
        raise InputError(
            f"{variable.name!r} has dtype {variable.dtype!r}; expected one of {', '.join(DTYPE_BYTES)}"
        )
    if any(not isinstance(length, int) or length < 0 for length in variable.shape):
        raise InputError(f"{variable.name} has shape {variable.shape}; expected whole numbers of at least 0")
    return variable


def _assemble(
    variables: Sequence[VariableSpec], rows: Sequence[Sequence[int]], servers: Sequence[int], count: int
) -> Plan:
    shards: list[Shard] = []
    for position, (variable, counts) in enumerate(zip(variables, rows, strict=True)):
        _checked(variable)
        if not counts or any(count < 0 for count in counts) or sum(counts) != _row_count(variable):
            raise InputError(
                f"shards of {counts} rows do not make up {variable.name} of shape {variable.shape}"
            )
        for part, (row_start, number) in enumerate(zip(row_offsets(counts), counts, strict=True)):
            name = shard_name(variable.name, part) if len(counts) > 1 else variable.name
            shape = (number, *variable.shape[1:]) if variable.shape else ()
            server = servers[len(shards)]
            if not 0 <= server < count:
                raise InputError(f"{name} lies on ps:{server}; there are {count} servers")
            kind = shape, variable.dtype, variable.trainable
            shards.append(
                Shard(position, name, *kind, row_start, row_start + number, server, variable.sparse)
            )
    for names in ([v.name for v in variables], [s.name for s in shards]):
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise InputError(
                f"two variables are called {repeated}; every variable and shard needs a name of its own"
            )
    return Plan(tuple(variables), tuple(shards), count)


def _layout(server: int, shards: Sequence[Shard]) -> ServerLayout:
    dense = [shard for shard in shards if not shard.sparse]
    kinds = dict.fromkeys((shard.trainable, shard.dtype) for shard in dense)
    ordered = sorted(kinds, key=lambda kind: not kind[0])
    groups = [
        Group(
            dtype,
            trainable,
            tuple(shard for shard in dense if (shard.trainable, shard.dtype) == (trainable, dtype)),
        )
        for trainable, dtype in ordered
    ]
    return ServerLayout(server, tuple(groups), tuple(shard for shard in shards if shard.sparse))


def unclippable(optimizer: Mapping[str, Any], plan: Plan) -> str | None:
    """Return why an optimizer that limits norms cannot do so on these servers; None if it can.

    A norm needs a whole variable, the global norm all of them, on one server.
    """
    rule = optimizers.from_config(optimizer)
    if rule.global_clipnorm is not None and plan.servers > 1:
        return (
            f"global_clipnorm needs all variables on one parameter server, found {plan.servers}; use "
            "clipnorm or clipvalue"
        )
    if rule.clipnorm is not None and len(plan.shards) > len(plan.variables):
        return (
            "clipnorm needs every variable in one piece; this run's partitioner splits some: use "
            "clipvalue or no partitioner"
        )
    return None
