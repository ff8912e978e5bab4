"""Changed files: each is read, or ends with one of dtrain's own errors; nothing of it is run, opened or believed.

`DTRAIN_FUZZ=50000 pytest tests/security/test_readers_fuzzed.py` reads so many of each kind, with bounds of time
and memory for every file; `python -m fuzz` reads the same files and more, and can be stopped. A failure names the
number of the file: `python -m fuzz READER --from NUMBER --cases 1` makes it again.
"""

import os
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest
from security.all_readers import all_readers
from security.guarded import bounded, little_memory, watched
from security.readers import put, read_changed

from dtrain.strategies.single import SingleStrategy

CASES = int(os.environ.get("DTRAIN_FUZZ", "0"))
DEFAULT = 250
"""Cases of each kind: together they take 4 s of a processor."""
NAMES = (
    *(
        "models",
        "weights",
        "models of Keras",
        "weights of Keras",
        "checkpoints",
        "npz",
        "npy",
        "csv",
        "tfrecord",
    ),
    *("tar", "caches", "rows of csv", "hosts", "indexes"),
    *("TF_CONFIG", "DTRAIN_SPEC", "records", "specs", "campaigns", "words of hosts", "orders to hosts"),
)


@pytest.fixture(autouse=True)
def bounded_memory():
    with little_memory():
        yield


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    with SingleStrategy().scope():
        found = all_readers(tmp_path_factory.mktemp("sound"))
        assert set(found) == set(NAMES)
        yield found


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

    for number in range(CASES or DEFAULT):
        chance = Random(f"0/{number}")
        try:
            with bounded() if CASES else nullcontext():
                read_changed(reader, chance, folder)
        except BaseException as error:
            error.add_note(f"{name}: number {number}")
            raise
