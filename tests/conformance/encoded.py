"""Values of the golden files m4: arrays, nests and Python values as JSON; read, and compared."""

import functools
from collections import namedtuple

import ml_dtypes
import numpy as np

from dtrain.distribute import PerReplica

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "string": np.str_}


def decoded(data):
    """Return a value: arrays, lists, tuples, dicts, named tuples and Python values."""
    if isinstance(data, list):
        return [decoded(each) for each in data]
    if not isinstance(data, dict):
        return data
    if "dtype" in data:
        return _array(data)
    for kind, value in data.items():
        if kind == "python":
            return value
        if kind == "list":
            return decoded(value)
        if kind == "tuple":
            return tuple(decoded(value))
        if kind == "dict":
            return {name: decoded(each) for name, each in value.items()}
        if kind == "namedtuple":
            return _named(tuple(value))(*map(decoded, value.values()))
        if kind == "per_replica":
            return PerReplica(decoded(value))
    return {name: decoded(each) for name, each in data.items()}


def check_equal(found, expected):
    """Fail unless a value is the expected one: its form, dtypes, and numbers within tolerance."""
    if isinstance(expected, PerReplica):
        check_equal(list(found.values), list(expected.values))
    elif isinstance(expected, dict):
        assert set(found) == set(expected)
        for name, each in expected.items():
            check_equal(found[name], each)
    elif isinstance(expected, list | tuple):
        assert type(found).__name__ == type(expected).__name__
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check_equal(one, other)
    elif isinstance(expected, np.ndarray):
        found = np.asarray(found)
        assert found.shape == expected.shape
        assert found.dtype.kind == expected.dtype.kind == "U" or found.dtype == expected.dtype
        if expected.dtype.kind in "Ub":
            assert (found == expected).all()
        else:
            wide = np.complex128 if expected.dtype.kind == "c" else np.float64
            loose = 8e-3 if expected.dtype.itemsize == 2 else 1e-4
            np.testing.assert_allclose(found.astype(wide), expected.astype(wide), rtol=loose, atol=1e-5)
    elif isinstance(expected, float):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    else:
        assert found == expected


@functools.cache
def _named(fields):
    return namedtuple("Named", fields)


def _array(data):
    value = data["value"]
    if isinstance(value, dict):
        value = np.array(value["real"]) + 1j * np.array(value["imag"])
    return np.array(value, DTYPES.get(data["dtype"], data["dtype"])).reshape(data["shape"])
