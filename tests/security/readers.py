"""What a reader of files is to the fuzzer: sound contents, how they are changed, and how they are read."""

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from security.guarded import watched
from security.mutations import some_bytes

from dtrain.errors import DtrainError

Case = dict[str, bytes]
"""Files by their names."""


@dataclass
class Reader:
    """One reader.

    Attributes:
        sound: files that it reads without an error.
        changed: one of them, changed.
        read: reads the files of a folder; every DtrainError is let through.
        writes: whether it may also change and remove files beside that folder.
    """

    sound: list[Case]
    changed: Callable[[Case, Random], Case]
    read: Callable[[Path], object]
    taken: int = field(default=0)
    writes: bool = False


def of_bytes(sound: list[Case], structured: Callable[[str, bytes, Random], bytes] | None = None) -> Any:
    """Change one file of a case, by its structure or its bytes."""
    pool = [data for case in sound for data in case.values()]

    def changed(case: Case, chance: Random) -> Case:
        name = chance.choice(sorted(case))
        if structured is not None and chance.random() < 0.6:
            return {**case, name: structured(name, case[name], chance)}
        return {**case, name: some_bytes(case[name], pool, chance)}

    return changed


def files_of(folder: Path) -> Case:
    """Return the files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checked(error: DtrainError) -> None:
    """Check that an error is a sentence that can be printed, of a length that a terminal shows."""
    text = str(error)
    assert text.strip(), "an error without words"
    assert len(text) <= 20_000, f"{len(text)} characters"
    assert max(map(len, text.splitlines())) <= 4_000, text[:200]


def read_changed(reader: Reader, chance: Random, folder: Path) -> None:
    """Change a sound case by chance and read it, as `read_case`."""
    read_case(reader, reader.changed(chance.choice(reader.sound), chance), folder)


def read_case(reader: Reader, case: Case, folder: Path, watch: bool = True) -> None:
    """Read the files of a case, which are put into a folder; one of dtrain's own errors is right."""
    put(case, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with watched(folder.parent, reader.writes) if watch else contextlib.nullcontext():
                reader.read(folder)
            reader.taken += 1
        except DtrainError as error:
            checked(error)


def put(case: Case, folder: Path) -> None:
    """Make a folder hold these files alone; its folders stay, because removing them is slow."""
    for left in folder.rglob("*"):
        if left.is_file():
            left.unlink()
    for name, data in case.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
