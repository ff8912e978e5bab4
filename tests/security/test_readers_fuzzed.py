"""Changed files: each is read, or ends with one of dtrain's own errors; nothing of it is run, opened or believed.

`DTRAIN_FUZZ=50000 pytest tests/security/test_readers_fuzzed.py` reads so many of each kind, with bounds of time
and memory for every file. A failure names the number of the file; with `DTRAIN_FUZZ_FROM=NUMBER` that file is
the first, and with a number beyond those that were read before, all are new.
"""

import os
import resource
import warnings
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest
from security.all_readers import all_readers
from security.guarded import bounded, watched
from security.readers import Reader, checked

from dtrain.errors import DtrainError
from dtrain.strategies.single import SingleStrategy

CASES = int(os.environ.get("DTRAIN_FUZZ", "0"))
FIRST = int(os.environ.get("DTRAIN_FUZZ_FROM", "0"))
DEFAULT = 250
"""Cases of each kind: together they take 4 s of a processor."""
NAMES = (
    *("models", "weights", "checkpoints", "npz", "npy", "csv", "tfrecord"),
    *("tar", "caches", "rows of csv", "hosts", "indexes"),
    *("TF_CONFIG", "DTRAIN_SPEC", "records", "specs", "words of hosts", "orders to hosts"),
)


@pytest.fixture(autouse=True)
def little_memory():
    """Let a reader fail that takes a gigabyte, and not the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    size_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    with SingleStrategy().scope():
        found = all_readers(tmp_path_factory.mktemp("sound"))
        assert set(found) == set(NAMES)
        yield found


def put(case: dict[str, bytes], folder: Path) -> None:
    """Make a folder hold these files alone; its folders stay, because removing them is slow."""
    for left in folder.rglob("*"):
        if left.is_file():
            left.unlink()
    for name, data in case.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def read_changed(reader: Reader, chance: Random, folder: Path) -> None:
    """Read one changed file."""
    put(reader.changed(chance.choice(reader.sound), chance), folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with watched(folder.parent, reader.writes):
                reader.read(folder)
            reader.taken += 1
        except DtrainError as error:
            checked(error)


@pytest.mark.timeout(240 + CASES // 10)
@pytest.mark.parametrize("name", NAMES)
def test_changed_files_are_read_or_refused(readers, name, tmp_path):
    reader = readers[name]
    folder = tmp_path / "case"
    for case in reader.sound:
        put(case, folder)
        reader.read(folder)
    with pytest.raises(AssertionError, match="open"), watched(folder.parent):
        Path("/etc/passwd").open().close()

    for number in range(FIRST, FIRST + (CASES or DEFAULT)):
        chance = Random(f"{name}/{number}")
        try:
            with bounded() if CASES else nullcontext():
                read_changed(reader, chance, folder)
        except BaseException as error:
            error.add_note(f"{name}: number {number}")
            raise
