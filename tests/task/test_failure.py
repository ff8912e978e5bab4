"""Of an error that dtrain raises on purpose the program's own lines are shown, however dtrain came to raise it."""

import numpy as np
import pytest

from dtrain import checkpoints, failure
from dtrain.assignment import TaskAssignment
from dtrain.cluster import ClusterSpec, TaskId
from dtrain.errors import CheckpointError

LINE = 'checkpoints.save(tmp_path / "file", 5, {"w": np.zeros(3)}, now=0.0)'


def test_the_lines_of_pythons_library_are_left_out(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError) as caught:
        checkpoints.save(tmp_path / "file", 5, {"w": np.zeros(3)}, now=0.0)
    error = caught.value
    assert any(frame.f_code.co_filename.endswith("contextlib.py") for frame in _frames(error))
    failure.show(error)
    shown = capsys.readouterr().err
    assert shown.endswith(f"line {error.__traceback__.tb_lineno}\n    {LINE}\n")
    cluster = ClusterSpec.from_lists(worker=["a:1"])
    record = failure.describe(error, TaskAssignment.by_hand(cluster, TaskId.parse("worker:0")))
    assert LINE in record.traceback
    assert record.traceback.count('  File "') == 1
    assert "NotADirectoryError" not in record.traceback, "the message says it"


def _frames(error):
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next
