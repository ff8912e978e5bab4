"""float32 in 16 bits and back."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as some
from row_by_row import every_row

from dtrain.parameters.compression import HalfPrecision

FLOATS = some.arrays(np.float32, st.integers(0, 40), elements=st.floats(-(2.0**120), 2.0**120, width=32))


def through(half, block, scale=1.0):
    narrow = half.narrow(block, scale=scale)
    assert (narrow.dtype.name, narrow.size) == (half.dtype, block.size)
    return half.widen(narrow, scale=scale)


@settings(deadline=None, max_examples=100)
@given(FLOATS)
def test_bf16_rounds_to_the_nearest_of_its_numbers(block):
    out = through(HalfPrecision("bf16"), block)
    assert np.all(np.abs(out - block) <= np.abs(block) * 2.0**-8 + 1e-38)
    assert np.array_equal(through(HalfPrecision("bf16"), out), out)


@settings(deadline=None, max_examples=100)
@given(FLOATS, st.integers(-40, 40))
def test_fp16_with_its_scale_holds_gradients_of_any_size(block, exponent):
    half, block = HalfPrecision("fp16"), np.ldexp(np.clip(block, -(2.0**80), 2.0**80), exponent)
    largest = float(np.abs(block).max(initial=0))
    scale = half.scale_for(largest)
    assert math.log2(scale) == round(math.log2(scale))
    out = through(half, block, scale)
    assert np.all(np.abs(out - block) <= np.abs(block) * 2.0**-11 + largest * 2.0**-38 + 1e-44)


def test_fp16_without_a_scale_overflows_to_infinity():
    assert through(HalfPrecision("fp16"), np.array([65504, 1e6, -1e6], np.float32)).tolist() == [
        65504,
        math.inf,
        -math.inf,
    ]
    assert HalfPrecision("bf16").scale_for(1e30) == 1


@every_row("kind", ["bf16", "fp16"])
@every_row("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so(kind, bad):
    half = HalfPrecision(kind)
    found = through(half, np.array([bad, 1], np.float32), half.scale_for(abs(bad)))
    assert np.array_equal(found, [np.float32(bad), 1], equal_nan=True)
