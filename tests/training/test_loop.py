"""The training loop, with a session of the test's own: epochs that end elsewhere are accounted for."""

from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import numpy as np
from row_by_row import every_row

from dtrain.callbacks import CallbackList, History, LambdaCallback
from dtrain.data import Dataset
from dtrain.learning.losses import MeanSquaredError
from dtrain.learning.optimizers import SGD, serialize
from dtrain.messages import Sums, Verdict
from dtrain.protocol.contributions import Outcome
from dtrain.runs.ledger import Activity
from dtrain.state.batch_cut import BatchCut
from dtrain.strategies.interface import TurnTraining
from dtrain.training.batches import Batches
from dtrain.training.compiled import Compiled
from dtrain.training.fits.handover import Handover
from dtrain.training.fits.leading import EpochLog, Epochs, Leading, Steering
from dtrain.training.fits.loop import TrainingLoop
from dtrain.training.steps import Totals, TrainingStep, chance_of


def totals():
    return Totals(Compiled.of(["output"], SGD(), MeanSquaredError()))


@dataclass(eq=False)
class OthersTrainToo:
    """A training and its only replica, each of whose steps finds the global step where `course`
    says.
    """

    course: list[int]
    first_step: int = 0
    part: int = 0
    rank: int = 0
    cut: BatchCut = field(default_factory=BatchCut)
    weighs_examples: bool = False
    tally: tuple = ()
    leads = True
    recorded: dict = field(default_factory=dict)
    weights: dict = field(default_factory=dict)
    gradients: dict = field(default_factory=dict)
    rows: dict = field(default_factory=dict)
    updates: dict = field(default_factory=dict)
    repairs: bool = False
    kept: dict | None = None

    step = TurnTraining.step
    _compute_part = TurnTraining._compute_part
    _conclude = TurnTraining._conclude

    def __post_init__(self):
        self.replicas = [self]

    @property
    def global_step(self):
        return self.course[0]

    @property
    def finished(self):
        return len(self.course) == 1

    @property
    def optimizer(self):
        return serialize(SGD())

    def order(self, order):
        if order.rows is not None:
            self.record(order.open_from, order.rows)

    def record(self, epoch, rows):
        self.recorded = {n: row for n, row in self.recorded.items() if n < epoch} | dict(rows)

    def next_batch(self):
        return self.part

    def commit(self, loss, examples, sums, empty=0):
        self.course.pop(0)
        self.part += 1
        return Outcome(Verdict.ACCEPTED)


def run(session, make, train_step, *callbacks, history=None, epochs=3, validate=None):
    """Run the loop of a leader with these callbacks."""
    epochs = Epochs(steps_per_epoch=2, epochs=epochs)
    model = SimpleNamespace(stop_training=False, arrays=session.weights)
    optimizer = SGD()

    def lead():
        return Leading(
            session,
            epochs,
            Activity(),
            EpochLog(session, totals(), history or History()),
            CallbackList(callbacks, None, {}),
            Steering(model, optimizer, session, holds=True),
            Handover(callbacks, model, optimizer, session),
            validate,
        )

    loop = TrainingLoop(session, make, train_step, str, totals, lead)
    loop.run([Batches(Dataset.range(10).batch(1)).stream(BatchCut()).at])


def made_step(replica, number, part, batch):
    return TrainingStep(None, None, batch, replica, np.random.default_rng(0))


def constant_loss(step):
    assert step.gradients == {}
    return {"loss": 1.0}


@every_row(
    "course",
    [
        [0, 1, 2, 3, 4, 5, 6],
        [0, 5, 6],
        [3, 6],  # the others began before it had its first values
        [6],
        [4, 6],  # it has taken up a training of which no epoch was recorded
    ],
)
def test_every_epoch_begins_and_ends_once(course):
    session = OthersTrainToo(course)
    seen = {"begin": [], "end": []}
    note = LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen["begin"].append(epoch),
        on_epoch_end=lambda epoch, logs: seen["end"].append(epoch),
    )
    run(session, made_step, constant_loss, note)
    assert seen == {"begin": [0, 1, 2], "end": [0, 1, 2]}


def sums(examples, loss):
    return Sums(names=("loss",), totals=np.array([examples, examples * loss], "<f8").tobytes())


def followed(session, monitored, validate=None):
    """Run the loop of a leader whose callback notes the logs of epochs; returns them."""
    seen = {}
    note = LambdaCallback(on_epoch_end=lambda epoch, logs: seen.setdefault(epoch, dict(logs)))
    run(session, made_step, constant_loss, note, history=monitored, validate=validate)
    return seen


def test_an_epoch_s_numbers_are_those_of_every_contribution_to_it_and_never_of_another():
    """The leader has a batch of the first epoch only."""
    session, history = OthersTrainToo([0, 5, 6]), History()
    session.tally = ((0, sums(1, 2.0)), (0, sums(3, 6.0)), (1, sums(2, 4.0)), (2, sums(2, 1.0)))
    seen = followed(session, history)
    assert {epoch: logs["loss"] for epoch, logs in seen.items()} == {0: 5.0, 1: 4.0, 2: 1.0}
    assert session.recorded == {0: {"loss": 5.0}, 1: {"loss": 4.0}, 2: {"loss": 1.0}}


class Repairs(OthersTrainToo):
    """A session whose second part makes no step: it repairs what is on some servers only."""

    @property
    def repairs(self):
        return self.part == 1

    @repairs.setter
    def repairs(self, value):
        """It is not set."""


def test_an_epoch_has_not_ended_before_every_server_has_its_last_step():
    """A repair is no batch of the next epoch either: hooks of batches are not called."""
    session = Repairs([0, 2, 2, 4])
    seen = []

    def train_step(step):
        seen.append(("step", session.part))
        return constant_loss(step)

    note = LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(("epoch", epoch)),
        on_train_batch_begin=lambda batch, logs: seen.append(("begin", batch)),
        on_train_batch_end=lambda batch, logs: seen.append(("end", batch)),
    )
    run(session, made_step, train_step, note, epochs=2)
    first = [("begin", 0), ("step", 0), ("end", 1), ("step", 1), ("epoch", 0)]
    assert seen == [*first, ("begin", 0), ("step", 2), ("end", 1), ("epoch", 1)]


def test_numbers_that_come_later_are_null_in_the_row_and_not_in_the_logs_of_callbacks():
    """With `validation: evaluator`; callbacks take what they find for numbers, as Keras's do."""
    session = OthersTrainToo([0, 5, 6])
    session.tally = tuple((epoch, sums(2, 4.0)) for epoch in range(3))
    seen = followed(session, History(), validate=lambda ended: {"val_loss": None})
    assert seen == {epoch: {"loss": 4.0} for epoch in range(3)}
    assert session.recorded == {epoch: {"loss": 4.0, "val_loss": None} for epoch in range(3)}


def test_a_leader_that_was_started_again_ends_the_epoch_that_its_predecessor_had_not_recorded():
    session, history = (
        OthersTrainToo([4, 6], recorded={0: {"loss": 9.0, "val_loss": 8.0}}),
        History(),
    )
    session.tally = ((1, sums(2, 4.0)), (2, sums(2, 1.0)))
    assert sorted(followed(session, history)) == [1, 2]
    assert session.recorded[0] == {"loss": 9.0, "val_loss": 8.0}
    history.take(session.recorded)
    assert (history.epoch, history.history) == ([0, 1, 2], {"loss": [9.0, 4.0, 1.0], "val_loss": [8.0]})


def test_a_void_step_is_computed_again_with_the_same_chance():
    class FirstIsVoid(OthersTrainToo):
        def commit(self, *contribution):
            return Outcome(Verdict.VOID) if len(drawn) == 1 else super().commit(*contribution)

    session, drawn = FirstIsVoid([0, 1, 2]), []

    def train_step(step):
        drawn.append(step.rng.random())
        return constant_loss(step)

    def make(replica, number, part, batch):
        return TrainingStep(None, None, batch, replica, partial(chance_of, 7, 0, 1, number))

    run(session, make, train_step, epochs=1)
    assert len(drawn) == 3
    assert drawn[0] == drawn[1] != drawn[2]
