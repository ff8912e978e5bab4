"""A call that all members make: what it says of itself, how it is written, and the sum of what is given.

    written:  length of the text (u64, little endian) | text: msgpack of the call and the kinds of its arrays
              the arrays, each at a multiple of 64 bytes

That is the form in memory that processes share, and between hosts.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np

from dtrain.errors import CallsDifferError, PeerRefusedError
from dtrain.types import Array

_OWN = (f"{Path(__file__).parents[1]}{os.sep}", f"{Path(os.__file__).parent}{os.sep}")
"""The folders of dtrain and of Python itself, whose lines are no call sites."""
LARGEST_BYTES = 4 << 30
"""The arrays of one call take so much at most."""
LENGTH_BYTES = 8
_ALIGNED_BYTES = 64
_DTYPE_KINDS = "biufcmMSUV"


class ReplicaCall(msgspec.Struct, frozen=True, array_like=True, cache_hash=True):
    """A call in one replica.

    Attributes:
        kind: the function's name.
        what: what must be equal in all replicas, in words: operation, form, dtypes and shapes.
        site: ``file:line`` in the user's program.
    """

    kind: str
    what: str
    site: str

    @classmethod
    def here(cls, kind: str, what: str = "") -> Self:
        """Return a call of the innermost line that is not dtrain's own."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_OWN):
            frame = frame.f_back
        site = "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return cls(kind, what, site)

    def __str__(self) -> str:
        return f"{self.kind}{f' of {self.what}' if self.what else ''} at {self.site}"


def check_calls(calls: Mapping[int, ReplicaCall]) -> None:
    """Raise a `CallsDifferError` that names two sites, unless all calls, by member, agree."""
    (first, one), *others = calls.items()
    for member, call in others:
        if call is not one and (call.kind, call.what) != (one.kind, one.what):
            raise CallsDifferError(
                f"replicas made different calls: replica {first} {one}, replica {member} {call}; every "
                "replica must make the same calls in the same order, with values of the same form, shapes "
                "and dtypes"
            )


class GivenCall(NamedTuple):
    """A call, and what one member gives to it: arrays, or anything where all members share a process."""

    call: ReplicaCall
    arrays: Sequence[Any]


ArrayKind = tuple[str, tuple[int, ...]]
"""The dtype and the shape of an array."""
_Text = tuple[ReplicaCall, list[ArrayKind]]
_decoder = msgspec.msgpack.Decoder(_Text)


class WrittenCall:
    """The form of a call and its arrays as bytes.

    Attributes:
        head: the length and the text.
        first: where the arrays begin, if they follow the head.
        nbytes: of the arrays.
    """

    def __init__(self, call: ReplicaCall, kinds: Sequence[ArrayKind]) -> None:
        text = msgspec.msgpack.encode((call, kinds))
        self.call = call
        self.kinds = kinds
        self.head = len(text).to_bytes(LENGTH_BYTES, "little") + text
        self.first = _aligned(len(self.head))
        sizes = [np.dtype(dtype).itemsize * prod(shape) for dtype, shape in kinds]
        *self._starts, self.nbytes = accumulate(map(_aligned, sizes), initial=0)
        self._slices = [slice(at, at + nbytes) for at, nbytes in zip(self._starts, sizes, strict=True)]

    @classmethod
    def of(cls, given: GivenCall) -> Self:
        return cls(given.call, [(each.dtype.str, each.shape) for each in given.arrays])

    @classmethod
    def read(cls, text: bytes, who: str) -> Self:
        """Return the form that a text describes, or raise a `PeerRefusedError` that says who has sent it."""
        try:
            call, kinds = _decoder.decode(text)
            for kind in kinds:
                _check(kind)
            return cls(call, kinds)
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise PeerRefusedError(
                f"{who} describes its call as no version of dtrain does: {error}"
            ) from None

    def views(self, data: Array) -> list[Array]:
        """Return the arrays that begin with the bytes `data`; it is the base of each."""
        return [
            data[part].view(dtype).reshape(shape)
            for part, (dtype, shape) in zip(self._slices, self.kinds, strict=True)
        ]

    def filled(self, arrays: Sequence[Array]) -> Array:
        """Return arrays of these kinds as bytes."""
        data = np.zeros(self.nbytes, np.uint8)
        for view, array in zip(self.views(data), arrays, strict=True):
            view[...] = array
        return data


def _aligned(nbytes: int) -> int:
    return nbytes + -nbytes % _ALIGNED_BYTES


def _check(kind: ArrayKind) -> None:
    dtype, shape = np.dtype(kind[0]), kind[1]
    nbytes = dtype.itemsize * prod(shape)
    if dtype.kind not in _DTYPE_KINDS or min(shape, default=0) < 0 or nbytes > LARGEST_BYTES:
        raise ValueError(f"expected an array of at most {LARGEST_BYTES} bytes, found {kind}")


def added_up(terms: Sequence[Array], out: Array | None = None) -> Array:
    """Return the sum of arrays of one shape and dtype, in their order: a new array, or `out`."""
    if len(terms) > 1:
        out = np.asarray(np.add(terms[0], terms[1], out=out))
    elif out is None:
        out = terms[0].copy()
    else:
        out[...] = terms[0]
    for term in terms[2:]:
        np.add(out, term, out=out)
    return out
