"""The last checkpoint of a `fit` stays beside the first one of the next, which is of the same step."""

import errno
import os

import numpy as np
import pytest
from checkpoints.crashing_disk import CrashingDisk, lay_out

from dtrain import checkpoints
from dtrain.checkpoints import final_of, keep_final, list_checkpoints, open_checkpoint
from dtrain.checkpoints.folder import KEPT, FileOperations
from dtrain.errors import CheckpointError


def save(directory, step, value):
    checkpoints.save(directory, step, {"w": np.full(3, value, np.float32)}, {}, now=0.0)


def value_of(kept):
    with open_checkpoint(kept.path) as checkpoint:
        return checkpoint.read("w")[0]


@pytest.mark.parametrize("links", [True, False])
def test_it_stays_when_its_step_is_written_again_and_rotation_leaves_it(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(
            os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links here"))
        )
    for fit in (1, 2):
        save(tmp_path, 5, fit)
        keep_final(tmp_path, fit)
    for step in (5, 6, 7):
        save(tmp_path, step, 3)
        checkpoints.rotate(tmp_path, keep=1, now=0.0)
    assert [(final_of(tmp_path, fit).step, value_of(final_of(tmp_path, fit))) for fit in (1, 2)] == [
        (5, 1),
        (5, 2),
    ]
    assert [found.step for found in list_checkpoints(tmp_path)] == [7]
    assert final_of(tmp_path, 3) is None


def test_the_newest_few_are_kept_and_those_that_are_read(tmp_path):
    save(tmp_path, 0, 0)
    keep_final(tmp_path, 1)
    with open_checkpoint(final_of(tmp_path, 1).path):
        for fit in range(2, 20):
            save(tmp_path, fit, fit)
            keep_final(tmp_path, fit)
        assert [fit for fit in range(20) if final_of(tmp_path, fit)] == [1, *range(20 - KEPT, 20)]


def test_nothing_is_kept_of_nothing_and_a_full_disk_is_named(tmp_path, monkeypatch):
    keep_final(tmp_path / "nowhere", 1)
    save(tmp_path, 5, 1)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FileOperations, "link", full)
    with pytest.raises(CheckpointError, match=r"cannot keep .*ckpt-5 for a late evaluator: No space left"):
        keep_final(tmp_path, 1)


@pytest.mark.parametrize("links", [True, False])
def test_after_a_crash_it_is_kept_whole_or_not_at_all(tmp_path, monkeypatch, links):
    folder = tmp_path / "disk"
    save(folder, 5, 1)
    if not links:
        monkeypatch.setattr(
            os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links here"))
        )
    disk = CrashingDisk(folder)
    keep_final(folder, 1, disk)
    trees = set().union(*(moment.trees() for moment in disk.moments if not moment.covered))
    found = []
    for number, tree in enumerate(sorted(trees, key=lambda tree: sorted(name for name, _ in tree))):
        kept = final_of(lay_out(tree, tmp_path / str(number)), 1)
        found.append(None if kept is None else value_of(kept))
    assert set(found) == {None, 1.0}
    assert [
        final_of(lay_out(tree, tmp_path / f"end-{at}"), 1) is not None
        for at, tree in enumerate(disk.moments[-1].trees())
    ] == [True]
