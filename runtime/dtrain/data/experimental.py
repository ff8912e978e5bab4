"""`dt.data.experimental`: names of `tf.data.experimental` (2.15.1), among them datasets of .csv files."""

import csv
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dtrain.absent_names import absent_from
from dtrain.data.dataset import Dataset
from dtrain.data.files import Filenames, rows_of_files
from dtrain.data.iterator import Optional
from dtrain.data.node import INFINITE
from dtrain.data.options import SHARD_HINT, AutoShardPolicy, DistributeOptions
from dtrain.data.ordering import OfLength
from dtrain.data.prefetching.tuning import AUTOTUNE
from dtrain.data.readers.csv_format import DTYPES, CsvColumn, CsvRows
from dtrain.data.sources import matching_paths
from dtrain.data.stores.opening import open_stream
from dtrain.data.stores.remote import shown
from dtrain.data.structure import TensorSpec
from dtrain.errors import InputError, InvalidArgumentError
from dtrain.formats.bounded_reading import decompressed
from dtrain.formats.tfrecord import check_compression

__all__ = [
    "AUTOTUNE",
    "SHARD_HINT",
    "AutoShardPolicy",
    "CsvDataset",
    "DistributeOptions",
    "Optional",
    "assert_cardinality",
    "make_csv_dataset",
]

if not TYPE_CHECKING:
    __getattr__ = absent_from("dtrain.data.experimental", __all__)


def assert_cardinality(expected_cardinality: int) -> Callable[[Dataset], Dataset]:
    """Return a transformation for `Dataset.apply`, after which a dataset has so many elements, or INFINITE.

    Reading raises an `InvalidArgumentError` where it has another number. See
    `tf.data.experimental.assert_cardinality`.

    Args:
        expected_cardinality: how many elements there are, or INFINITE.

    Raises:
        InvalidArgumentError: it is no number of elements.
    """
    if not isinstance(expected_cardinality, int) or expected_cardinality < INFINITE:
        raise InvalidArgumentError(
            "assert_cardinality: expected a number of elements, or INFINITE (-1), found "
            f"{expected_cardinality!r}"
        )

    def asserted(dataset: Dataset) -> Dataset:
        if dataset.cardinality() == expected_cardinality:
            return dataset
        return Dataset(OfLength(dataset.node, expected_cardinality, asserted=True))

    return asserted


class CsvDataset(Dataset):
    """The rows of .csv files: a tuple of one value a column.

    Args:
        filenames: one path, several, or a Dataset of paths.
        record_defaults: for each column that is wanted a dtype (its fields are required), or a default value,
            or a list of one: int32, int64, float32, float64 or string.
        compression_type: empty, GZIP or ZLIB.
        buffer_size: has no effect.
        header: whether the first row of each file is left out.
        field_delim: between fields.
        use_quote_delim: whether fields in quotes may have delimiters and line breaks.
        na_value: text that stands for an empty field.
        select_cols: numbers of the wanted columns, ascending; default: all.
        exclude_cols: numbers of the columns that are left out.
    """

    def __init__(
        self,
        filenames: Filenames,
        record_defaults: Sequence[Any],
        compression_type: str | None = None,
        buffer_size: int | None = None,
        header: bool = False,
        field_delim: str = ",",
        use_quote_delim: bool = True,
        na_value: str = "",
        select_cols: Sequence[int] | None = None,
        exclude_cols: Sequence[int] | None = None,
    ) -> None:
        compression = compression_type or ""
        check_compression(compression)
        if len(field_delim.encode()) != 1:
            raise InvalidArgumentError(
                f"CsvDataset: expected a field_delim of one character, found {field_delim!r}"
            )
        rows = CsvRows(
            _columns(record_defaults, select_cols, exclude_cols),
            fields=len(record_defaults) if select_cols is None and exclude_cols is None else None,
            compression=compression,
            header=header,
            delimiter=field_delim,
            quotes=use_quote_delim,
            missing=na_value,
        )
        super().__init__(rows_of_files(filenames, rows))


def make_csv_dataset(
    file_pattern: str | Sequence[str],
    batch_size: int,
    column_names: Sequence[str] | None = None,
    column_defaults: Sequence[Any] | None = None,
    label_name: str | None = None,
    select_columns: Sequence[str | int] | None = None,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    header: bool = True,
    num_epochs: int | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: int | None = None,
    prefetch_buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
    sloppy: bool = False,
    num_rows_for_inference: int | None = 100,
    compression_type: str | None = None,
    ignore_errors: bool = False,
    encoding: str = "utf-8",
) -> Dataset:
    """Return batches of the rows of .csv files: a dict of columns, or a pair of it and the label's column.

    Other arguments are those of `CsvDataset` and of TensorFlow; `prefetch_buffer_size` and `sloppy` have no
    effect on elements or their order.

    Args:
        file_pattern: one or several, of paths.
        batch_size: rows of a batch; without `num_epochs` a smaller last one is left out.
        column_names: default: the first row, which is the same in all files.
        column_defaults: as `record_defaults` of `CsvDataset`; default: dtypes by the first rows.
        label_name: the column that comes apart.
        select_columns: names or numbers of the wanted columns; default: all.
        field_delim: between fields.
        use_quote_delim: whether fields in quotes may have delimiters and line breaks.
        na_value: text that stands for an empty field.
        header: whether the first row of each file names the columns.
        num_epochs: how often the rows are repeated; None: without end.
        shuffle: whether files, and rows in a buffer, are shuffled anew in each epoch.
        shuffle_buffer_size: how many rows a shuffle holds.
        shuffle_seed: of the shuffle; None: the run's.
        prefetch_buffer_size: without effect on elements.
        num_parallel_reads: how many files are read in turn.
        sloppy: without effect on elements.
        num_rows_for_inference: rows that tell the dtypes of columns; None: all.
        compression_type: empty, GZIP or ZLIB.
        ignore_errors: is refused.
        encoding: ``utf-8`` alone.

    Raises:
        InvalidArgumentError: no file matches, or a column is missing, named twice or of no dtype.
    """
    if ignore_errors:
        raise InvalidArgumentError("make_csv_dataset: ignore_errors is not offered: mend the files")
    paths = matching_paths([file_pattern] if isinstance(file_pattern, str) else list(file_pattern))
    files = _Files(paths, field_delim, use_quote_delim, na_value, header, compression_type or "", encoding)
    every = files.names() if column_names is None else column_names
    chosen = _chosen(select_columns, every)
    if column_defaults is None:
        column_defaults = files.defaults(len(every), chosen, num_rows_for_inference)
    names = [every[number] for number in chosen]
    _check_columns(every, names, column_defaults, label_name, paths[0])
    count = len(every) if select_columns is None else None
    columns = _columns(column_defaults, chosen, None)
    dataset = files.rows(columns, count, shuffle_seed, shuffle, num_parallel_reads)
    if shuffle:
        dataset = dataset.shuffle(shuffle_buffer_size, shuffle_seed)
    if num_epochs != 1:
        dataset = dataset.repeat(num_epochs)

    def organized(*columns: Any) -> Any:
        features = dict(zip(names, columns, strict=True))
        return features if label_name is None else (features, features.pop(label_name))

    return dataset.batch(batch_size, drop_remainder=num_epochs is None).map(organized)


def _check_columns(
    every: Sequence[str], names: Sequence[str], defaults: Sequence[Any], label: str | None, path: str
) -> None:
    """Raise an `InvalidArgumentError` for columns that do not fit each other."""
    if len(set(every)) < len(every):
        twice = sorted({name for name in every if list(every).count(name) > 1})
        raise InvalidArgumentError(
            f"{shown(path)}: expected another name for each column, found columns that are named twice: "
            f"{', '.join(twice)}; if the first line has no names, read it with header=False (--no-header)"
        )
    if len(defaults) != len(names):
        raise InvalidArgumentError(
            f"make_csv_dataset: expected column_defaults of {len(names)} columns, found {len(defaults)}"
        )
    if label is not None and label not in names:
        raise InvalidArgumentError(
            f"make_csv_dataset: expected label_name {label!r} among the columns {', '.join(names)} of "
            f"{shown(path)}"
        )


@dataclass(frozen=True)
class _Files:
    """Files of one form, and a look into them for the names and the dtypes of their columns."""

    paths: list[str]
    delimiter: str
    quotes: bool
    missing: str
    header: bool
    compression: str
    encoding: str

    def __post_init__(self) -> None:
        check_compression(self.compression)

    def rows(
        self, columns: list[CsvColumn], count: int | None, seed: int | None, shuffle: bool, reads: int | None
    ) -> Dataset:
        """Return the rows, which have `count` fields if that is known."""
        files = Dataset.from_tensor_slices(self.paths)
        if shuffle:
            files = files.shuffle(len(self.paths), seed)
        rows = CsvRows(
            columns,
            fields=count,
            compression=self.compression,
            header=self.header,
            delimiter=self.delimiter,
            quotes=self.quotes,
            missing=self.missing,
        )
        return Dataset(rows_of_files(files, rows, reads))

    def names(self) -> list[str]:
        """Return the first row, which all files share; there is one if there is a `header`."""
        if not self.header:
            raise InvalidArgumentError("make_csv_dataset: expected column_names or header, found neither")
        found: list[str] | None = None
        for path in self.paths:
            names = next(self._read(path), None)
            if names is None:
                raise InvalidArgumentError(
                    f"{shown(path)}: expected a first row of column names, found an empty file"
                )
            if found is not None and names != found:
                raise InvalidArgumentError(
                    f"{shown(path)}: expected the columns of {shown(self.paths[0])}, {', '.join(found)}; "
                    f"found {', '.join(names)}"
                )
            found = names
        return found or []

    def defaults(self, columns: int, chosen: Sequence[int], limit: int | None) -> list[Any]:
        """Return a list of one default value for each column, of the dtype that fits the first rows."""
        ranks: list[int | None] = [None] * len(chosen)
        rows = (
            (path, number, row)
            for path in self.paths
            for number, row in enumerate(self._read(path))
            if number or not self.header
        )
        for path, number, row in islice(rows, limit):
            if len(row) != columns:
                raise InvalidArgumentError(
                    f"{shown(path)}: row {number + 1}: expected {columns} fields, found {len(row)}"
                )
            for place, column in enumerate(chosen):
                if row[column] not in ("", self.missing):
                    ranks[place] = _rank(row[column], ranks[place] or 0)
        dtypes = [DTYPES[-1] if rank is None else DTYPES[rank] for rank in ranks]
        return [[b""] if dtype == "string" else [np.dtype(dtype).type(0)] for dtype in dtypes]

    def _read(self, path: str) -> Iterator[list[str]]:
        if self.compression == "ZLIB":
            raise InvalidArgumentError(
                "make_csv_dataset: expected column_names and column_defaults for ZLIB files"
            )
        where = shown(path)
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        try:
            with open_stream(path) as file:
                data: Any = decompressed(file, self.compression, where)
                encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
                with io.TextIOWrapper(data, encoding=encoding, newline="") as text:
                    yield from csv.reader(text, delimiter=self.delimiter, quoting=quoting)
        except (EOFError, zlib.error) as error:
            raise InputError(f"{where}: cannot be read: {error}") from error
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"{where}: expected comma-separated text: {error}") from error


def _rank(text: str, least: int) -> int:
    """Return the place in DTYPES of the first dtype, from `least` on, that a text has a value of."""
    for rank in range(least, len(DTYPES) - 1):
        try:
            value = CsvColumn(0, DTYPES[rank]).value(text.encode())
        except ValueError:
            continue
        if rank < 2 or np.isfinite(value) or DTYPES[rank] == "float64" or not np.isfinite(float(text)):
            return rank
    return len(DTYPES) - 1


def _columns(
    defaults: Sequence[Any], select: Sequence[int] | None, exclude: Sequence[int] | None
) -> list[CsvColumn]:
    if select is not None and exclude is not None:
        raise InvalidArgumentError("CsvDataset: expected select_cols or exclude_cols, found both")
    if select is None:
        left_out = set(exclude or ())
        select = [number for number in range(len(defaults) + len(left_out)) if number not in left_out]
    if len(select) != len(defaults):
        raise InvalidArgumentError(
            f"CsvDataset: expected a default for each of {len(select)} columns, found {len(defaults)}"
        )
    if any(a >= b for a, b in pairwise(select)) or any(number < 0 for number in select):
        raise InvalidArgumentError(
            f"CsvDataset: expected numbers of columns >= 0, ascending, found {list(select)}"
        )
    return [_column(number, default) for number, default in zip(select, defaults, strict=True)]


def _column(number: int, default: Any) -> CsvColumn:
    if isinstance(default, type | np.dtype) or (isinstance(default, str) and default in DTYPES):
        return CsvColumn(number, _dtype_name(number, "string" if default in (str, bytes) else default))
    values = default if isinstance(default, list | tuple | np.ndarray) else [default]
    if len(values) > 1:
        raise InvalidArgumentError(
            f"CsvDataset: column {number}: expected one default value, found {values!r}"
        )
    if isinstance(default, np.ndarray) and not len(default):
        return CsvColumn(number, _dtype_name(number, default.dtype))
    if not len(values):
        raise InvalidArgumentError(
            f"CsvDataset: column {number}: expected a dtype or a default value, found []"
        )
    (value,) = values
    if isinstance(value, str | bytes):
        return CsvColumn(number, "string", value.encode() if isinstance(value, str) else value)
    kind = {int: "int32", bool: "int32", float: "float32"}.get(type(value)) or np.asarray(value).dtype.name
    dtype = _dtype_name(number, kind)
    return CsvColumn(number, dtype, np.dtype(dtype).type(value))


def _dtype_name(number: int, dtype: Any) -> str:
    name: str = "string" if dtype == "string" else TensorSpec((), dtype).dtype
    if name not in DTYPES:
        raise InvalidArgumentError(f"CsvDataset: column {number}: expected {', '.join(DTYPES)}, found {name}")
    return name


def _chosen(select: Sequence[str | int] | None, names: Sequence[str]) -> list[int]:
    """Return the numbers of the wanted columns, ascending."""
    if select is None:
        return list(range(len(names)))
    numbers = set()
    for wanted in select:
        known = wanted in names if isinstance(wanted, str) else 0 <= wanted < len(names)
        if not known:
            raise InvalidArgumentError(
                f"make_csv_dataset: select_columns: there is no column {wanted!r}; expected "
                f"{', '.join(names)}"
            )
        numbers.add(list(names).index(wanted) if isinstance(wanted, str) else wanted)
    return sorted(numbers)
