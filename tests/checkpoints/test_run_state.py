"""What a run remembers beside its arrays comes back as it was; an earlier form is read, a later one refused."""

import json

import msgspec
import numpy as np
import pytest

from dtrain import checkpoints
from dtrain.checkpoints import RunState
from dtrain.errors import CheckpointDamagedError, CheckpointError
from dtrain.messages import Lineage, Sums
from dtrain.protocol.applied_batches import Contents
from dtrain.protocol.feed import DataFile, Feed
from dtrain.protocol.part_dealer import Dealt

TOTALS = np.array([2.0, 3.5]).tobytes()
STATE = RunState(
    generation=2,
    optimizer={"name": "sgd", "rate": 0.25},
    compiled={"name": "sgd", "rate": 0.5},
    model={"kind": "sequential"},
    plan={"variables": [], "servers": 1},
    lineage=Lineage(first_step=2, origin=-3, rolled_back_steps=11),
    seen=[[("worker:0", 1, 4)], []],
    contents=(Contents(7, (8, (5,))), Contents(6, (7, ()))),
    replicas_in_sync=3,
    feed=Feed(6, 10, 5, files=(DataFile("data/1", 8, 2**32 - 1),)),
    dealt=Dealt(3, 24, (19, 20), even=True),
    tally=((1, Sums(names=("loss",), totals=TOTALS)),),
    history={1: {0: {"loss": 0.5}, 1: {"loss": [0.25, 0.125]}}},
)
FORMAT_1 = {
    "generation": 2,
    "optimizer": {"name": "sgd"},
    "compiled": {"name": "sgd"},
    "model": None,
    "plan": {"variables": []},
    "seen": [[["worker:0", 1, 4]]],
    "contents": [[7, [8, [5]]]],
    "dealt": [3, 24, [19, 20]],
    "feed": [6, 10, 5],
    "tally": [[1, ["loss"], TOTALS.hex()]],
    "history": {"1": {"0": {"loss": 0.5}}},
    "first_step": 2,
    "origin": -3,
    "rolled_back_steps": 11,
}


def test_every_field_comes_back_from_the_file(tmp_path):
    checkpoints.save(tmp_path, 12, {"one": np.ones(2)}, STATE.to_json(), now=5.0)
    with checkpoints.open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.state == STATE
    assert {
        name for name in RunState.__struct_fields__ if getattr(STATE, name) == getattr(RunState(), name)
    } == {"format"}, "every field has a value of its own here"


def test_the_first_form_is_read():
    found = RunState.of(json.loads(json.dumps(FORMAT_1)))
    assert (found.format, found.generation, found.replicas_in_sync) == (1, 2, 3)
    assert (found.lineage, found.tally, found.feed) == (
        STATE.lineage,
        STATE.tally,
        STATE.feed._replace(files=()),
    )
    assert (found.dealt, found.contents) == (Dealt(3, 24, (19, 20)), STATE.contents[:1])
    assert found.history == {1: {0: {"loss": 0.5}}}


def test_a_checkpoint_of_another_tool_says_nothing():
    assert RunState.of({}) == msgspec.structs.replace(RunState(), format=1)


def test_a_later_form_is_refused_with_what_to_do():
    with pytest.raises(
        CheckpointError, match=r"format 3; this version of dtrain reads up to 2: resume it with"
    ):
        RunState.of({**STATE.to_json(), "format": 3})


@pytest.mark.parametrize(
    ("field", "value"),
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
@pytest.mark.parametrize("state", [FORMAT_1, STATE.to_json()], ids=["format 1", "present"])
def test_what_has_another_form_is_damaged(state, field, value):
    with pytest.raises(CheckpointDamagedError, match="its state of the run cannot be read"):
        RunState.of({**state, field: value})
