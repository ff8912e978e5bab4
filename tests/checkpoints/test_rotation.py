"""Which checkpoints stay."""

import subprocess
import sys

import numpy as np
import pytest

from dtrain import checkpoints
from dtrain.checkpoints.folder import rotate
from dtrain.errors import CheckpointError

HOUR_S = 3600.0


def steps(directory):
    return [found.step for found in checkpoints.list_checkpoints(directory)]


def save(directory, step, now=0.0):
    checkpoints.save(directory, step, {"v": np.array(step)}, now=now)


def test_the_newest_stay(tmp_path):
    for step in range(8):
        save(tmp_path, step)
        rotate(tmp_path, keep=3, now=0.0)
        assert steps(tmp_path) == list(range(step + 1))[-3:]
    rotate(tmp_path, keep=1, now=0.0)
    assert steps(tmp_path) == [7]
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-7"]


def test_all_stay_without_a_number(tmp_path):
    for step in range(4):
        save(tmp_path, step)
    rotate(tmp_path, keep=None, now=0.0)
    assert steps(tmp_path) == [0, 1, 2, 3]


def test_one_stays_every_so_many_hours_as_in_tensorflows_checkpoint_manager(tmp_path):
    """Saved every hour from hour 0, keep 2, one every 3 hours: those of hours 3, 6, 9 stay when they leave
    the newest two.
    """
    for hour in range(12):
        now = hour * HOUR_S
        save(tmp_path, hour, now)
        rotate(tmp_path, keep=2, keep_every_n_hours=3, now=now)
    assert steps(tmp_path) == [3, 6, 9, 10, 11]


def test_what_stays_for_hours_outlives_a_restart_and_a_clock_set_back(tmp_path):
    for hour in (0, 4, 5):
        save(tmp_path, hour, hour * HOUR_S)
        rotate(tmp_path, keep=1, keep_every_n_hours=3, now=hour * HOUR_S)
    assert steps(tmp_path) == [4, 5]
    rotate(tmp_path, keep=1, keep_every_n_hours=3, now=1 * HOUR_S)
    for hour in (4, 5):
        save(tmp_path, hour + 10, hour * HOUR_S)
        rotate(tmp_path, keep=1, keep_every_n_hours=3, now=hour * HOUR_S)
    assert steps(tmp_path) == [
        4,
        5,
        15,
    ]  # 5 is one hour after 4, but by the clock of that moment four hours after


def test_one_that_is_read_is_passed_by_and_goes_the_next_time(tmp_path):
    for step in range(3):
        save(tmp_path, step)
    with checkpoints.open_checkpoint(tmp_path / "ckpt-0") as checkpoint:
        rotate(tmp_path, keep=1, now=0.0)
        assert steps(tmp_path) == [0, 2]
        assert checkpoint.read("v") == 0
    rotate(tmp_path, keep=1, now=0.0)
    assert steps(tmp_path) == [2]


READER = """
import sys, time
from pathlib import Path
from dtrain import checkpoints
with checkpoints.open_checkpoint(Path(sys.argv[1])):
    print("reading", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_another_process_ends_with_it(tmp_path):
    for step in range(2):
        save(tmp_path, step)
    with subprocess.Popen(
        [sys.executable, "-c", READER, tmp_path / "ckpt-0"], stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout.readline() == b"reading\n"
        rotate(tmp_path, keep=1, now=0.0)
        assert steps(tmp_path) == [0, 1]
        reader.kill()
        reader.wait()
    rotate(tmp_path, keep=1, now=0.0)
    assert steps(tmp_path) == [1]


def test_what_is_none_of_ours_is_left_alone(tmp_path):
    for name in ("ckpt-x", "ckpt-01", "notes", ".tmp-other"):
        (tmp_path / name).mkdir()
    (tmp_path / "README").write_text("mine")
    for step in range(3):
        save(tmp_path, step)
    rotate(tmp_path, keep=1, now=0.0)
    assert steps(tmp_path) == [2]
    assert {path.name for path in tmp_path.iterdir()} == {
        "ckpt-x",
        "ckpt-01",
        "notes",
        ".tmp-other",
        "README",
        "ckpt-2",
    }


def test_a_damaged_state_is_named(tmp_path):
    save(tmp_path, 0)
    (tmp_path / "rotation.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"rotation\.json is damaged"):
        rotate(tmp_path, keep=1, keep_every_n_hours=1, now=0.0)
