"""What a checkpoint was written with is what training goes on with, field by field; and what it cannot go on
with.
"""

import msgspec
import numpy as np
import pytest

from dtrain import checkpoints
from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointDamagedError, CheckpointError
from dtrain.learning import optimizers
from dtrain.parameters import placement
from dtrain.roles.chief.saver import Saver
from dtrain.roles.chief.start import Start, restored
from dtrain.state.batch_cut import Dealt
from dtrain.state.feed import Feed
from dtrain.state.fit_state import FitState, Lineage, Sums
from dtrain.variables import VariableSpec

VARIABLES = [
    VariableSpec("kernel", (2, 3)),
    VariableSpec("mean", (2,), trainable=False),
    VariableSpec("scale", ()),
    VariableSpec("table", (5, 2), sparse=True),
]
PLAN = placement.plan(VARIABLES, servers=2)
COMPILED = optimizers.serialize(optimizers.Adam(0.1, use_ema=True))
IN_FORCE = optimizers.serialize(optimizers.Adam(0.025, use_ema=True))
SEEN = (("worker:0", 1, 4), ("worker:1", 2, 9)), (("worker:0", 1, 5),)


def asked(optimizer=COMPILED, **more):
    """The call of `fit` as the program asks for it."""
    return FitState(compiled=optimizer, optimizer=optimizer, max_steps=20, **more)


def started():
    """The same at every call."""
    chance = np.random.default_rng(3)

    def like(spec):
        return np.asarray(chance.normal(size=spec.shape), spec.dtype)

    names = optimizers.from_config(COMPILED).initial_slots(np.zeros(1, np.float32))
    trained = [spec for spec in VARIABLES if spec.trainable]
    values = {spec.name: like(spec) for spec in VARIABLES}
    slots = {slot: {spec.name: like(spec) for spec in trained} for slot in names}
    state = FitState(
        version=7,
        max_steps=20,
        compiled=COMPILED,
        optimizer=IN_FORCE,
        seen=SEEN,
        lineage=Lineage(first_step=2, origin=3, rolled_back_steps=11),
        dealt=Dealt(3, 24, (19, 20)),
        tally=((1, Sums(names=("loss",), totals=np.array([2.0, 3.5]).tobytes())),),
        history={1: {0: {"loss": 0.5}}},
    )
    return Start(state, PLAN, values, slots)


@pytest.fixture
def folder(tmp_path):
    """With a checkpoint of what was started."""
    saver = Saver(None, PLAN, asked(), CheckpointSection(), tmp_path, lambda: 7, print, sync=False)
    saver.save_start(started())
    return tmp_path


def plain(start):
    """Everything but arrays, as JSON has it."""
    return msgspec.json.decode(msgspec.json.encode((start.state, start.warning)))


def test_every_field_of_a_start_comes_back_from_its_checkpoint(folder):
    written, found = started(), restored(folder, PLAN, asked())
    assert plain(found) == plain(written)
    for name, value in written.values.items():
        assert np.array_equal(np.asarray(found.values[name]), value), name
    assert {slot: set(by_variable) for slot, by_variable in found.slots.items()} == {
        slot: {"kernel", "scale", "table"} for slot in ("m", "v", "average")
    }
    for slot, by_variable in written.slots.items():
        for name, value in by_variable.items():
            assert np.array_equal(np.asarray(found.slots[slot][name]), value), (slot, name)
    assert found.optimizer_state.step == 4, "the optimizer's own steps count from its origin"


@pytest.mark.parametrize(
    "changes",
    [
        {"feed": [2**50, 0, 0]},
        {"feed": [8, 0, 0], "dealt": [1, 2**62, []]},
        {"contents": [[7, [2**60, []]], [6, [0, []]]]},
    ],
    ids=["giant batches", "too many batches", "servers far apart"],
)
def test_a_forged_state_of_the_run_is_damaged_and_takes_no_memory(folder, changes):
    with checkpoints.open_checkpoint(folder) as sound:
        arrays = {name: sound.read(name) for name in sound.arrays}
        forged = sound.state.to_json() | {"plan": PLAN.to_dict()} | changes
    checkpoints.save(folder, 8, arrays, forged, now=5.0)
    feed = Feed() if "contents" in changes else Feed(2)
    with pytest.raises(CheckpointDamagedError, match="its state of the run makes no sense"):
        restored(folder, PLAN, asked(feed=feed))


def test_on_other_servers_it_is_not_known_what_each_has_seen(folder):
    assert restored(folder, placement.plan(VARIABLES, servers=3), asked()).state.seen == ()


def test_a_program_that_says_another_number_has_that_in_force_and_keeps_the_slots(folder):
    other = optimizers.serialize(optimizers.Adam(0.5, use_ema=True))
    found = restored(folder, PLAN, asked(other))
    assert found.state.optimizer == other
    assert np.array_equal(found.slots["m"]["kernel"], started().slots["m"]["kernel"])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (optimizers.Lion(use_ema=True), r"Lion \(state: m, average\)"),
        (optimizers.AdamW(use_ema=True), r"AdamW \(state: m, v, average\)"),
        (optimizers.SGD(), r"SGD \(state: none\)"),
        (optimizers.Adam(), r"Adam \(state: m, v\)"),
    ],
)
def test_another_optimizer_is_refused_by_the_names_of_both(folder, other, said):
    with pytest.raises(
        CheckpointError, match=rf"Adam \(state: m, v, average\), and the program now has {said}: "
    ):
        restored(folder, PLAN, asked(optimizers.serialize(other)))
