"""A variable that lies in several numpy arrays, read and changed as one, like TensorFlow's ShardedVariable.

Slices, integers and gathers agree with numpy on the concatenated array. (TensorFlow 2.15 reads the wrong row
for an integer that is the first row of a shard; that is not imitated.)
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.types import Array
from dtrain.variables.partitioning import row_offsets, split_rows

LocalSlice = tuple[int, int | None, int]


class ShardedVariable:
    """One variable as several arrays, one after another along axis 0.

    Attributes:
        variables: the shards, which are changed in place.
        shape: of the whole.
        dtype: of every shard.
    """

    def __init__(self, variables: Sequence[Array]) -> None:
        """Join shards.

        Raises:
            TypeError: not a sequence of at least one array.
            InputError: dtypes, or shapes beyond the first axis, differ.
            IndexError: the shards are scalars.
        """
        if (
            not isinstance(variables, list | tuple)
            or not variables
            or not all(isinstance(v, np.ndarray) for v in variables)
        ):
            raise TypeError(f"expected a non-empty list of arrays, found {variables!r:.80}")
        if len({v.dtype for v in variables}) > 1:
            raise InputError(
                f"all shards must have the same dtype, found {[v.dtype.name for v in variables]}"
            )
        if len({v.shape[1:] for v in variables}) > 1:
            raise InputError(
                "all shards must have the same shape beyond the first axis, found "
                f"{[v.shape for v in variables]}"
            )
        self.variables = list(variables)
        self.dtype = variables[0].dtype
        self._rows = [v.shape[0] for v in variables]
        self._starts = row_offsets(self._rows)
        self.shape: tuple[int, ...] = (sum(self._rows), *variables[0].shape[1:])

    @property
    def offsets(self) -> list[list[int]]:
        """Position of each shard's first element in the whole, one number an axis."""
        return [[start, *(0 for _ in self.shape[1:])] for start in self._starts]

    def __iter__(self) -> Iterator[Array]:
        return iter(self.variables)

    def __len__(self) -> int:
        return self.shape[0]

    def numpy(self) -> Array:
        """Return the whole, as a new array."""
        return np.concatenate(self.variables)

    def local_slices(self, rows: slice) -> list[LocalSlice | None]:
        """Return a slice of the whole's rows in each shard: (start, stop, step), None where it is empty."""
        start, stop, step = rows.indices(self.shape[0])
        result: list[LocalSlice | None] = []
        for offset, count in zip(self._starts, self._rows, strict=True):
            if step > 0:
                first = max(start, start + -(-(offset - start) // step) * step)
                end = min(stop, offset + count)
                result.append((first - offset, end - offset, step) if first < end else None)
            else:
                first = min(start, start + -(-(start - (offset + count - 1)) // -step) * step)
                wanted = first > max(stop, offset - 1)
                # A local stop of -1 would count from the end; None stands for the place before the first row.
                result.append(
                    (first - offset, stop - offset if stop >= offset else None, step) if wanted else None
                )
        return result

    def __getitem__(self, key: Any) -> Array:
        first, *others = key if isinstance(key, tuple) and key else (key,)
        if isinstance(first, slice):
            chosen = zip(self.variables, self.local_slices(first), strict=True)
            pieces = [
                shard[slice(*local)][(slice(None), *others)] for shard, local in chosen if local is not None
            ]
            if first.step is not None and first.step < 0:
                pieces.reverse()
            return np.concatenate(pieces or [self.variables[0][:0][(slice(None), *others)]])
        if isinstance(first, int | np.integer) and not isinstance(first, bool):
            if not -self.shape[0] <= first < self.shape[0]:
                raise IndexError(f"row {first} of a variable with {self.shape[0]} rows")
            shard, local = self._locate(np.asarray(int(first) % self.shape[0]))
            result: Array = self.variables[int(shard)][(int(local), *others)]
            return result
        if isinstance(first, np.ndarray | list) and (ids := np.asarray(first)).dtype.kind in "iu":
            return self._taken(ids)[(slice(None),) * ids.ndim + tuple(others)]
        whole: Array = self.numpy()[key]
        return whole

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.numpy().astype(self.dtype if dtype is None else dtype, copy=False)

    def _taken(self, ids: Array) -> Array:
        """Return rows by numbers of any shape; negative ones count from the end."""
        if ids.size and not (ids.min() >= -len(self) and ids.max() < len(self)):
            raise IndexError(f"rows {ids.min()} to {ids.max()} of a variable with {len(self)} rows")
        shards, local = self._locate(ids.astype(np.int64).reshape(-1) % max(1, len(self)))
        result = np.empty((ids.size, *self.shape[1:]), self.dtype)
        for shard, variable in enumerate(self.variables):
            result[shards == shard] = variable[local[shards == shard]]
        return result.reshape(*ids.shape, *self.shape[1:])

    def _locate(self, rows: Array) -> tuple[Array, Array]:
        """Return the shard of each row, and the row in it."""
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        return shards, rows - np.asarray(self._starts)[shards]

    def decompose_ids(self, ids: Sequence[int] | Array) -> tuple[list[Array], Array]:
        """Return for each shard the local rows of the ids in it, in their order; and the shard of each id.

        Raises:
            InputError: an id is no row of the variable.
            NotImplementedError: the shards' sizes are not those of the "div" rule, which gather and scatter
                need.
        """
        if self._rows != split_rows(self.shape[0], len(self.variables)):
            raise NotImplementedError(
                f'rows {self._rows} are not split by the "div" rule; gather and scatter need it'
            )
        rows = np.asarray(ids, dtype=np.int64)
        if rows.size and not (rows.min() >= 0 and rows.max() < self.shape[0]):
            raise InputError(f"ids must be from 0 to {self.shape[0] - 1}, found {rows.min()} to {rows.max()}")
        shards, local = self._locate(rows)
        return [local[shards == shard] for shard in range(len(self.variables))], shards

    def gather(self, ids: Sequence[int] | Array) -> Array:
        """Return the rows with these ids, in their order; ids may repeat. Errors as `decompose_ids`."""
        local, shards = self.decompose_ids(ids)
        result = np.empty((len(shards), *self.shape[1:]), self.dtype)
        for shard, rows in enumerate(local):
            result[shards == shard] = self.variables[shard][rows]
        return result

    def scatter_update(self, ids: Sequence[int] | Array, values: Array) -> None:
        """Set rows. Errors as `decompose_ids`."""
        for shard, rows, new in self._parts(ids, values):
            shard[rows] = new

    def scatter_add(self, ids: Sequence[int] | Array, values: Array) -> None:
        """Add to rows; a row whose id repeats gets every value. Errors as `decompose_ids`."""
        self._scatter(np.add, ids, values)

    def scatter_sub(self, ids: Sequence[int] | Array, values: Array) -> None:
        """Subtract from rows. See `scatter_add`."""
        self._scatter(np.subtract, ids, values)

    def scatter_mul(self, ids: Sequence[int] | Array, values: Array) -> None:
        """Multiply rows. See `scatter_add`."""
        self._scatter(np.multiply, ids, values)

    def scatter_max(self, ids: Sequence[int] | Array, values: Array) -> None:
        """Raise rows to at least the values. See `scatter_add`."""
        self._scatter(np.maximum, ids, values)

    def scatter_min(self, ids: Sequence[int] | Array, values: Array) -> None:
        """Lower rows to at most the values. See `scatter_add`."""
        self._scatter(np.minimum, ids, values)

    def _scatter(self, ufunc: np.ufunc, ids: Sequence[int] | Array, values: Array) -> None:
        for shard, rows, new in self._parts(ids, values):
            ufunc.at(shard, rows, new)

    def _parts(self, ids: Sequence[int] | Array, values: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Yield (shard, local rows, their values) for every shard that ids touch."""
        local, shards = self.decompose_ids(ids)
        new = np.asarray(values, self.dtype)
        for shard, rows in enumerate(local):
            if rows.size:
                yield self.variables[shard], rows, new[shards == shard]

    def assign(self, value: Array) -> None:
        """Set the whole."""
        for shard, start in zip(self.variables, self._starts, strict=True):
            shard[...] = value[start : start + len(shard)]
