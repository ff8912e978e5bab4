"""A file that was written is on the disk, with the names of the folders that were made for it."""

import pytest
from checkpoints.crashing_disk import CrashingDisk

from dtrain.saving.destination import write_whole


@pytest.mark.parametrize("folders", ["", "new", "new/and/newer"])
def test_a_file_in_new_folders_outlives_a_crash_once_it_is_written(tmp_path, folders):
    disk = CrashingDisk(tmp_path)
    path = tmp_path / folders / "model.safetensors"
    write_whole(path, [b"one", b"two"], disk=disk)
    entry = str(path.relative_to(tmp_path)), b"onetwo"
    assert all(entry in tree for tree in disk.moments[-1].trees())
