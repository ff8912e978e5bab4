"""Hashes of many texts at once, by TensorFlow's numbers.

`Fingerprint64` is FarmHash (farmhashna), `to_hash_bucket_strong` is SipHash-2-4 with a key. The texts lie
in one buffer, of which words are read at many places at once.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from dtrain.types import Array

_WORD_BYTES = 8


class ByteStrings:
    """Byte strings one after another; `starts` are their places in the buffer."""

    def __init__(self, buffer: bytes, starts: Array, lengths: Array) -> None:
        padded = buffer + bytes(_WORD_BYTES)
        self.starts = starts
        self.lengths = lengths
        self.bytes = np.frombuffer(padded, np.uint8)
        self._words: Array = np.ndarray(len(padded) - 7, "<u8", padded, strides=(1,))
        self._halves: Array = np.ndarray(len(padded) - 3, "<u4", padded, strides=(1,))

    @classmethod
    def of(cls, values: Array) -> Self:
        """Hold texts (in UTF-8) and bytes of a flat array of objects, or integers in decimal digits."""
        if values.dtype.kind in "iu":
            digits = values.astype(np.bytes_)
            starts = np.arange(len(digits)) * digits.dtype.itemsize
            return cls(digits.tobytes(), starts, np.char.str_len(digits).astype(np.int64))
        return cls.of_list([_bytes_of(each) for each in values.tolist()])

    @classmethod
    def of_list(cls, values: Sequence[bytes]) -> Self:
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        return cls(b"".join(values), np.cumsum(lengths) - lengths, lengths)

    def __len__(self) -> int:
        return len(self.starts)

    def word(self, places: Array) -> Array:
        """Return the 64-bit numbers, lowest byte first, that begin at these places of the buffer."""
        return self._words[places]

    def half(self, places: Array) -> Array:
        return self._halves[places].astype(np.uint64)

    def byte(self, places: Array) -> Array:
        return self.bytes[places].astype(np.uint64)


def _bytes_of(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


_K0 = np.uint64(0xC3A5C85C97CB3127)
_K1 = np.uint64(0xB492B66FBE98F273)
_K2 = np.uint64(0x9AE16A3B2F90404F)
_CAT = np.uint64(0xC6A4A7935BD1E995)
_SEED = 81
_BLOCK_BYTES = 64
_WORD = 2**64


def fingerprints(strings: ByteStrings) -> Array:
    found = np.empty(len(strings), np.uint64)
    kinds: list[tuple[int, int, Callable[[ByteStrings, Array, Array], Array]]] = [
        (0, 0, lambda strings, starts, lengths: np.full(len(starts), _K2)),
        (1, 3, _of_1_to_3),
        (4, 7, _of_4_to_7),
        (8, 16, _of_8_to_16),
        (17, 32, _of_17_to_32),
        (33, 64, _of_33_to_64),
        (65, 2**62, _of_more),
    ]
    for low, high, hashed in kinds:
        chosen = np.flatnonzero((strings.lengths >= low) & (strings.lengths <= high))
        if len(chosen):
            lengths = strings.lengths[chosen]
            found[chosen] = hashed(strings, strings.starts[chosen], lengths)
    return found


def chained(first: Array, second: Array) -> Array:
    """Return TensorFlow's `FingerprintCat64` of two arrays of fingerprints."""
    result = first ^ _CAT
    result ^= _mixed(second * _CAT) * _CAT
    result *= _CAT
    return _mixed(_mixed(result) * _CAT)


def _rotated(value: Array, bits: int) -> Array:
    return value >> np.uint64(bits) | value << np.uint64(64 - bits)


def _mixed(value: Array) -> Array:
    mixed: Array = value ^ value >> np.uint64(47)
    return mixed


def _joined(u: Array, v: Array, factor: Array) -> Array:
    a = _mixed((u ^ v) * factor)
    return _mixed((v ^ a) * factor) * factor


def _factor(lengths: Array) -> Array:
    return lengths.astype(np.uint64) * np.uint64(2) + _K2


def _of_1_to_3(strings: ByteStrings, starts: Array, lengths: Array) -> Array:
    y = strings.byte(starts) + (strings.byte(starts + (lengths >> 1)) << np.uint64(8))
    z = lengths.astype(np.uint64) + (strings.byte(starts + lengths - 1) << np.uint64(2))
    return _mixed(y * _K2 ^ z * _K0) * _K2


def _of_4_to_7(strings: ByteStrings, starts: Array, lengths: Array) -> Array:
    u = lengths.astype(np.uint64) + (strings.half(starts) << np.uint64(3))
    return _joined(u, strings.half(starts + lengths - 4), _factor(lengths))


def _of_8_to_16(strings: ByteStrings, starts: Array, lengths: Array) -> Array:
    factor = _factor(lengths)
    a = strings.word(starts) + _K2
    b = strings.word(starts + lengths - 8)
    c = _rotated(b, 37) * factor + a
    d = (_rotated(a, 25) + b) * factor
    return _joined(c, d, factor)


def _of_17_to_32(strings: ByteStrings, starts: Array, lengths: Array) -> Array:
    factor = _factor(lengths)
    a = strings.word(starts) * _K1
    b = strings.word(starts + 8)
    c = strings.word(starts + lengths - 8) * factor
    d = strings.word(starts + lengths - 16) * _K2
    return _joined(_rotated(a + b, 43) + _rotated(c, 30) + d, a + _rotated(b + _K2, 18) + c, factor)


def _of_33_to_64(strings: ByteStrings, starts: Array, lengths: Array) -> Array:
    factor = _factor(lengths)
    a = strings.word(starts) * _K2
    b = strings.word(starts + 8)
    c = strings.word(starts + lengths - 8) * factor
    d = strings.word(starts + lengths - 16) * _K2
    y = _rotated(a + b, 43) + _rotated(c, 30) + d
    z = _joined(y, a + _rotated(b + _K2, 18) + c, factor)
    e = strings.word(starts + 16) * factor
    f = strings.word(starts + 24)
    g = (y + strings.word(starts + lengths - 32)) * factor
    h = (z + strings.word(starts + lengths - 24)) * factor
    return _joined(_rotated(e + f, 43) + _rotated(g, 30) + h, e + _rotated(f + a, 18) + g, factor)


def _of_more(strings: ByteStrings, starts: Array, lengths: Array) -> Array:
    """Hash strings of more than 64 bytes: block after block, then the last 64 bytes once more."""
    blocks = (lengths - 1) // _BLOCK_BYTES
    seed = int(_K1) * _SEED + 113
    first_z = _mixed(np.array([(seed * int(_K2) + 113) % _WORD], np.uint64)) * _K2
    state = np.zeros((7, len(starts)), np.uint64)  # x, y, z, and the pairs v and w
    state[0] = np.uint64(int(_K2) * _SEED % _WORD) + strings.word(starts)
    state[1] = np.uint64(seed % _WORD)
    state[2] = first_z
    for block in range(int(blocks.max())):
        going = np.flatnonzero(blocks > block)
        places = starts[going] + block * _BLOCK_BYTES
        state[:, going] = _block(strings, places, state[:, going], np.full(len(going), _K1), _ONE)
    x, y, z, v0, v1, w0, w1 = state
    factor = _K1 + ((z & np.uint64(0xFF)) << np.uint64(1))
    w0 = w0 + ((lengths - 1) & 63).astype(np.uint64)
    v0 = v0 + w0
    last = np.stack([x, y, z, v0, v1, w0 + v0, w1])
    x, y, z, v0, v1, w0, w1 = _block(strings, starts + lengths - _BLOCK_BYTES, last, factor, _NINE)
    return _joined(_joined(v0, w0, factor) + _mixed(y) * _K0 + z, _joined(v1, w1, factor) + x, factor)


_ONE = np.uint64(1)
_NINE = np.uint64(9)


def _block(strings: ByteStrings, at: Array, state: Array, factor: Array, weight: np.uint64) -> Array:
    x, y, z, v0, v1, w0, w1 = state
    x = _rotated(x + y + v0 + strings.word(at + 8), 37) * factor
    y = _rotated(y + v1 + strings.word(at + 48), 42) * factor
    x = x ^ w1 * weight
    y = y + v0 * weight + strings.word(at + 40)
    z = _rotated(z + w0, 33) * factor
    v0, v1 = _weak(strings, at, v1 * factor, x + w0)
    w0, w1 = _weak(strings, at + 32, z + w1, y + strings.word(at + 16))
    return np.stack([z, y, x, v0, v1, w0, w1])


def _weak(strings: ByteStrings, at: Array, a: Array, b: Array) -> tuple[Array, Array]:
    last = strings.word(at + 24)
    a = a + strings.word(at)
    b = _rotated(b + a + last, 21)
    c = a
    a = a + strings.word(at + 8) + strings.word(at + 16)
    return a + last, b + _rotated(a, 44) + c


_BEGIN = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_ROUNDS = 2
_LAST_ROUNDS = 4
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)


def keyed_hashes(strings: ByteStrings, key: Sequence[int]) -> Array:
    """Hash each string under a key of two 64-bit integers."""
    halves = [int(half) % _WORD for half in key]
    state = np.empty((4, len(strings)), np.uint64)
    for row, begin in enumerate(_BEGIN):
        state[row] = np.uint64(begin ^ halves[row % 2])
    words = strings.lengths // 8
    for word in range(int(words.max(initial=0))):
        going = np.flatnonzero(words > word)
        read = strings.word(strings.starts[going] + 8 * word)
        state[:, going] = _mixed_in(state[:, going], read)
    left = (strings.lengths % 8).astype(np.uint64)
    tail = strings.word(strings.starts + 8 * words) & ~(_ONES << left * np.uint64(8))
    state = _mixed_in(state, tail | strings.lengths.astype(np.uint64) << np.uint64(56))
    state[2] ^= np.uint64(0xFF)
    state = _rounds(state, _LAST_ROUNDS)
    hashes: Array = np.bitwise_xor.reduce(state, axis=0)
    return hashes


def _mixed_in(state: Array, words: Array) -> Array:
    state[3] ^= words
    state = _rounds(state, _ROUNDS)
    state[0] ^= words
    return state


def _turned_left(value: Array, bits: int) -> Array:
    return value << np.uint64(bits) | value >> np.uint64(64 - bits)


def _rounds(state: Array, count: int) -> Array:
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = v0 + v1
        v2 = v2 + v3
        v1 = _turned_left(v1, 13) ^ v0
        v3 = _turned_left(v3, 16) ^ v2
        v0 = _turned_left(v0, 32)
        v2 = v2 + v1
        v0 = v0 + v3
        v1 = _turned_left(v1, 17) ^ v2
        v3 = _turned_left(v3, 21) ^ v0
        v2 = _turned_left(v2, 32)
    return np.stack([v0, v1, v2, v3])
