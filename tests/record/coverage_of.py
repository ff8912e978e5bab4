"""Runs tests and writes down which statements and branches of dtrain they reach, in every process; see the README
beside it.
"""

import argparse
import importlib.util
import json
import marshal
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import coverage_record
from coverage_record import WHOLE_MODULE, Counted, Function

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "runtime" / "dtrain", ROOT / "cli" / "dtrain_cli")
HOOK = Path(sysconfig.get_path("purelib")) / "dtrain_record.pth"
LEFT_OUT = ("if TYPE_CHECKING:", "raise NotImplementedError", r"^\s*\.\.\.$")
"""Lines that no process runs."""


@contextmanager
def measured() -> Iterator[Path]:
    """Have every Python process of this environment be measured meanwhile; the folder of their notes."""
    if HOOK.exists():
        sys.exit(
            f"{HOOK} is there: another run measures with this Python, or was killed; remove it if none runs"
        )
    tracer = importlib.util.find_spec("coverage.tracer")
    if tracer is None or not tracer.origin:
        sys.exit(
            f"coverage.py with its C tracer is needed: {sys.executable} -m pip install 'coverage>=7.10,<8'"
        )
    folder = Path(tempfile.mkdtemp(prefix="dtrain-record-"))
    folder.chmod(0o755)
    (notes := folder / "notes").mkdir()
    notes.chmod(0o1777)  # some tests run a command as another user
    program = folder / "measuring.py"
    names = {
        "FOLDER": str(notes),
        "SOURCES": tuple(f"{source}/" for source in SOURCES),
        "TRACER": shutil.copy(tracer.origin, folder),
    }
    assigned = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    program.write_text(assigned + (Path(__file__).parent / "measuring.py").read_text())
    HOOK.write_text(
        f"import os; p = {str(program)!r}; os.access(p, os.R_OK) and exec(compile(open(p).read(), p, 'exec'), {{}})\n"
    )
    try:
        yield notes
    finally:
        HOOK.unlink()
        shutil.rmtree(folder, ignore_errors=True)


def noted(folder: Path) -> dict[str, set[tuple[int, int]]]:
    """Return which lines followed each other, by file; a negative number is where a function begins or ends."""
    packed: dict[str, set[int]] = defaultdict(set)
    for path in folder.iterdir():
        with path.open("rb") as file:
            try:
                while True:
                    for name, found in marshal.load(file):
                        packed[name].update(found)
            except (EOFError, ValueError, TypeError):
                continue  # the end, or what a process wrote as it was killed
    return {name: {_unpacked(each) for each in found} for name, found in packed.items()}


def _unpacked(packed: int) -> tuple[int, int]:
    """Return the two lines that coverage.py's tracer has put into one number."""
    first, second = packed & 0xFFFFFFF, packed >> 28 & 0xFFFFFFF
    return (-first if packed >> 56 & 1 else first), (-second if packed >> 57 & 1 else second)


def functions_of(arcs: dict[str, set[tuple[int, int]]]) -> list[Function]:
    """Return what is reached of every function of the tree."""
    import coverage  # only what measures needs it

    with tempfile.TemporaryDirectory() as folder:
        data, report, settings = (Path(folder) / name for name in ("data", "report.json", "coveragerc"))
        excluded = "\n    ".join(LEFT_OUT)
        settings.write_text(f"[run]\nbranch = true\n[report]\nexclude_also =\n    {excluded}\n")
        measured = coverage.Coverage(data_file=str(data), config_file=str(settings))
        measured.get_data().add_arcs({name: found for name, found in arcs.items() if Path(name).exists()})
        measured.get_data().touch_files(str(path) for source in SOURCES for path in source.rglob("*.py"))
        measured.json_report(outfile=str(report))
        files = json.loads(report.read_text())["files"]
    return [function for file, found in files.items() for function in _functions(file, found["functions"])]


def _functions(file: str, regions: dict[str, dict[str, object]]) -> Iterator[Function]:
    path = Path(file) if Path(file).is_absolute() else Path.cwd() / file
    source = path.read_text()
    lines, statements = source.splitlines(), coverage_record.statements_of(source)

    def text(number: int) -> str:
        return statements.get(number, lines[number - 1].strip()) if number > 0 else "end"

    for name, region in regions.items():
        summary = region["summary"]
        counted = Counted(
            summary["num_statements"],
            summary["num_branches"],
            summary["missing_lines"],
            summary["missing_branches"],
        )
        missed = [text(number) for number in region["missing_lines"]]
        missed += [f"{text(start)} -> {text(end)}" for start, end in region["missing_branches"]]
        yield Function(path.relative_to(ROOT).as_posix(), name or WHOLE_MODULE, counted, missed)


def run(out: Path, words: list[str]) -> int:
    """Run pytest with these words and write the record; return pytest's exit code."""
    begun_s = time.monotonic()
    with measured() as notes:
        code = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False).returncode
        arcs = noted(notes)
    if not any(arcs.values()):
        sys.exit(
            f"nothing of {', '.join(map(str, SOURCES))} ran: is dtrain of another tree installed in this Python?"
        )
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    header = [
        f"branch coverage by `pytest {' '.join(words)}`, which ended with {code} after {time.monotonic() - begun_s:.0f} s",
        f"commit {commit.stdout.strip()}, Python {sys.version.split()[0]}",
    ]
    functions = functions_of(arcs)
    out.write_text(coverage_record.text_of(functions, header))
    every = sum((function.counted for function in functions), Counted())
    print(f"{every.percent():.2f} % of statements and branches; {out} says more")
    return code


def compare(before: Path, now: Path) -> int:
    """Print what was reached and is not any more; 1 where there is such a thing."""
    losses, besides = coverage_record.lost(
        *(coverage_record.read(path.read_text()) for path in (before, now))
    )
    print(
        "\n".join(
            [*besides, *losses, f"{len(losses)} functions, statements and branches are no longer reached"]
        )
    )
    return int(bool(losses))


def main() -> int:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run pytest and write a record")
    runs.add_argument("out", type=Path)
    runs.add_argument("words", nargs=argparse.REMAINDER, help="pytest's own")
    compares = commands.add_parser("compare", help="compare two records")
    compares.add_argument("before", type=Path)
    compares.add_argument("now", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "run":
        return run(arguments.out.absolute(), [word for word in arguments.words if word != "--"])
    return compare(arguments.before, arguments.now)


if __name__ == "__main__":
    sys.exit(main())
