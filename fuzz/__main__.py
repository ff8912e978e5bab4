"""Read changed files of every kind that dtrain reads: `python -m fuzz all --cases 50000`.

Case N of a reader and a seed is always changed in the same way, so a line of the journal says what has been
read: stop it at any time and start it again with the same words, and only the rest is read. A case that
fails is kept beside the journal, and the next one follows. With `--atheris` the cases of one reader are
chosen by the code that they reach, with the same mutations.
"""

import argparse
import faulthandler
import importlib
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

AT_ONCE = 500
"""Cases to a line of the journal."""


class Journal:
    """A record of the cases that have been read, a line of JSON for each range; several may write it.

    Attributes:
        kept: the folder of cases that failed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kept = path.with_suffix(".failed")

    def finished(self, name: str, seed: int) -> list[dict[str, Any]]:
        """Return the ranges of a reader; a line that was cut off is none."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [each for each in found if (each["reader"], each["seed"]) == (name, seed)]

    def write(self, line: dict[str, Any]) -> None:
        """Add a range."""
        with self._path.open("a") as file:
            file.write(f"\n{json.dumps(line)}\n")  # the line before may be cut off


def read_range(
    journal: Journal, name: str, reader: Any, seed: int, numbers: range, folder: Path
) -> dict[str, Any]:
    """Read cases, and write down how far that came, also when it is stopped. Return what was written."""
    from security.guarded import bounded
    from security.readers import read_changed

    line = {"reader": name, "seed": seed, "from": numbers.start, "to": numbers.start, "failed": []}
    before, began_s = reader.taken, time.process_time()
    try:
        for number in numbers:
            try:
                with bounded():
                    read_changed(reader, Random(f"{seed}/{number}"), folder)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                line["failed"].append([number, f"{type(error).__name__}: {error}"[:300]])
                kept = journal.kept / f"{name.replace(' ', '_')}-{seed}-{number}"
                shutil.copytree(folder, kept, dirs_exist_ok=True)
            line["to"] = number + 1
    finally:
        line |= {"read": reader.taken - before, "cpu_s": round(time.process_time() - began_s, 2)}
        if line["to"] > numbers.start:
            journal.write(line)
    return line


def missing(lines: list[dict[str, Any]], numbers: range) -> list[range]:
    """Return the ranges of at most `AT_ONCE` cases that no line has."""
    found = set(numbers).difference(*(range(line["from"], line["to"]) for line in lines))
    ends = sorted(number for number in found if number + 1 not in found or (number + 1) % AT_ONCE == 0)
    starts = sorted(number for number in found if number - 1 not in found or number % AT_ONCE == 0)
    return [range(start, end + 1) for start, end in zip(starts, ends, strict=True)]


def read_all(journal: Journal, names: list[str], readers: dict[str, Any], words: Any, folder: Path) -> int:
    """Read what is missing of each reader and print a line for it. Return the exit code."""
    failures = 0
    for name in names:
        numbers = range(words.start, words.start + words.cases)
        for part in missing(journal.finished(name, words.seed), numbers):
            read_range(journal, name, readers[name], words.seed, part, folder / name / "case")
        lines = journal.finished(name, words.seed)
        failed = [each for line in lines for each in line["failed"] if each[0] in numbers]
        failures += len(failed)
        counts = [sum(line[key] for line in lines) for key in ("to", "from", "read", "cpu_s")]
        print(
            f"{name}: cases {numbers.start} to {numbers.stop} of seed {words.seed}: {len(failed)} failed; "
            f"all {counts[0] - counts[1]} of the journal: {counts[2]} read, {counts[3]:.0f} s of a processor"
            + "".join(f"\n  case {number}: {text}" for number, text in failed),
            flush=True,
        )
    return 1 if failures else 0


def guided(atheris: Any, reader: Any, folder: Path, kept: Path, more: list[str]) -> None:
    """Give one reader's cases to atheris, which does not return; `more` are libFuzzer's own words.

    An argument that is a file reads this case alone, such as one that an earlier run has left in `kept`.
    """
    from security.mutations import some_bytes
    from security.readers import read_case

    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(dict[str, bytes]).decode

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        try:
            case = decode(data)
        except msgspec.MsgspecError:
            case = reader.sound[seed % len(reader.sound)]
        try:
            changed = encode(reader.changed(case, Random(seed)))
        except Exception:  # a mutation of a structure that is already broken
            changed = encode({name: some_bytes(case[name], [case[name]], Random(seed)) for name in case})
        return changed if len(changed) <= most else data

    def read(data: bytes) -> None:
        try:
            case = decode(data)
        except msgspec.MsgspecError:
            return
        if set(case) <= names:
            read_case(reader, case, folder)

    names = {name for case in reader.sound for name in case}
    kept.mkdir(exist_ok=True)
    seeds = folder.parent / "seeds"
    seeds.mkdir()
    for number, case in enumerate(reader.sound):
        (seeds / str(number)).write_bytes(encode(case))
    corpus = [] if any(Path(word).is_file() for word in more) else [str(seeds)]
    atheris.Setup(["fuzz", f"-artifact_prefix={kept}/", *more, *corpus], read, custom_mutator=mutate)
    atheris.Fuzz()


def main(arguments: list[str]) -> int:
    """Carry out the command."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("reader", help="`all`, or one; the names are those of tests/security/all_readers.py")
    parser.add_argument("--cases", type=int, default=1000, metavar="N")
    parser.add_argument("--from", type=int, default=0, metavar="CASE", dest="start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--journal", type=Path, default=Path("fuzz.jsonl"))
    parser.add_argument(
        "--atheris",
        action="store_true",
        help="other words go to libFuzzer, as -runs=10000, or a case that it has kept",
    )
    words, more = parser.parse_known_args(arguments)
    atheris: Any = None
    if more and not words.atheris:
        parser.error(f"what is {more[0]}?")
    if words.atheris:
        try:
            atheris = importlib.import_module("atheris")
        except ImportError:
            parser.error("atheris is not installed: pip install atheris")
        with atheris.instrument_imports(include=["dtrain", "dtrain_cli"]):
            importlib.import_module("security.all_readers")

    from security.all_readers import all_readers
    from security.guarded import little_memory
    from security.readers import read_case

    from dtrain.strategies.single import SingleStrategy

    faulthandler.enable()
    with tempfile.TemporaryDirectory() as made, SingleStrategy().scope(), little_memory():
        sound, folder = Path(made) / "sound", Path(made) / "read"
        sound.mkdir()
        readers = all_readers(sound)
        names = list(readers) if words.reader == "all" else [words.reader]
        if unknown := set(names) - set(readers):
            parser.error(f"no reader is named {unknown.pop()!r}; there are {', '.join(map(repr, readers))}")
        for name in names:  # what is imported late is imported now
            for case in readers[name].sound:
                read_case(readers[name], case, folder / name / "case", watch=False)
        journal = Journal(words.journal)
        if atheris is not None:
            guided(atheris, readers[names[0]], folder / names[0] / "case", journal.kept, more)
        return read_all(journal, names, readers, words, folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
