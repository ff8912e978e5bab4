"""What a checkpoint asks of the disk, and in which order: names are on it before anything relies on them."""

import numpy as np

from dtrain import checkpoints
from dtrain.checkpoints.folder import FileOperations
from dtrain.checkpoints.writer import CheckpointWriter


class NotingDisk(FileOperations):
    """Notes what it is asked for: (operation, the name of what it is about)."""

    def __init__(self):
        self.notes = []

    def make_directory(self, path):
        self.notes.append(("make", path.name))
        super().make_directory(path)

    def create(self, path):
        self.notes.append(("create", path.name))
        return super().create(path)

    def sync_directory(self, path):
        self.notes.append(("sync names in", path.name))
        super().sync_directory(path)

    def rename(self, source, target):
        self.notes.append(("rename", target.name))
        super().rename(source, target)


def save(directory, step, disk):
    checkpoints.save(directory, step, {"v": np.zeros(3)}, now=0.0, disk=disk)


def test_the_name_of_a_new_folder_of_checkpoints_is_on_the_disk_before_anything_is_in_it(tmp_path):
    disk = NotingDisk()
    save(tmp_path / "checkpoints", 1, disk)
    assert disk.notes[:2] == [("make", "checkpoints"), ("sync names in", tmp_path.name)]


def test_the_names_of_all_its_files_are_on_the_disk_before_it_is_called_a_checkpoint(tmp_path):
    disk = NotingDisk()
    save(tmp_path, 1, disk)
    named = disk.notes.index(("rename", "ckpt-1"))
    synced = disk.notes.index(("sync names in", ".tmp-ckpt-1-1"))
    created = [number for number, (kind, _) in enumerate(disk.notes) if kind == "create"]
    assert len(created) == 2
    assert max(created) < synced < named
    assert ("sync names in", tmp_path.name) in disk.notes[named:], "and then its own name"


def test_what_a_crash_left_replaced_stays_a_checkpoint_while_the_next_one_is_written(tmp_path):
    """The second of two crashes comes before the next one is there."""
    for step in (10, 20):
        save(tmp_path, step, FileOperations())
    (tmp_path / "ckpt-20").rename(tmp_path / ".replaced-ckpt-20-1")
    with CheckpointWriter(tmp_path, 30, now=0.0):
        assert [found.path.name for found in checkpoints.list_checkpoints(tmp_path)] == ["ckpt-10", "ckpt-20"]
        with checkpoints.open_checkpoint(tmp_path) as checkpoint:
            assert checkpoint.step == 20
