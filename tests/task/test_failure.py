"""Of an error that dtrain raises on purpose the program's own lines are shown, however dtrain came to raise
it.
"""

import bdb
from pathlib import Path

import numpy as np
import pytest

import dtrain as dt
from dtrain import checkpoints
from dtrain.cluster import ClusterSpec, TaskId
from dtrain.errors import CheckpointError, SpecError
from dtrain.process.assignment import TaskAssignment
from dtrain.runs import failure

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
    record = failure.describe(error, TaskAssignment.by_hand(cluster, TaskId.parse("worker:0"), {}))
    assert LINE in record.traceback
    assert record.traceback.count('  File "') == 1
    assert "NotADirectoryError" not in record.traceback, "the message says it"


def test_an_error_that_no_line_of_the_program_led_to_has_its_class_on_record():
    """By it the launcher knows that another attempt would fail alike."""
    cluster = ClusterSpec.from_lists(worker=["a:1"])
    assignment = TaskAssignment.by_hand(cluster, TaskId.parse("worker:0"), {})
    record = failure.describe(SpecError("TF_CONFIG: not JSON"), assignment)
    assert record.traceback is None
    assert record.error_type == "SpecError"
    assert failure.describe(SystemExit(3), assignment).error_type is None


def _frames(error):
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def test_of_dtrains_own_frames_between_the_programs_one_line_is_left(capsys):
    here = "of_dtrains_own_frames_between_the_programs_one_line_is_left"

    def train_step(step):
        raise ValueError("bad batch")

    error = None
    model = _model(train_step)
    try:
        model.fit(np.ones((4, 3), "f4"), np.ones((4, 1), "f4"), verbose=0)
    except ValueError as caught:
        error = caught
    failure.show(error)
    lines = capsys.readouterr().err.splitlines()
    assert [line.strip() for line in lines if line.startswith(("  File", "  ..."))] == [
        f'File "{__file__}", line {_line_of("model.fit(")}, in test_{here}',
        lines[3].strip(),
        f'File "{__file__}", line {_line_of("raise ValueError")}, in train_step',
    ]
    assert lines[3].endswith("calls inside dtrain ...")
    assert lines[-1] == "ValueError: bad batch"


def test_what_dtrain_was_doing_when_it_failed_stays(capsys):
    try:
        dt.data.Dataset.from_tensor_slices(np.arange(4)).map(len).batch(2).__iter__().__next__()
    except TypeError as error:
        failure.show(error)
    else:
        pytest.fail("the length of a number")
    shown = capsys.readouterr().err
    assert "runtime/dtrain/data/" in shown
    assert shown.endswith("TypeError: object of type 'numpy.int64' has no len()\n")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (RuntimeError("can't start new thread"), "`ulimit -u`"),
        (bdb.BdbQuit(), "run the program alone, by `python PROGRAM`"),
    ],
)
def test_what_can_be_done_is_said_where_python_does_not(capsys, error, hint):
    failure.show(error)
    assert hint in capsys.readouterr().err
    cluster = ClusterSpec.from_lists(worker=["a:1"])
    assert (
        hint in failure.describe(error, TaskAssignment.by_hand(cluster, TaskId.parse("worker:0"), {})).message
    )


def _line_of(text):
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def _model(train_step):
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(3,))])
    model.compile(dt.optimizers.SGD(0.1), "mse")
    model.train_step = train_step
    return model
