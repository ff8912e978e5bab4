"""FarmHash's 64-bit fingerprint (farmhashna), of many strings at once: TensorFlow's `Fingerprint64`."""

from collections.abc import Callable

import numpy as np

from dtrain.learning.layers.preprocessing.hashes.byte_strings import ByteStrings
from dtrain.types import Array

_K0 = np.uint64(0xC3A5C85C97CB3127)
_K1 = np.uint64(0xB492B66FBE98F273)
_K2 = np.uint64(0x9AE16A3B2F90404F)
_CAT = np.uint64(0xC6A4A7935BD1E995)
_SEED = 81
_BLOCK_BYTES = 64
_WORD = 2**64


def fingerprints(strings: ByteStrings) -> Array:
    """Return the fingerprint of each string, as unsigned 64-bit integers."""
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
    """Return the state after the block of 64 bytes at each place."""
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
    """Mix 32 bytes into two numbers."""
    last = strings.word(at + 24)
    a = a + strings.word(at)
    b = _rotated(b + a + last, 21)
    c = a
    a = a + strings.word(at + 8) + strings.word(at + 16)
    return a + last, b + _rotated(a, 44) + c
