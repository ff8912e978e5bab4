"""Files of comma-separated rows, with the rules of TensorFlow's `CsvDataset`."""

import io
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Any, Self

import msgspec
import numpy as np

from dtrain.data.readers.rows import LINE_BYTES_MAX, SCANNED_BYTES, RowFormat, with_end
from dtrain.data.record_index.index_files import Offsets
from dtrain.data.stores.opening import RowReader, open_stream
from dtrain.data.stores.remote import shown
from dtrain.data.structure import Element, TensorSpec
from dtrain.errors import InputError, InvalidArgumentError
from dtrain.formats.bounded_reading import decompressed

QUOTE, LINE_FEED, CARRIAGE_RETURN = b'"\n\r'
DTYPES = ("int32", "int64", "float32", "float64", "string")


class CsvColumn(msgspec.Struct, frozen=True):
    """One wanted column: the number of its field, a dtype of DTYPES, and a default; None: it is required."""

    number: int
    dtype: str
    default: Any = None

    @classmethod
    def of(cls, number: int, default: Any) -> Self:
        """Return the column of a dtype, which is then required, or of a default value or a list of one."""
        if isinstance(default, np.ndarray) and not default.size:
            default = default.dtype
        if isinstance(default, type | np.dtype) or (isinstance(default, str) and default in DTYPES):
            return cls(number, _dtype_name(number, default))
        values = default if isinstance(default, list | tuple | np.ndarray) else [default]
        if len(values) != 1:
            raise InvalidArgumentError(
                f"CsvDataset: column {number}: expected a dtype or one default value, found {values!r}"
            )
        (value,) = values
        kind = {int: "int32", bool: "int32", float: "float32"}.get(type(value), np.asarray(value).dtype)
        dtype = _dtype_name(number, kind)
        if dtype == "string":
            return cls(number, dtype, value.encode() if isinstance(value, str) else value)
        return cls(number, dtype, np.dtype(dtype).type(value))

    def value(self, field: bytes) -> Any:
        """Return the value of a field that is not empty; raise a ValueError if it has none of the dtype."""
        if self.dtype == "string":
            return field
        if b"_" in field:  # Python's numbers may have them, those of files may not
            raise ValueError
        if self.dtype in ("float32", "float64"):
            with np.errstate(over="ignore"):  # of float32: it becomes infinite
                return np.dtype(self.dtype).type(float(field))
        number = int(field)
        bounds = np.iinfo(self.dtype)
        if not bounds.min <= number <= bounds.max:
            raise ValueError
        return np.dtype(self.dtype).type(number)


def _dtype_name(number: int, dtype: Any) -> str:
    name: str = TensorSpec((), dtype).dtype
    if name not in DTYPES:
        raise InvalidArgumentError(f"CsvDataset: column {number}: expected {', '.join(DTYPES)}, found {name}")
    return name


@dataclass(eq=False)
class CsvRows(RowFormat):
    """The rows of .csv files, as tuples of the wanted columns.

    Attributes:
        columns: that are wanted, in the order in which they come.
        fields: how many fields every row has; None: any number, as where some columns are chosen.
        compression: of whole files: empty, GZIP or ZLIB.
        header: whether the first row of each file is left out.
        delimiter: one character between fields.
        quotes: whether fields in quotes may have delimiters and line breaks.
        missing: text that stands for an empty field.
    """

    columns: Sequence[CsvColumn]
    _: KW_ONLY
    fields: int | None
    compression: str = ""
    header: bool = False
    delimiter: str = ","
    quotes: bool = True
    missing: str = ""

    def __post_init__(self) -> None:
        super().__init__(self.compression)
        between = re.escape(self.delimiter.encode())
        self._field = re.compile(rb'(?:"((?:[^"]|"")*)"|([^"' + between + rb"]*))(" + between + rb"|\Z)")
        quotes = "quotes" if self.quotes else "no quotes"
        self.kind = f"csv, {quotes}, {'header' if self.header else 'no header'}"
        self.spec = tuple(TensorSpec((), column.dtype) for column in self.columns)

    def read(self, path: str) -> Iterator[Element]:
        where = shown(path)
        for offset, line in islice(self._lines(path), int(self.header), None):
            yield self.row(line, where, offset)

    def fields_of(self, path: str) -> Iterator[list[bytes]]:
        where = shown(path)
        for offset, line in self._lines(path):
            yield self._fields_in(line, where, offset)

    def _lines(self, path: str) -> Iterator[tuple[int, bytes]]:
        """Yield the offset and the bytes of each row of a file, its header among them."""
        where = shown(path)
        offset = nbytes = 0
        held: list[str] = []
        is_open = False
        try:
            # latin-1 gives each byte back; without newline= a lone carriage return would end no line.
            with (
                open_stream(path) as file,
                io.TextIOWrapper(decompressed(file, self.compression, where), "latin-1", newline="") as text,
            ):
                while line := text.readline(LINE_BYTES_MAX + 1):
                    held.append(line)
                    nbytes += len(line)
                    if nbytes > LINE_BYTES_MAX:
                        raise InputError(f"{where}: found a row of more than {LINE_BYTES_MAX} bytes")
                    is_open ^= self.quotes and line.count('"') % 2 == 1
                    if not is_open:
                        yield offset, "".join(held).encode("latin-1")
                        held.clear()
                        offset, nbytes = offset + nbytes, 0
                if held:
                    yield offset, "".join(held).encode("latin-1")
        except (EOFError, zlib.error) as error:
            raise InputError(f"{where}: expected {self.compression} data, found damage: {error}.") from error

    def scan(self, file: RowReader, nbytes: int) -> Offsets:
        found = [np.zeros(1, np.int64)]
        quotes_before = 0
        for start in range(0, nbytes, SCANNED_BYTES):
            count = min(SCANNED_BYTES, nbytes - start)
            block = np.frombuffer(file.read(start, min(count + 1, nbytes - start)), np.uint8)
            after = np.append(block[1:], 0)[:count]
            block = block[:count]
            breaks = (block == LINE_FEED) | ((block == CARRIAGE_RETURN) & (after != LINE_FEED))
            if self.quotes:
                quotes = quotes_before + np.cumsum(block == QUOTE)
                breaks &= quotes % 2 == 0
                quotes_before = int(quotes[-1])
            found.append(np.flatnonzero(breaks) + (start + 1))
        offsets = with_end(found, nbytes, f"{file.path}: found a row of more than {LINE_BYTES_MAX} bytes")
        return offsets[1 if self.header and len(offsets) > 1 else 0 :]

    def row(self, data: bytes, path: str, offset: int) -> Element:
        """Return the wanted columns of a row; raise an `InvalidArgumentError` for wrong fields or quotes."""
        fields = self._fields_in(data, path, offset)
        if self.fields is not None and len(fields) != self.fields:
            raise InvalidArgumentError(
                f"{path}: the row at byte {offset}: expected {self.fields} fields, found {len(fields)}"
            )
        return tuple([self._value(column, fields, path, offset) for column in self.columns])

    def _value(self, column: CsvColumn, fields: list[bytes], path: str, offset: int) -> Any:
        where = f"{path}: the row at byte {offset}: field {column.number}"
        if column.number >= len(fields):
            raise InvalidArgumentError(f"{where}: is missing; the row has {len(fields)} fields")
        field = fields[column.number]
        if field in (b"", self.missing.encode()):
            if column.default is None:
                raise InvalidArgumentError(
                    f"{where}: is required, and empty; give the column a default value"
                )
            return column.default
        try:
            return column.value(field)
        except ValueError:
            shown = field[:40].decode(errors="replace")
            raise InvalidArgumentError(
                f"{where}: expected {column.dtype}, found {shown!r}; another default (column_defaults, "
                "record_defaults) gives the column another dtype; num_rows_for_inference reads more rows"
            ) from None

    def _fields_in(self, data: bytes, path: str, offset: int) -> list[bytes]:
        line = data.removesuffix(b"\n").removesuffix(b"\r")
        if not offset:
            line = line.removeprefix(BOM_UTF8)
        if not self.quotes or QUOTE not in line:
            return line.split(self.delimiter.encode())
        fields: list[bytes] = []
        position = 0
        while match := self._field.match(line, position):
            quoted, plain, end = match.groups()
            fields.append(plain if quoted is None else quoted.replace(b'""', b'"'))
            position = match.end()
            if not end:
                return fields
        raise InvalidArgumentError(
            f"{path}: the row at byte {offset}: field {len(fields)}: a quote is open at its end, or stands "
            "within a field; write a field with quotes in quotes, and each quote in it twice"
        )
