"""SipHash-2-4 with a key, of many strings at once: TensorFlow's `to_hash_bucket_strong`."""

from collections.abc import Sequence

import numpy as np

from dtrain.learning.layers.preprocessing.hashes.byte_strings import ByteStrings
from dtrain.types import Array

_BEGIN = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_ROUNDS = 2
_LAST_ROUNDS = 4
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_WORD = 2**64


def keyed_hashes(strings: ByteStrings, key: Sequence[int]) -> Array:
    """Return the hash of each string under a key of two 64-bit integers, as unsigned 64-bit integers."""
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


def _rotated(value: Array, bits: int) -> Array:
    return value << np.uint64(bits) | value >> np.uint64(64 - bits)


def _rounds(state: Array, count: int) -> Array:
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = v0 + v1
        v2 = v2 + v3
        v1 = _rotated(v1, 13) ^ v0
        v3 = _rotated(v3, 16) ^ v2
        v0 = _rotated(v0, 32)
        v2 = v2 + v1
        v0 = v0 + v3
        v1 = _rotated(v1, 17) ^ v2
        v3 = _rotated(v3, 21) ^ v0
        v2 = _rotated(v2, 32)
    return np.stack([v0, v1, v2, v3])
