"""`dtrain data index`, `inspect` and `bench`: files of data, their indexes, and how fast they are read."""

import json
import os
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

try:
    import msgspec

    from dtrain.data.inspection.describing import Description, Field, describe
    from dtrain.data.inspection.file_kinds import DataFile, data_file
    from dtrain.data.inspection.indexing import Indexed, IndexState, build_index
    from dtrain.data.inspection.measuring import Measured, measure_dataset, measure_files
    from dtrain.data.record_index.offsets import SUFFIX
    from dtrain.data.stores.remote import shown
    from dtrain.data.user_data import as_dataset
    from dtrain.errors import DtrainError, SpecError
    from dtrain.process.plain_text import plain, plain_line
    from dtrain.process.requests.data_request import DataRequest, decode
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


def main(argument: str) -> int:
    """Do what the request asks; an error is one message, and each file has its own."""
    request = decode(argument)
    try:
        code = ACTIONS[request.action](request)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except DtrainError as error:
        _say(error)
        return error.exit_code
    except MemoryError:
        print("dtrain: not enough memory", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def index(request: DataRequest) -> int:
    """Build the indexes that are not there; a line for each file as soon as it is known."""
    row = "{:{}} {:>12} {:>9} {:>8}  {}".format
    width = max(20, _width() - 46)
    done: list[Indexed] = []
    failed: list[dict[str, str]] = []
    for made in _of_each(request, build_index, failed):
        if not done and not request.as_json:
            print(row("file", width, "rows", "size", "seconds", "index"))
        done.append(made)
        if not request.as_json:
            size = _bytes(made.bytes)
            print(row(_cut(made.file, width), width, made.rows, size, f"{made.seconds:.3f}", made.index))
            sys.stdout.flush()
    if request.as_json:
        _answer(files=msgspec.to_builtins(done), failed=failed)
    elif len(done) > 1:
        rows, nbytes = sum(each.rows for each in done), sum(each.bytes for each in done)
        seconds = sum(each.seconds for each in done)
        print(row(f"{len(done)} files", width, rows, _bytes(nbytes), f"{seconds:.3f}", "").rstrip())
    return 1 if failed else 0


def inspect(request: DataRequest) -> int:
    """Print what is in each file."""
    failed: list[dict[str, str]] = []
    done: list[Description] = []
    for made in _of_each(request, describe, failed):
        if not request.as_json:
            print("\n".join(["", *_described(made)] if done else _described(made)))
            sys.stdout.flush()
        done.append(made)
    if request.as_json:
        _answer(files=msgspec.to_builtins(done), failed=failed)
    return 1 if failed else 0


def bench(request: DataRequest) -> int:
    """Measure how fast files, or a program's dataset, are read."""
    program, colon, name = request.files[0].rpartition(":")
    if colon and program.endswith(".py"):
        if len(request.files) > 1:
            raise SpecError("bench: expected files, or one PROGRAM.py:NAME, found both")
        measured = measure_dataset(_dataset_of(program, name), request.seconds)
    else:
        files = [_file(path, request) for path in _paths(request)]
        kinds = sorted({file.kind for file in files})
        if len(kinds) > 1:
            raise SpecError(f"bench: expected files of one format, found {' and '.join(kinds)}")
        measured = measure_files(files, request.batch_size, request.seconds)
    if request.as_json:
        _answer(**msgspec.to_builtins(measured))
    else:
        print("\n".join(_measured(measured)))
    return 0


ACTIONS: dict[str, Callable[[DataRequest], int]] = {"index": index, "inspect": inspect, "bench": bench}


def _of_each(
    request: DataRequest, make: Callable[[DataFile], _Made], failed: list[dict[str, str]]
) -> Iterator[_Made]:
    """Yield what is made of each file; what is wrong with a file is said, and the others go on."""
    for path in _paths(request):
        try:
            made = make(_file(path, request))
        except DtrainError as error:
            failed.append({"file": shown(path), "message": str(error)})
            sys.stdout.flush()
            _say(error)
        else:
            yield made


def _paths(request: DataRequest) -> Sequence[str]:
    """Return the files without the indexes that lie beside them, as `data/*` names both."""
    paths = [path for path in request.files if not path.endswith(SUFFIX)]
    if not paths:
        raise SpecError(f"expected files of data, found indexes ({SUFFIX}) alone")
    return paths


def _file(path: str, request: DataRequest) -> DataFile:
    return data_file(path, request.kind, header=request.header)


def _dataset_of(program: str, name: str) -> Any:
    """Return the dataset of that name in a program, which is run for that, but not as `__main__`."""
    if not Path(program).is_file():
        raise SpecError(f"{program}: there is no such program")
    sys.path.insert(0, str(Path(program).resolve().parent))
    found = runpy.run_path(program, run_name="dtrain_data")
    if name not in found:
        raise SpecError(
            f"{program}: has no {name!r} when it is run under a name other than __main__; expected a "
            "Dataset, or a function of an InputContext that returns one"
        )
    return as_dataset(found[name])


# Texts


def _described(made: Description) -> list[str]:
    kind = f"{made.format}, {made.compression}" if made.compression else made.format
    lines = [f"{plain_line(made.file)}: {made.rows} rows, {_bytes(made.bytes)}, {kind}"]
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


def _measured(measured: Measured) -> list[str]:
    lines = []
    if measured.rows is not None:
        size = "" if measured.bytes is None else f", {_bytes(measured.bytes)}"
        lines.append(f"{measured.rows} rows{size}; batches of {measured.batch_rows}")
    lines += [f"{each} can only be read from the front, by one thread" for each in measured.obstacles]
    lines.append(f"{'step':10} {'threads':>7} {'rows/s':>12} {'rows/CPU s':>12} {'MB/s':>9} {'ms/batch':>10}")
    for each in measured.speeds:
        rows = f"{each.rows_per_s:12.0f} {each.rows_per_cpu_s:12.0f}" if each.rows_per_s else f"{'':25}"
        time = f"{each.batch_ms:10.3f}" if each.rows_per_s else ""
        lines.append(f"{each.step:10} {each.threads:7} {rows} {each.mb_per_s:9.1f} {time}".rstrip())
    last = next(each for each in reversed(measured.speeds) if each.threads == 1)
    lines.append(
        f"a step that computes {measured.batch_rows} rows in less than {last.batch_ms:.3g} ms waits for its "
        "input"
    )
    return lines


def _answer(**fields: Any) -> None:
    print(json.dumps(fields))


def _say(error: DtrainError) -> None:
    print(plain(str(error) if isinstance(error, SpecError) else f"dtrain: {error}"), file=sys.stderr)


def _width() -> int:
    return shutil.get_terminal_size((WIDTH, 24)).columns


def _cut(name: str, width: int) -> str:
    """Return the end of a name that is too long."""
    name = plain_line(name)
    return name if len(name) <= width else f"...{name[3 - width :]}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
