"""A simulated run is a function of its seed: whatever the hashes of texts are, wherever objects lie in memory, and
whatever the process has run before. It keeps the rules, as those of the other usual seeds in `test_simulation`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from simulation.scenario import SEEDS_OF_SAME_RUN, USUAL_SEEDS

SEEDS = USUAL_SEEDS[:SEEDS_OF_SAME_RUN]
TIMEOUT_S = 300.0


def traces(seeds, hash_seed, processor, file):
    """Begin a process in which what happens in the runs of seeds, one after the other, is written into a file. The order
    of a set of texts follows from the hash seed there, and that of other objects from what has run before.
    """
    os.sched_setaffinity(0, {processor})  # as the process that begins it
    with file.open("w") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "simulation.traces", *map(str, seeds)],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def first_difference(one, other):
    """The first word in which two traces differ, with the text in which it stands and the one before; None if there
    is none.
    """
    for number, (mine, its) in enumerate(zip([*one, "the end"], [*other, "the end"], strict=False)):
        if mine != its:
            words = zip([*mine.split(), "(end)"], [*its.split(), "(end)"], strict=False)
            place, (first, second) = next((n, pair) for n, pair in enumerate(words) if pair[0] != pair[1])
            before = one[number - 1] if number else "the beginning"
            return f"text {number}, word {place}: {first} or {second}\nafter {before}\nin {mine}"
    return None


def test_the_first_word_that_differs_is_named():
    assert first_difference(["a b", "c d"], ["a b", "c d"]) is None
    assert "text 1, word 1: d or e\nafter a b\n" in first_difference(["a b", "c d"], ["a b", "c e"])
    assert "text 1, word 1: d or (end)" in first_difference(["a b", "c d"], ["a b", "c"])
    assert "text 1, word 0: c or the" in first_difference(["a b", "c d"], ["a b"])


def test_a_run_is_a_function_of_its_seed(tmp_path, processors):
    files = tmp_path / "first", tmp_path / "second"
    begun = [
        traces(seeds, hash_seed, processors[number % len(processors)], file)
        for number, (seeds, hash_seed, file) in enumerate(
            zip((SEEDS, reversed(SEEDS)), "12", files, strict=True)
        )
    ]
    try:
        for process, file in zip(begun, files, strict=True):
            assert process.wait(TIMEOUT_S) == 0, file.read_text()[-2000:]
    finally:
        for process in begun:
            process.kill()
            process.wait()
    first, second = (dict(map(json.loads, file.open())) for file in files)
    assert set(first) == set(second) == set(SEEDS)
    for seed in SEEDS:
        assert len(first[seed]) > 10
        assert first[seed][-1] == "=> None", (
            f"DTRAIN_SEEDS={seed} tells more: {first[seed][0]} {first[seed][-1]}"
        )
        difference = first_difference(first[seed], second[seed])
        assert difference is None, f"seed {seed}: {difference}"
