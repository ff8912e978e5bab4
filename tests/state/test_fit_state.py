"""What a run remembers beside its arrays comes back as it was; another form is refused."""

import numpy as np
import pytest
from row_by_row import every_row

from dtrain import checkpoints
from dtrain.errors import CheckpointDamagedError, CheckpointError
from dtrain.state.batch_cut import Dealt
from dtrain.state.feed import DataFile, Feed
from dtrain.state.fit_state import Contents, FitState, Lineage, Sums

TOTALS = np.array([2.0, 3.5]).tobytes()
STATE = FitState(
    generation=2,
    version=12,
    max_steps=40,
    alone=True,
    steps_per_epoch=6,
    first_epoch=3,
    optimizer={"name": "sgd", "rate": 0.25},
    compiled={"name": "sgd", "rate": 0.5},
    model={"kind": "sequential"},
    plan={"variables": [], "servers": 1},
    lineage=Lineage(first_step=2, origin=-3, rolled_back_steps=11),
    seen=((("worker:0", 1, 4),), ()),
    contents=(Contents(7, (8, (5,))), Contents(6, (7, ()))),
    replicas_in_sync=3,
    feed=Feed(6, 10, 5, files=(DataFile("data/1", 8, 2**32 - 1),)),
    dealt=Dealt(3, 24, (19, 20), even=True),
    tally=((1, Sums(names=("loss",), totals=TOTALS)),),
    history={1: {0: {"loss": 0.5}, 1: {"loss": [0.25, 0.125]}}},
)


def test_every_field_comes_back_from_the_file(tmp_path):
    checkpoints.save(tmp_path, 12, {"one": np.ones(2)}, STATE.to_json(), now=5.0)
    with checkpoints.open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.state == STATE
    assert {
        name for name in FitState.__struct_fields__ if getattr(STATE, name) == getattr(FitState(), name)
    } == set(), "every field has a value of its own here"


def test_a_checkpoint_of_another_tool_says_nothing():
    assert FitState.of({}) == FitState()


@pytest.mark.parametrize("other", [1, 2, 4])
def test_another_form_is_refused_with_what_to_do(other):
    with pytest.raises(
        CheckpointError, match=rf"format {other}; this version of dtrain reads format 3: resume it with"
    ):
        FitState.of({**STATE.to_json(), "format": other})


@every_row(
    "field, value",
    [
        ("generation", "two"),
        ("dealt", [3, "six"]),
        ("tally", [[1, 2]]),
        ("plan", []),
        ("format", "x"),
        ("generation", 2**70),
        ("feed", [6, 10, -(2**65)]),
    ],
)
def test_what_has_another_form_is_damaged(field, value):
    with pytest.raises(CheckpointDamagedError, match="its state of the run cannot be read"):
        FitState.of({**STATE.to_json(), field: value})
