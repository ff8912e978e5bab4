"""The training loop, with a session of the test's own: epochs that end elsewhere are accounted for."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from dtrain.callbacks import CallbackList, LambdaCallback
from dtrain.data import Dataset
from dtrain.learning.losses import MeanSquaredError
from dtrain.learning.optimizers import SGD, serialize
from dtrain.messages import Verdict
from dtrain.strategy import StepResult
from dtrain.training.batches import Batches
from dtrain.training.compiled import Compiled
from dtrain.training.epochs import Epochs
from dtrain.training.evaluation import Totals
from dtrain.training.loop import EpochLog, TrainingLoop
from dtrain.training.steering import Steering
from dtrain.training.steps import TrainingStep


@dataclass
class OthersTrainToo:
    """A session in which each of this replica's steps finds the global step where `course` says."""

    course: list[int]
    entered_step: int = 0
    first_step: int = 0
    batch: int = 0
    weights: dict = field(default_factory=dict)
    gradients: dict = field(default_factory=dict)
    row_gradients: dict = field(default_factory=dict)
    updates: dict = field(default_factory=dict)
    late: bool = False
    complete: None = None

    @property
    def global_step(self):
        return self.course[0]

    @property
    def finished(self):
        return len(self.course) == 1

    @property
    def optimizer(self):
        return serialize(SGD())

    def control(self, orders):
        """Nothing changes."""

    def arrive(self):
        """Everything is there."""

    def conclude(self):
        return True

    def step(self, loss, examples):
        self.course.pop(0)
        self.batch += 1
        return StepResult(Verdict.ACCEPTED, self.global_step)


@pytest.mark.parametrize(
    ("course", "entered", "begun", "ended"),
    [
        ([0, 1, 2, 3, 4, 5, 6], 0, [0, 1, 2], [0, 1, 2]),
        ([0, 5, 6], 0, [0, 1, 2], [0, 1, 2]),
        ([3, 6], 0, [0, 1, 2], [0, 1, 2]),  # the others began before it had its first values
        ([6], 0, [0, 1, 2], [0, 1, 2]),
        ([4, 6], 4, [2], [2]),  # it has taken up a training under way
    ],
)
def test_every_epoch_begins_and_ends_once(course, entered, begun, ended):
    session, seen = OthersTrainToo(course, entered), {"begin": [], "end": []}
    note = LambdaCallback(
        on_epoch_begin=lambda epoch: seen["begin"].append(epoch), on_epoch_end=lambda epoch, logs: seen["end"].append(epoch)
    )

    def step(batch):
        made = TrainingStep(None, None, batch, session, np.random.default_rng(0))
        assert made.gradients == {}
        return made

    loop = TrainingLoop(session, Epochs(steps_per_epoch=2, epochs=3), step, lambda step: {"loss": 1.0}, str)
    loop.log, loop.callbacks = EpochLog(Totals(Compiled.of(["output"], SGD(), MeanSquaredError()))), CallbackList([note], None, {})
    model = SimpleNamespace(stop_training=False, weights=session.weights)
    loop.steering = Steering(model, SGD(), session, holds=True)
    loop.run(Batches(Dataset.range(10).batch(1)).stream(replicas=1))
    assert seen == {"begin": begun, "end": ended}


def test_a_void_step_is_computed_again_with_the_same_chance():
    class FirstIsVoid(OthersTrainToo):
        def step(self, loss, examples):
            return StepResult(Verdict.VOID, 0) if len(drawn) == 1 else super().step(loss, examples)

    session, rng, drawn = FirstIsVoid([0, 1, 2], late=True), np.random.default_rng(0), []

    def train_step(step):
        assert step.gradients == {}
        drawn.append(step.rng.random())
        return {"loss": 1.0}

    epochs = Epochs(steps_per_epoch=2, epochs=1)
    loop = TrainingLoop(session, epochs, lambda batch: TrainingStep(None, None, batch, session, rng), train_step, str)
    loop.run(Batches(Dataset.range(10).batch(1)).stream(replicas=1))
    assert drawn == [drawn[0], *np.random.default_rng(0).random(2)]
