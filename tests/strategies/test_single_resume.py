"""One process that goes on from a checkpoint: with the batches that are not done, and with none that is."""

import numpy as np

from dtrain import checkpoints
from dtrain.config import training_section
from dtrain.learning import optimizers
from dtrain.parameters import placement
from dtrain.roles.chief.start import fresh
from dtrain.state.batch_cut import UNCUT, Dealt
from dtrain.state.fit_state import FitState
from dtrain.strategies.in_process.training import LocalTraining
from dtrain.strategies.single import SingleReplica
from dtrain.variables import VariableSpec

PLAN = placement.plan([VariableSpec("kernel", (2,))], 1)
OPTIMIZER = optimizers.serialize(optimizers.SGD(0.1))
ASKED = FitState(compiled=OPTIMIZER, optimizer=OPTIMIZER, max_steps=20)


def test_what_was_dealt_is_not_dealt_again_and_what_is_due_comes_first():
    start = fresh(ASKED, PLAN, {"kernel": np.zeros(2, np.float32)}, version=6)
    training = LocalTraining(start.but(dealt=Dealt(1, 8, (2, 5))), training_section(), None)
    replica = SingleReplica(training)
    computed = []
    for _ in range(4):
        computed.append(replica.next_batch())
        replica.gradients["kernel"][...] = 1
        replica.commit(0.5, 1, None)
    assert computed == [2, 5, 8, 9]
    assert training.global_step == 10


def test_a_training_is_saved_where_it_is_told_with_the_step_that_it_has_reached(tmp_path):
    start = fresh(ASKED, PLAN, {"kernel": np.ones(2, np.float32)}).going_on(UNCUT, 20, sync=False)
    training = LocalTraining(start, training_section(), None)
    replica = SingleReplica(training)
    replica.gradients["kernel"][...] = 5
    replica.commit(0.5, 1, None)
    training.save(tmp_path / "copy")
    with checkpoints.open_checkpoint(tmp_path / "copy") as checkpoint:
        assert checkpoint.step == 1
        assert checkpoint.read("kernel").tolist() == [0.5, 0.5]
