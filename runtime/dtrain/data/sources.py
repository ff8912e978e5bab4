"""Sources of elements: arrays in memory, objects with items, Python generators, numbers, names of files.

An object has `__len__` and `__getitem__`, such as torch's map-style datasets and Grain's sources.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import glob
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from dtrain.data.chance import generator_of
from dtrain.data.node import INFINITE, Indices, Iteration, Node
from dtrain.data.record_index.index_files import SUFFIX
from dtrain.data.stores.opening import matching_urls
from dtrain.data.stores.remote import shown
from dtrain.data.structure import Element, TensorSpec, arrays_of, as_arrays, map_arrays, spec_of
from dtrain.errors import InputError, InvalidArgumentError
from dtrain.formats.remote_files import is_url


class Slices(Node):
    """The rows of arrays of equal length."""

    addressable = True

    def __init__(self, tensors: Any) -> None:
        self._arrays = as_arrays(tensors)
        shapes = [np.shape(array) for array in arrays_of(self._arrays)]
        if not shapes or () in shapes or len({shape[0] for shape in shapes}) > 1:
            raise InputError(f"from_tensor_slices: expected arrays of one length, found shapes {shapes}.")
        self.cardinality = shapes[0][0]

    @property
    def spec(self) -> Any:
        return map_arrays(lambda each: TensorSpec(each.shape[1:], each.dtype), spec_of(self._arrays))

    def element(self, index: int, iteration: Iteration) -> Element:
        return map_arrays(lambda array: array[index], self._arrays)

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        rows: Any = indices
        if isinstance(indices, range):
            rows = slice(indices.start, indices.stop, indices.step)  # gives views
        return map_arrays(lambda array: array[rows], self._arrays)


class FileNames(Slices):
    """Names of files, and values beside them, for a function that reads the files."""

    def __init__(self, tensors: Any, files: Sequence[str]) -> None:
        super().__init__(tensors)
        self.files = files


class Single(Node):
    """One element."""

    addressable = True
    cardinality = 1

    def __init__(self, tensors: Any) -> None:
        self._element = as_arrays(tensors)

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._element


class Range(Node):
    """The int64 numbers of a `range`."""

    addressable = True

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers
        self.cardinality = len(numbers)

    @property
    def spec(self) -> Any:
        return TensorSpec((), "int64")

    def element(self, index: int, iteration: Iteration) -> Element:
        return np.int64(self._numbers[index])

    def elements(self, indices: Indices, iteration: Iteration) -> Element:
        return self._numbers.start + np.asarray(indices, np.int64) * self._numbers.step


class OfType(msgspec.Struct, frozen=True):
    """Arrays of a dtype, of any shape; stands in the place of a `TensorSpec` in a signature."""

    dtype: str


class Generated(Node):
    """Elements of a function's iterable, called once an iteration, in the dtypes of a signature if given."""

    def __init__(
        self, generator: Callable[..., Iterable[Any]], signature: Any, args: Sequence[Any] = ()
    ) -> None:
        self._generator = generator
        self._signature = signature
        self._args = tuple(as_arrays(each) for each in args)

    @property
    def spec(self) -> Any:
        signature = self._signature
        known = signature is not None and all(isinstance(each, TensorSpec) for each in arrays_of(signature))
        return signature if known else super().spec

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        elements = self._generator(*self._args)
        if self._signature is None:
            return map(as_arrays, elements)
        return (_cast_all(self._signature, element) for element in elements)


class ReadOnce(Node):
    """The elements that an iterator still has; the first is given again until the second is asked for."""

    def __init__(self, elements: Iterator[Any], cardinality: int) -> None:
        self._elements = map(as_arrays, elements)
        self._first: list[Any] = []
        self._begun = False
        self.cardinality = cardinality

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        if not self._begun:
            self._first = self._first or list(islice(self._elements, 1))
            yield from self._first
            self._begun = True
        yield from self._elements
        if self.cardinality == INFINITE:
            raise InputError(
                "data: the generator has ended before the last step; give fewer steps, or "
                "dtrain.data.Dataset.from_generator(function_that_makes_it), which begins again"
            )


def signature_of(types: Any, shapes: Any, signature: Any) -> Any:
    """Return the signature that the newer or older arguments of `from_generator` say, or None."""
    if isinstance(types, TensorSpec) or (
        types is not None and any(isinstance(each, TensorSpec) for each in arrays_of(types))
    ):
        types, signature = None, types if signature is None else signature
    if signature is not None:
        if types is not None or shapes is not None:
            raise InputError(
                "from_generator: expected output_signature, or output_types with output_shapes, found both"
            )
        return signature
    if types is None:
        if shapes is not None:
            raise InputError("from_generator: expected output_types beside output_shapes, found None")
        return None
    return _with_shapes(types, shapes)


def _with_shapes(types: Any, shapes: Any) -> Any:
    if isinstance(types, tuple):
        parts = shapes if shapes is not None else (None,) * len(types)
        return tuple(_with_shapes(*each) for each in zip(types, parts, strict=True))
    if isinstance(types, dict):
        return {key: _with_shapes(each, shapes[key] if shapes else None) for key, each in types.items()}
    dtype = TensorSpec((), types).dtype
    return OfType(dtype) if shapes is None else TensorSpec(tuple(shapes), dtype)


def _cast_all(signature: Any, element: Any) -> Element:
    try:
        return map_arrays(_cast, signature, element)
    except InputError:
        raise
    except (TypeError, ValueError, KeyError, OverflowError):
        raise InputError(
            f"from_generator: expected elements as the signature says, such as {signature}, found "
            f"{element!r:.200}"
        ) from None


def _cast(spec: TensorSpec | OfType, value: Any) -> Any:
    found = value if spec.dtype == "string" else np.asarray(value)
    with np.errstate(invalid="ignore"):  # NaN as a whole number, which is refused below
        array = found if spec.dtype in ("string", getattr(found, "dtype", "")) else found.astype(spec.dtype)
    if array is not found and array.dtype.kind in "iu" and (array != found).any():
        raise InputError(
            f"from_generator: expected {spec.dtype}, as the signature says, found {value!r:.80}, which it "
            "cannot hold"
        )
    if isinstance(spec, OfType):
        return array
    found = np.shape(array)
    if len(found) != len(spec.shape) or any(
        length not in (None, each) for each, length in zip(found, spec.shape, strict=True)
    ):
        raise InputError(
            f"from_generator: expected elements of shape {spec.shape}, as the signature says, found {found}"
        )
    return array


def matching_paths(patterns: Sequence[str]) -> list[str]:
    """Return the paths or URLs that match some patterns, in order; indexes of dtrain's are no data.

    A path that two patterns match comes twice, as in TensorFlow. An `InvalidArgumentError`: there is none.
    """
    found = [
        path
        for pattern in patterns
        for path in (matching_urls(pattern) if is_url(pattern) else glob(pattern))  # noqa: PTH207 -- Path.glob takes no absolute pattern
    ]
    paths = sorted(path for path in found if not path.endswith(SUFFIX))
    if not paths:
        raise InvalidArgumentError(f"list_files: no file matches {' or '.join(map(shown, patterns))}.")
    return paths


class ItemSource(Node):
    """The items of an object, by number; tensors of other libraries become arrays."""

    addressable = True

    def __init__(self, source: Any) -> None:
        if not hasattr(source, "__len__") or not hasattr(source, "__getitem__") or isinstance(source, dict):
            raise InputError(
                "random_access: expected an object with __len__ and __getitem__, which takes numbers from 0, "
                f"found {type(source).__name__}"
            )
        self._source = source
        self.cardinality = len(source)

    def element(self, index: int, iteration: Iteration) -> Element:
        return _as_element(self._source[index])

    def each(self, indices: Indices, iteration: Iteration) -> list[Element]:
        numbers = [int(index) for index in indices]
        several = getattr(self._source, "__getitems__", None)  # torch's datasets may have it
        items = several(numbers) if several else [self._source[number] for number in numbers]
        return [_as_element(item) for item in items]


def _as_element(item: Any) -> Element:
    if isinstance(item, tuple | list) and not all(isinstance(part, int | float) for part in item):
        return tuple([_as_element(part) for part in item])
    if isinstance(item, dict):
        return {key: _as_element(part) for key, part in item.items()}
    return as_arrays(np.asarray(item) if hasattr(item, "__array__") else item)


RANDOM_BELOW = 2**32


class EndlessRange(Node):
    """Start, start + step, start + 2 * step and so on."""

    addressable = True
    cardinality = INFINITE

    def __init__(self, start: Any, step: Any, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)
        self._start = start
        self._step = step

    def element(self, index: int, iteration: Iteration) -> Element:
        return self._dtype.type(self._start + index * self._step)


class RandomNumbers(Node):
    """int64 numbers from 0 on, below 2^32; number k follows from (seed, iteration, k)."""

    addressable = True
    cardinality = INFINITE

    def __init__(self, seed: int, rerandomize: bool) -> None:
        self._seed = seed
        self._rerandomize = rerandomize

    def element(self, index: int, iteration: Iteration) -> Element:
        place = iteration if self._rerandomize else ()
        return np.int64(generator_of(self._seed, place, index).integers(RANDOM_BELOW))
