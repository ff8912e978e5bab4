"""A crash at any operation leaves a checkpoint that can be restored, and the next save works. A full disk is an error by name."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain import checkpoints
from dtrain.checkpoints.file_operations import FileOperations
from dtrain.errors import CheckpointError


class Crash(BaseException):
    """The machine is gone: no handler runs."""


class CrashingDisk(FileOperations):
    """Stops before operation `at`, in the middle of it if it is a write or a removal; from then on nothing is done any more.

    `lose()` then takes away what a real crash may: the ends of files that were not synced, and renames of unsynced directories.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.unsynced: set[Path] = set()
        self.renamed: list[tuple[Path, Path]] = []

    def _operation(self) -> bool:
        """Whether this is the one in whose middle the machine stops."""
        if self.count > self.at:
            raise Crash
        self.count += 1
        return self.count > self.at

    def make_directory(self, path):
        if self._operation():
            raise Crash
        super().make_directory(path)

    def create(self, path):
        if self._operation():
            raise Crash
        self.unsynced.add(path)
        return super().create(path)

    def write(self, file, data):
        if self._operation():
            super().write(file, data[: len(data) // 2])
            raise Crash
        super().write(file, data)

    def sync(self, file):
        if self._operation():
            raise Crash
        self.unsynced.discard(Path(file.name))

    def sync_directory(self, path):
        if self._operation():
            raise Crash
        self.renamed = [(source, target) for source, target in self.renamed if target.parent != path]

    def rename(self, source, target):
        if self._operation():
            raise Crash
        super().rename(source, target)
        self.unsynced = {target / path.name if path.parent == source else path for path in self.unsynced}
        if target.is_dir():
            self.renamed.append((source, target))

    def remove(self, path):
        if self._operation():
            inner = sorted(path.iterdir())
            for file in inner[: len(inner) // 2 + 1]:
                file.unlink()
            raise Crash
        super().remove(path)

    def lose(self, undone: int, kept: float) -> None:
        for path in self.unsynced:
            if path.exists():
                os.truncate(path, int(path.stat().st_size * kept))
        for source, target in self.renamed[::-1][:undone]:
            if target.exists() and not source.exists():
                target.rename(source)


def values(directory: Path) -> tuple[int, float]:
    with checkpoints.open_checkpoint(directory) as checkpoint:
        assert checkpoint.warning is None
        array = checkpoint.read("v")
        assert (array == array[0]).all()
        return checkpoint.step, float(array[0])


def save(directory: Path, step: int, value: float, disk: FileOperations, keep: int | None = 2) -> None:
    checkpoints.save(directory, step, {"v": np.full(1000, value), "w@0": np.zeros(2)}, {"note": "x"}, now=float(step), disk=disk)
    checkpoints.rotate(directory, keep=keep, keep_every_n_hours=1, now=float(step), disk=disk)


STEP, AT, KEEP = st.integers(0, 25), st.integers(0, 60), st.sampled_from([1, 2, None])
UNDONE, KEPT = st.integers(0, 2), st.sampled_from([0.0, 0.5, 1.0])


WORK = CrashingDisk(10**9)  # never crashes, and need not wait for the disk
STEPS = {"the next step": 30, "the same step again": 20, "an earlier step": 10, "between": 15}


def prepare(directory: Path) -> None:
    for step in (0, 10, 20):
        save(directory, step, float(step), WORK, keep=3)


def operations(directory: Path, step: int) -> int:
    disk = CrashingDisk(10**9)
    save(directory, step, -1.0, disk)
    return disk.count


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(("undone", "kept"), [(0, 1.0), (0, 0.0), (1, 0.3), (9, 1.0)])
def test_a_crash_at_any_operation(tmp_path, step, undone, kept):
    prepare(tmp_path / "good")
    shutil.copytree(tmp_path / "good", tmp_path / "counted")
    total = operations(tmp_path / "counted", step)
    assert total > 10
    for at in range(total):
        directory = tmp_path / f"{at}"
        shutil.copytree(tmp_path / "good", directory)
        disk = CrashingDisk(at)
        with pytest.raises(Crash):
            save(directory, step, -1.0, disk)
        disk.lose(undone, kept)
        assert values(directory) in [(20, 20.0), (step, -1.0)], at
        save(directory, 40, 5.0, WORK)
        assert values(directory) == (40, 5.0)
        names = {path.name for path in directory.iterdir()}
        assert all(name.startswith("ckpt-") or name.endswith("rotation.json") for name in names), names
        shutil.rmtree(directory)


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(STEP, AT, KEEP, UNDONE, KEPT), max_size=8))
def test_any_story_of_crashes(tmp_path_factory, story):
    """What a save had written when it returned stays restorable, whatever is lost, until another save has returned."""
    directory = tmp_path_factory.mktemp("story")
    save(directory, 0, 0.0, WORK)
    allowed = [(0, 0.0)]
    for number, (step, at, keep, undone, kept) in enumerate(story, start=1):
        disk = CrashingDisk(at)
        try:
            save(directory, step, float(number), disk, keep)
            allowed = [(step, float(number))]
        except Crash:
            allowed.append((step, float(number)))
        disk.lose(undone, kept)
        assert values(directory) in allowed


class FullDisk(CrashingDisk):
    """Takes so many bytes and no more."""

    def __init__(self, room: int) -> None:
        super().__init__(10**9)
        self.room = room

    def write(self, file, data):
        if len(data) > self.room:
            super().write(file, data[: self.room])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        super().write(file, data)


@pytest.mark.parametrize("room", [0, 100, 5000, 8200])
def test_a_full_disk_is_named_and_costs_nothing(tmp_path, room):
    prepare(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"step 30 in .*: No space left on device \(it has 8,\d+ bytes, [\d,]+ free\)"
    ) as raised:
        save(tmp_path, 30, -1.0, FullDisk(room))
    assert str(tmp_path) in str(raised.value)
    assert values(tmp_path) == (20, 20.0)
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint of step 1 in .*file/checkpoints"):
        checkpoints.save(tmp_path / "file" / "checkpoints", 1, {}, now=0.0)
