"""`dt.data.experimental`: names of `tf.data.experimental` (2.15.1), among them datasets of .csv files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

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
from dtrain.data.stores.remote import shown
from dtrain.errors import InvalidArgumentError

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
        if len(field_delim.encode()) != 1:
            raise InvalidArgumentError(
                f"CsvDataset: expected a field_delim of one character, found {field_delim!r}"
            )
        rows = CsvRows(
            _columns(record_defaults, select_cols, exclude_cols),
            fields=len(record_defaults) if select_cols is None and exclude_cols is None else None,
            compression=compression_type or "",
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
    text = CsvRows(
        (),
        fields=None,
        compression=compression_type or "",
        header=header,
        delimiter=field_delim,
        quotes=use_quote_delim,
        missing=na_value,
    )
    every = _names(text, paths, encoding) if column_names is None else column_names
    chosen = _chosen(select_columns, every)
    names = [every[number] for number in chosen]
    if column_defaults is None:
        rows = islice(_rows_of(text, paths), num_rows_for_inference)
        column_defaults = _dtypes(rows, len(every), chosen, na_value.encode())
    _check_columns(every, names, column_defaults, label_name, paths[0])
    columns = _columns(column_defaults, chosen, None)
    wanted = replace(text, columns=columns, fields=len(every) if select_columns is None else None)
    files = Dataset.from_tensor_slices(paths)
    files = files.shuffle(len(paths), shuffle_seed) if shuffle else files
    dataset = Dataset(rows_of_files(files, wanted, num_parallel_reads))
    dataset = dataset.shuffle(shuffle_buffer_size, shuffle_seed) if shuffle else dataset
    return _batches(dataset, batch_size, names, label_name, num_epochs)


def _batches(
    rows: Dataset, size: int, names: Sequence[str], label_name: str | None, num_epochs: int | None
) -> Dataset:
    def organized(*columns: Any) -> Any:
        features = dict(zip(names, columns, strict=True))
        return features if label_name is None else (features, features.pop(label_name))

    repeated = rows if num_epochs == 1 else rows.repeat(num_epochs)
    return repeated.batch(size, drop_remainder=num_epochs is None).map(organized)


def _check_columns(
    every: Sequence[str], names: Sequence[str], defaults: Sequence[Any], label: str | None, path: str
) -> None:
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


def _names(text: CsvRows, paths: Sequence[str], encoding: str) -> list[str]:
    if not text.header:
        raise InvalidArgumentError("make_csv_dataset: expected column_names or header, found neither")
    found: list[str] = []
    for path in paths:
        try:
            names = [name.decode(encoding) for name in next(text.fields_of(path), [])]
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"{shown(path)}: expected comma-separated text: {error}") from error
        if not names:
            raise InvalidArgumentError(
                f"{shown(path)}: expected a first row of column names, found an empty file"
            )
        if found and names != found:
            raise InvalidArgumentError(
                f"{shown(path)}: expected the columns of {shown(paths[0])}, {', '.join(found)}; "
                f"found {', '.join(names)}"
            )
        found = names
    return found


def _rows_of(text: CsvRows, paths: Sequence[str]) -> Iterator[tuple[str, list[bytes]]]:
    for path in paths:
        for number, row in enumerate(text.fields_of(path)):
            if number or not text.header:
                yield f"{shown(path)}: row {number + 1}", row


def _dtypes(
    rows: Iterable[tuple[str, list[bytes]]], columns: int, chosen: Sequence[int], missing: bytes
) -> list[Any]:
    """Return a default value for each chosen column, whose dtype fits all fields of some rows."""
    ranks: list[int | None] = [None] * len(chosen)
    for where, row in rows:
        if len(row) != columns:
            raise InvalidArgumentError(f"{where}: expected {columns} fields, found {len(row)}")
        for place, column in enumerate(chosen):
            if row[column] not in (b"", missing):
                ranks[place] = _rank(row[column], ranks[place] or 0)
    dtypes = [DTYPES[-1] if rank is None else DTYPES[rank] for rank in ranks]
    return [b"" if dtype == "string" else np.dtype(dtype).type(0) for dtype in dtypes]


def _rank(field: bytes, least: int) -> int:
    """Return the place in DTYPES of the first dtype, from `least` on, that a field has a value of."""
    for rank in range(least, len(DTYPES) - 1):
        try:
            value = CsvColumn(0, DTYPES[rank]).value(field)
        except ValueError:
            continue
        if rank < 2 or np.isfinite(value) or DTYPES[rank] == "float64" or not np.isfinite(float(field)):
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
    return [CsvColumn.of(number, default) for number, default in zip(select, defaults, strict=True)]


def _chosen(select: Sequence[str | int] | None, names: Sequence[str]) -> list[int]:
    numbers: dict[str | int, int] = {number: number for number in range(len(names))}
    if select is None:
        return list(numbers.values())
    numbers |= {name: number for number, name in enumerate(names)}
    for wanted in select:
        if wanted not in numbers:
            raise InvalidArgumentError(
                f"make_csv_dataset: select_columns: there is no column {wanted!r}; expected "
                f"{', '.join(names)}"
            )
    return sorted({numbers[wanted] for wanted in select})
