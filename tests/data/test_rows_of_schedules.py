"""Whatever becomes of replicas, each row of each pass counts once: schedules of give, push, lose, join and resume.

Every replica has a pipeline of its own, as a process would; the schedule is the dealer's, and the rows are
what the pipelines give for the numbers that were settled.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.data import Dataset, TextLineDataset
from dtrain.data.record_index.addressing import addressed, obstacles
from dtrain.protocol.part_dealer import PartDealer
from dtrain.state.batch_cut import Dealt

FILES, LINES, PASSES = 3, 17, 2
STORIES = st.lists(
    st.tuples(
        st.sampled_from(["give", "give", "push", "settle", "lose", "repeat", "join", "resume"]),
        st.integers(0, 3),
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Files whose lines are the numbers from 0 on."""
    folder = tmp_path_factory.mktemp("rows")
    found = [folder / f"{number}.txt" for number in range(FILES)]
    for number, path in enumerate(found):
        path.write_text("".join(f"{number * LINES + line}\n" for line in range(LINES)))
    return [str(path) for path in found]


def lines(paths):
    return TextLineDataset(paths).map(int)


PIPELINES = {
    "files": lambda paths: lines(paths),
    "shuffle": lambda paths: lines(paths).shuffle(20, seed=3),
    "filter": lambda paths: lines(paths).filter(lambda number: number % 3 != 1),
    "interleave": lambda paths: Dataset.from_tensor_slices(paths).interleave(
        TextLineDataset, cycle_length=2, block_length=2
    ).map(int),
    "flat_map": lambda paths: Dataset.from_tensor_slices(paths).flat_map(TextLineDataset).map(int),
    "cache": lambda paths: lines(paths).shuffle(20, seed=3, reshuffle_each_iteration=False).cache(
        paths[0] + ".cache"
    ),
    "snapshot": lambda paths: lines(paths).filter(lambda number: number % 3 != 1).snapshot(
        paths[0] + ".snapshot"
    ),
    "unbatch": lambda paths: lines(paths).batch(17).unbatch(),
}  # fmt: skip
FILTERED = {"filter", "snapshot"}


class Run:
    """Replicas that read batches for the numbers that a dealer gives them."""

    def __init__(self, make):
        self._make = make
        self._dealer = PartDealer.of(Dealt(parts=1), whole=False)
        self._pushed = {}
        self._read = {}
        self._batches = make().cardinality
        self.counted = Counter()

    def do(self, deed, rank):
        if deed == "give" and rank not in self._pushed:
            self._dealer.give(rank)
        elif deed == "push" and rank in self._dealer.current:
            part = self._dealer.current[rank]
            self._pushed[rank] = part, self._rows(rank, part)
            self._dealer.pushed(rank, part)
        elif deed == "settle" and rank in self._pushed:
            part, rows = self._pushed.pop(rank)
            self._dealer.settle(part)
            self.counted.update(rows)
        elif deed == "repeat" and rank in self._pushed:
            self._dealer.repeat(self._pushed.pop(rank)[0])
        elif deed in ("lose", "join"):
            self._dealer.lose(rank)
            self._pushed.pop(rank, None)
            self._read.pop(rank, None)
        elif deed == "resume":
            self._dealer = PartDealer.of(self._dealer.export(), whole=False)
            self._pushed, self._read = {}, {}

    def _rows(self, rank, part):
        if part >= self._batches:
            return []
        if rank not in self._read:
            self._read[rank] = self._make()
        return [int(row) for row in self._read[rank].element(part, (0,))]

    def finish(self):
        """Let a replica that has joined last do what is left."""
        for rank in range(4):
            self.do("lose", rank)
        while self._dealer.give(9) < self._batches:
            self.do("push", 9)
            self.do("settle", 9)


@pytest.mark.parametrize("name", PIPELINES)
def test_each_row_of_each_pass_counts_once(paths, name):
    def make():
        node = PIPELINES[name](paths).batch(4).repeat(PASSES).node
        assert not obstacles(node)
        return addressed(node)

    kept = [number for number in range(FILES * LINES) if name not in FILTERED or number % 3 != 1]
    expected = Counter(dict.fromkeys(kept, PASSES))

    @settings(deadline=None, max_examples=12)
    @given(STORIES)
    def told(story):
        run = Run(make)
        for deed, rank in story:
            run.do(deed, rank)
        run.finish()
        assert run.counted == expected

    told()
