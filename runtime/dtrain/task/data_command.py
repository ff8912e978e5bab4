"""`dtrain data index` and `inspect`: files of data, and their indexes."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

try:
    import msgspec

    from dtrain.data.inspection import (
        Description,
        Field,
        Indexed,
        IndexState,
        InspectedFile,
        build_index,
        data_file,
        describe,
    )
    from dtrain.data.record_index.index_files import SUFFIX
    from dtrain.data.stores.remote import shown
    from dtrain.errors import DtrainError, SpecError
    from dtrain.process.plain_text import bytes_text, plain, plain_line
    from dtrain.task.unwritten_output import end_of_output
except KeyboardInterrupt:  # these take a while on a busy machine
    sys.exit(130)

WIDTH = 80
ROW = "(row)"
"""In the place of the name of a column, where rows have none."""
_Made = TypeVar("_Made")
INDEX_TEXT = {
    IndexState.THERE: "index: there",
    IndexState.STALE: "index: stale; `dtrain data index` or the next run builds it anew",
    IndexState.ABSENT: "index: none yet; `dtrain data index` or the first run builds it",
    IndexState.NOT_NEEDED: "index: none needed",
}


class DataRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One look at files of data.

    Attributes:
        action: ``index`` | ``inspect``.
        kind: of the files; None: each by its name or its first bytes.
        header: whether the first row of .csv files names the columns.
    """

    action: str
    files: Sequence[str]
    kind: str | None = None
    header: bool = True
    as_json: bool = False


def main(request: DataRequest) -> int:
    """Do what the request asks; an error is one message, and each file has its own."""
    try:
        code = ACTIONS[request.action](request)
        sys.stdout.flush()
    except OSError as error:  # files have errors of dtrain's: this one is of the output
        return end_of_output(error)
    except DtrainError as error:
        _print_error(error)
        return error.exit_code
    except MemoryError:
        print("dtrain: not enough memory", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def index(request: DataRequest) -> int:
    """Build the indexes that are not there; each file has a line as soon as it is known."""
    row = "{:{}} {:>12} {:>9} {:>8}  {}".format
    width = max(20, shutil.get_terminal_size((WIDTH, 24)).columns - 46)
    done: list[Indexed] = []
    failed: list[dict[str, str]] = []
    for made in _of_each(request, build_index, failed):
        if not done and not request.as_json:
            print(row("file", width, "rows", "size", "seconds", "index"))
        done.append(made)
        if not request.as_json:
            size = bytes_text(made.bytes)
            print(row(_cut(made.file, width), width, made.rows, size, f"{made.seconds:.3f}", made.index))
            sys.stdout.flush()
    if request.as_json:
        print(json.dumps({"files": msgspec.to_builtins(done), "failed": failed}))
    elif len(done) > 1:
        rows, nbytes = sum(each.rows for each in done), sum(each.bytes for each in done)
        seconds = sum(each.seconds for each in done)
        print(row(f"{len(done)} files", width, rows, bytes_text(nbytes), f"{seconds:.3f}", "").rstrip())
    return 1 if failed else 0


def inspect(request: DataRequest) -> int:
    failed: list[dict[str, str]] = []
    done: list[Description] = []
    for made in _of_each(request, describe, failed):
        if not request.as_json:
            print("\n".join(["", *_described(made)] if done else _described(made)))
            sys.stdout.flush()
        done.append(made)
    if request.as_json:
        print(json.dumps({"files": msgspec.to_builtins(done), "failed": failed}))
    return 1 if failed else 0


ACTIONS: dict[str, Callable[[DataRequest], int]] = {"index": index, "inspect": inspect}


def _of_each(
    request: DataRequest, make: Callable[[InspectedFile], _Made], failed: list[dict[str, str]]
) -> Iterator[_Made]:
    """Yield what is made of each file, but of indexes beside them; what is wrong with one is printed."""
    paths = [path for path in request.files if not path.endswith(SUFFIX)]
    if not paths:
        raise SpecError(f"expected files of data, found indexes ({SUFFIX}) alone")
    for path in paths:
        try:
            made = make(data_file(path, request.kind, header=request.header))
        except DtrainError as error:
            failed.append({"file": shown(path), "message": str(error)})
            sys.stdout.flush()
            _print_error(error)
        else:
            yield made


# Texts


def _described(made: Description) -> list[str]:
    kind = f"{made.format}, {made.compression}" if made.compression else made.format
    lines = [f"{plain_line(made.file)}: {made.rows} rows, {bytes_text(made.bytes)}, {kind}"]
    if made.obstacle is not None:
        lines.append(f"  {made.obstacle}: every replica reads all of it from the front")
    else:
        lines.append(f"  {INDEX_TEXT[made.index]}")
    width = max((len(plain_line(field.name or ROW)) for field in made.fields), default=0)
    width = min(max(width, len("column")), WIDTH - 40)
    lines.append(f"  {'column':{width}}  {'dtype':17}  shape")
    for field in made.fields:
        part = "" if field.rows >= made.sampled else f"  in {field.rows} of {made.sampled} rows"
        lines.append(
            f"  {_cut(field.name or ROW, width):{width}}  {field.dtype:17}  {_shape(field)}{part}".rstrip()
        )
    return lines


def _shape(field: Field) -> str:
    lengths = ["?" if length is None else str(length) for length in field.shape]
    return f"({', '.join(lengths)}{',' if len(lengths) == 1 else ''})"


def _print_error(error: DtrainError) -> None:
    print(plain(str(error) if isinstance(error, SpecError) else f"dtrain: {error}"), file=sys.stderr)


def _cut(name: str, width: int) -> str:
    """Return the end of a name that is too long."""
    name = plain_line(name)
    return name if len(name) <= width else f"...{name[3 - width :]}"
