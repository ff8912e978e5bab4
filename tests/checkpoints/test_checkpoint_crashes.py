"""A crash at any operation leaves a checkpoint that can be restored, and so does one more. A full disk is an
error by name.
"""

import errno
import itertools
import os
import re
from pathlib import Path

import numpy as np
import pytest
from checkpoints.crashing_disk import CrashingDisk, Tree, lay_out
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain import checkpoints
from dtrain.checkpoints.folder import FileOperations
from dtrain.errors import CheckpointError

Found = tuple[int, float] | None
"""The step and the value of the checkpoint that is read; None: there is none."""
GARBAGE = re.compile(r"\.(tmp|removed)-[^/]*/")
NOT_READ = re.compile(r"\.(tmp|removed)-|rotation\.json")
FOLDER = Path("runs", "one", "checkpoints")


class Undisturbed(FileOperations):
    """Need not wait for the disk, because no machine crashes."""

    def sync(self, file):
        pass

    def sync_directory(self, path):
        pass


def save(folder: Path, step: int, value: float, disk: FileOperations) -> None:
    checkpoints.save(folder, step, {"v": np.full(8, value)}, {"note": "x"}, now=float(step), disk=disk)


def rotate(folder: Path, step: int, disk: FileOperations, keep: int | None = 2) -> None:
    checkpoints.rotate(folder, keep=keep, keep_every_n_hours=1, now=float(step), disk=disk)


def found_in(folder: Path) -> Found:
    """What is read after a crash. It is whole, and nothing that was damaged lies in front of it."""
    if not checkpoints.list_checkpoints(folder):
        return None
    with checkpoints.open_checkpoint(folder) as checkpoint:
        assert checkpoint.warning is None
        array = checkpoint.read("v")
        assert (array == array[0]).all()
        return checkpoint.step, float(array[0])


def without_garbage(tree: Tree, garbage: re.Pattern[str] = GARBAGE) -> Tree:
    """The tree without what lies inside of directories that are being written or removed: it decides
    nothing.
    """
    return frozenset(entry for entry in tree if not garbage.search(entry[0]))


class Story:
    """Saves below one root, and what may be read after a crash at each moment of them.

    Attributes:
        folder: where the checkpoints are kept.
        disk: it remembers every moment.
        allowed: by moment: the checkpoint that was reported last, and the one that is being written.
    """

    def __init__(
        self, root: Path, disk: CrashingDisk | None = None, reported: set[Found] | None = None
    ) -> None:
        """Begin on a disk on which one of these is what is read; without any, what is read now."""
        self.folder = root / FOLDER
        self.disk = disk or CrashingDisk(root)
        self._reported = reported or {found_in(self.folder)}
        self.allowed = [self._reported]

    def make_run_directory(self) -> None:
        """Make the folder above that of the checkpoints, as a launcher does, which does not sync its name."""
        self.disk.make_directory(self.folder.parent)
        self._now(self._reported)

    def save(self, step: int, value: float, keep: int | None = 2) -> None:
        """Write a checkpoint and remove old ones, as a run does."""
        save(self.folder, step, value, self.disk)
        self._now(self._reported | {(step, value)})
        self._reported = {(step, value)}
        self.allowed[-1] = self._reported
        rotate(self.folder, step, self.disk, keep)
        self._now(self._reported)

    def _now(self, allowed: set[Found]) -> None:
        self.allowed += [allowed] * (len(self.disk.moments) - len(self.allowed))

    def crashes(self) -> dict[Tree, set[Found]]:
        """Everything that the disk may hold after one crash, and what may be read of it."""
        crashes: dict[Tree, set[Found]] = {}
        alike: dict[Tree, Tree] = {}
        following = [*self.allowed[1:], None]
        for moment, allowed, next_allowed in zip(self.disk.moments, self.allowed, following, strict=True):
            if moment.covered and allowed == next_allowed:
                continue
            for tree in sorted(moment.trees(), key=len):
                tree = alike.setdefault(without_garbage(tree), tree)
                crashes[tree] = crashes.get(tree, allowed) & allowed
        return crashes


class Machines:
    """Directories in which disks are laid out; what was found on a disk is remembered."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._found: dict[Tree, Found] = {}

    def with_disk(self, tree: Tree) -> Path:
        return lay_out(tree, self._folder / str(next(self._numbers)))

    def found(self, tree: Tree) -> Found:
        """What is read of a disk by the process that comes next."""
        read = without_garbage(tree, NOT_READ)
        if read not in self._found:
            self._found[read] = found_in(self.with_disk(tree) / FOLDER)
        return self._found[read]


@pytest.fixture
def machines(tmp_path):
    return Machines(tmp_path)


def begun(machines: Machines, steps: tuple[int, ...]) -> Path:
    """A disk on which a run has saved these steps; without any there is not even the folder of runs."""
    root = machines.with_disk(frozenset())
    for step in steps:
        save(root / FOLDER, step, float(step), Undisturbed())
        rotate(root / FOLDER, step, Undisturbed(), keep=3)
    return root


BEGINNINGS: dict[str, tuple[tuple[int, ...], tuple[int, int]]] = {
    "a new folder": ((), (0, 10)),
    "the next steps": ((0, 10, 20), (30, 40)),
    "the same step twice": ((0, 10, 20), (20, 20)),
    "a step before all others, and one between": ((10, 20, 30), (5, 15)),
    "a step between and a later one": ((0, 10, 20), (15, 30)),
}


STEPS = pytest.mark.parametrize(("before", "steps"), BEGINNINGS.values(), ids=BEGINNINGS)


def two_saves(story: Story, steps: tuple[int, int]) -> Story:
    for value, step in enumerate(steps, start=100):
        story.save(step, float(value))
    return story


def assert_clean(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert all(name.startswith("ckpt-") or name == "rotation.json" for name in names), names


@STEPS
def test_two_crashes_at_any_operations_of_two_saves(machines, before, steps):
    """The first crash comes within two saves, the second within the save that follows on what the first has
    left.
    """
    again: dict[Tree, set[Found]] = {}
    for tree, allowed in two_saves(Story(begun(machines, before)), steps).crashes().items():
        restored = machines.found(tree)
        assert restored in allowed
        for step in {steps[-1], restored[0] if restored else 0}:
            story = Story(machines.with_disk(tree))
            story.save(step, 200.0)
            assert found_in(story.folder) == (step, 200.0)
            assert_clean(story.folder)
            for crashed, may_be in story.crashes().items():
                again[crashed] = again.get(crashed, may_be) & may_be
    for tree, allowed in again.items():
        assert machines.found(tree) in allowed


@pytest.mark.parametrize(
    "beginning",
    ["a new folder", "the same step twice"]
    + ["a step before all others, and one between"] * bool(os.environ.get("DTRAIN_CHAOS")),
)
def test_a_crash_after_a_process_was_killed_at_any_operation_of_two_saves(machines, beginning):
    """What the killed process has not synced is seen by the next one, and may still be lost."""
    before, steps = BEGINNINGS[beginning]
    root = begun(machines, before)
    (root / FOLDER.parts[0]).mkdir(exist_ok=True)  # the folder of all runs is there
    first = Story(root)
    first.make_run_directory()
    two_saves(first, steps)
    crashes: dict[Tree, set[Found]] = {}
    for moment, allowed in zip(first.disk.moments, first.allowed, strict=True):
        root = machines.with_disk(moment.seen)
        assert found_in(root / FOLDER) in allowed
        story = Story(root, CrashingDisk(root, moment.surface.copy()), reported=allowed)
        story.save(steps[-1], 200.0)
        assert_clean(story.folder)
        for crashed, may_be in story.crashes().items():
            crashes[crashed] = crashes.get(crashed, may_be) & may_be
    for tree, allowed in crashes.items():
        assert machines.found(tree) in allowed


STEP, KEEP, CHOICE = st.integers(0, 25), st.sampled_from([1, 2, None]), st.integers(0, 999)


@settings(max_examples=15)
@given(st.lists(st.tuples(STEP, KEEP, CHOICE, CHOICE), max_size=6))
def test_any_story_of_crashes(tmp_path_factory, crashes):
    """Save, crash at a moment with a loss, and so on: each time there is what was reported last, or what was
    being written.
    """
    machines = Machines(tmp_path_factory.mktemp("story"))
    root = begun(machines, (0,))
    for number, (step, keep, moment, loss) in enumerate(crashes, start=1):
        story = Story(root)
        story.save(step, float(number), keep)
        at = moment % len(story.disk.moments)
        trees = sorted(story.disk.moments[at].trees(), key=lambda tree: sorted(path for path, _ in tree))
        tree = trees[loss % len(trees)]
        assert machines.found(tree) in story.allowed[at]
        root = machines.with_disk(tree)


class FullDisk(Undisturbed):
    """Takes so many bytes and no more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, file, data):
        if len(data) > self.room:
            super().write(file, data[: self.room])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        super().write(file, data)


@pytest.mark.parametrize("room", [0, 100, 5000, 8200])
def test_a_full_disk_is_named_and_costs_nothing(tmp_path, room):
    for step in (10, 20):
        save(tmp_path, step, float(step), Undisturbed())
    with pytest.raises(
        CheckpointError, match=r"step 30 in .*: No space left on device \(it has 8,\d+ bytes, [\d,]+ free\)"
    ) as raised:
        checkpoints.save(tmp_path, 30, {"v": np.full(1000, -1.0)}, now=30.0, disk=FullDisk(room))
    assert str(tmp_path) in str(raised.value)
    assert found_in(tmp_path) == (20, 20.0)
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint of step 1 in .*file/checkpoints"):
        checkpoints.save(tmp_path / "file" / "checkpoints", 1, {}, now=0.0)
