"""Where an evaluator looks: at the leader's disk, or at copies if it cannot see that."""

import numpy as np

from dtrain import checkpoints
from dtrain.checkpoints import RemoteCopies, list_checkpoints
from dtrain.config import CheckpointSection
from dtrain.roles.evaluator.driver import FollowedRun
from dtrain.runs.files import RunFiles


def followed(tmp_path, directory):
    return FollowedRun(CheckpointSection(remote=f"file://{tmp_path}/copies"), lambda: directory, print)


def save(directory, step, url):
    checkpoints.save(directory, step, {"w": np.zeros(2, np.float32)}, {}, now=0.0)
    RemoteCopies(url).upload(directory)


def test_a_directory_that_is_visible_is_taken_and_none_before_it_is_known(tmp_path):
    RunFiles(tmp_path).checkpoints.mkdir(parents=True)
    assert followed(tmp_path, tmp_path)(False) == tmp_path
    assert followed(tmp_path, None)(False) is None


def test_else_the_newest_copy_is_fetched_and_at_the_end_at_once(tmp_path):
    run = followed(tmp_path, "/on/another/machine")
    save(tmp_path / "there", 3, f"file://{tmp_path}/copies")
    folder = RunFiles(run(False)).checkpoints
    assert [found.step for found in list_checkpoints(folder)] == [3]
    save(tmp_path / "there", 5, f"file://{tmp_path}/copies")
    run(True)
    assert [found.step for found in list_checkpoints(folder)] == [5]


class Now:
    def __init__(self):
        self.s = 100.0

    def now(self):
        return self.s


def test_a_disk_of_another_machine_is_named_while_training_goes_on_and_once():
    clock, said = Now(), []
    run = FollowedRun(CheckpointSection(), lambda: "/on/another/machine", said.append, clock)
    run(False)
    assert said == []  # a shared disk may show a new folder late
    for clock.s in (106.0, 112.0):
        run(False)
    assert len(said) == 1
    assert "/on/another/machine is not on this machine" in said[0]
    assert "checkpoint.remote" in said[0]


def test_a_disk_that_is_there_is_not_complained_about(tmp_path):
    clock, said = Now(), []
    run = FollowedRun(CheckpointSection(), lambda: tmp_path, said.append, clock)
    for clock.s in (100.0, 200.0):
        run(False)
    assert said == []
