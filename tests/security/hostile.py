"""Frames that a task with the run's secret must not be able to do harm with: drawn from a seed."""

import functools
import random
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import numpy as np

from dtrain import messages
from dtrain.config import training_section
from dtrain.variables import DTYPE_BYTES
from dtrain.wire.frames import encode

LEADERS = (
    messages.Initialise,
    messages.Load,
    messages.Hold,
    messages.Control,
    messages.Mark,
    messages.Snapshot,
    messages.SnapshotRows,
    messages.Record,
    messages.Conclude,
    messages.Farewell,
)
KINDS = get_args(messages.AnyMessage)
INTS = (-(2**63), -(2**31), -1, *(0, 1, 2) * 5, 3, 7, 2**31, 2**63 - 1)
FLOATS = (*(float("nan"), 0.0, 1.0) * 2, float("inf"), float("-inf"), -1.0, 1e-320, 1e308)
TEXTS = (
    "",
    "ps:0",
    "chief:0",
    "worker:0",
    "worker:99999999999999999999",
    "\x1b]0;OWNED\x07",
    "\u202e",
    "a" * 5000,
)
SECTIONS = tuple(
    training_section(updates=updates, **more)
    for updates in ("sync", "async")
    for more in ({}, {"seed": 5}, {"chief_trains": False})
)


@functools.cache
def _fields_of(kind: type) -> tuple[msgspec.inspect.Field, ...]:
    return msgspec.inspect.type_info(kind).fields


class Hostile:
    """An endless source of frames.

    Attributes:
        role: which task they come from; what it may rightly say is never among them.
    """

    def __init__(self, role: str, seed: int) -> None:
        self.role = role
        self._chance = random.Random(f"{role} {seed}")

    def frames(self) -> Iterator[bytes]:
        """Yield frames, as the bytes of one connection; the next one begins a new connection."""
        while True:
            kind = self._chance.random()
            if kind < 0.1:
                yield self._chance.randbytes(self._chance.choice((1, 3, 4, 17, 200, 3000)))
                continue
            message = self._message()
            data = b"".join(encode(message, self._blocks()))
            yield self._damaged(data) if kind < 0.3 else data

    def rightful(self, message: messages.AnyMessage) -> bool:
        """Return whether the task of this role may say it: the holder of the secret is the run.

        A heartbeat of a later process takes the place of the one before, the leader gives orders, and a server
        says truly or falsely what it holds.
        """
        match message:
            case messages.Heartbeat(process=(attempt, began_s)):
                return attempt > 0 or (attempt == 0 and began_s > 1e9)
            case messages.Complete(generation=1):
                return self.role.startswith("ps:")
        return self.role == "chief:0" and isinstance(message, LEADERS)

    def _message(self) -> Any:
        kind = self._chance.choice(KINDS)
        return kind(
            **{
                field.name: self._value(field.type)
                for field in _fields_of(kind)
                if self._chance.random() < 0.9 or field.required
            }
        )

    def _value(self, kind: Any) -> Any:
        choose, m = self._chance.choice, msgspec.inspect
        match kind:
            case m.IntType():
                return choose(INTS)
            case m.FloatType():
                return choose(FLOATS)
            case m.StrType():
                return choose(TEXTS)
            case m.BoolType():
                return choose((True, False))
            case m.BytesType():
                return self._chance.randbytes(choose((0, 1, 8, 100)))
            case m.NoneType():
                return None
            case m.LiteralType(values=values):
                return choose(values)
            case m.EnumType(cls=cls):
                return choose(list(cls))
            case m.UnionType(types=types) if (
                any(isinstance(each, m.StructType) for each in types)
                and len(types) > 1
                and all(not isinstance(each, m.NoneType) for each in types)
            ):
                return choose(SECTIONS)
            case m.UnionType(types=types):
                return self._value(choose(types))
            case m.TupleType(item_types=types):
                return tuple(self._value(each) for each in types)
            case m.VarTupleType(item_type=each) | m.ListType(item_type=each):
                return [self._value(each) for _ in range(choose((0, 1, 3)))]
            case m.DictType(key_type=key, value_type=value):
                return {self._value(key): self._value(value) for _ in range(choose((0, 1, 2)))}
            case m.StructType(cls=cls, fields=fields) | m.DataclassType(cls=cls, fields=fields):
                return cls(**{field.name: self._value(field.type) for field in fields})
            case m.NamedTupleType(cls=cls, fields=fields):
                return cls(*(self._value(field.type) for field in fields))
            case m.TypedDictType(fields=fields):
                return {field.encode_name: self._value(field.type) for field in fields}
            case m.AnyType():
                return choose((None, *INTS, *FLOATS, *TEXTS, [], {}, {"shape": [2**40, 2**40]}, [[[]]]))
        raise AssertionError(kind)

    def _blocks(self) -> list[np.ndarray]:
        names = sorted(DTYPE_BYTES)
        made = []
        for _ in range(self._chance.choice((0, 0, 1, 2, 5))):
            name = self._chance.choice(names)
            size = self._chance.choice((0, 1, 7, 64))
            made.append(np.frombuffer(self._chance.randbytes(size * DTYPE_BYTES[name]), np.uint8).view(name))
        return made

    def _damaged(self, data: bytes) -> bytes:
        damaged = bytearray(data)
        for _ in range(self._chance.choice((1, 2, 8))):
            damaged[self._chance.randrange(len(damaged))] = self._chance.randrange(256)
        return bytes(damaged[: self._chance.randint(1, len(damaged))])
