"""One task that trains in threads, and an evaluator that follows its checkpoints: both in one process."""

import threading
import uuid

import numpy as np
import pytest
from replica_threads import run_replicas

import dtrain as dt
from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import ClusterSection, RunSpec, training_section
from dtrain.errors import SpecError
from dtrain.messages.membership import TaskStatus
from dtrain.process.assignment import TaskAssignment
from dtrain.runs.files import RunFiles, RunRecord, TaskRecord, read_record, write_record
from dtrain.runs.states import TaskState
from dtrain.strategies.choice import strategy_of
from dtrain.strategies.cluster_task import ClusterTask
from dtrain.strategies.control_hosting import ControlHosting

EPOCHS = 3
END_S = 120.0
CHIEF, EVALUATOR = map(TaskId.parse, ("chief:0", "evaluator:0"))
CLUSTER = ClusterSpec.from_lists(chief=["127.0.0.1:1"])  # no port is opened
X = np.linspace(-1, 1, 16, dtype=np.float32)[:, None]


class Sees(dt.callbacks.Callback):
    """Lets the last epoch begin when the evaluator has told of the last step of the one before."""

    def on_epoch_begin(self, epoch, logs=None):
        until = threading.Event()
        tries = int(END_S / 0.02) if epoch == EPOCHS - 1 else 0
        for _ in range(tries):
            if 2 * epoch in self.model.strategy.evaluations:
                return
            until.wait(0.02)
        assert not tries, f"the evaluation of step {2 * epoch} did not come within {END_S} s"


def place(folder, task=CHIEF, evaluators=1, run_id="run", **training):
    section = training_section(**training)
    spec = RunSpec(cluster=ClusterSection(chief=1, evaluator=evaluators), training=section)
    return TaskAssignment(task, CLUSTER, spec, run_id, folder, launched=True)


def build():
    model = dt.Sequential([dt.layers.Dense(1, kernel_initializer="zeros", input_shape=(1,))])
    model.compile(dt.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_the_evaluators_numbers_reach_the_task_that_trains(strategy, tmp_path):
    """And the History is the same in both; the final checkpoint is evaluated, and told of in the status."""
    settings = {"strategy": strategy, "replicas": 2, "validation": "evaluator"}
    run_id = uuid.uuid4().hex
    tasks = [strategy_of(place(tmp_path, task, run_id=run_id, **settings)) for task in (CHIEF, EVALUATOR)]
    assert [task.num_replicas_in_sync for task in tasks] == [2, 2]
    assert [task.evaluates for task in tasks] == [False, True]

    def fit(model):
        history = model.fit(
            *(X, 3 * X),
            epochs=EPOCHS,
            batch_size=8,
            validation_data=(X, 3 * X),
            callbacks=[Sees()],
            verbose=0,
        )
        return history.history

    trained, followed = run_replicas(tasks, build, fit, end_s=END_S)
    assert trained == followed
    assert (len(trained["val_loss"]), trained["val_loss"][-1]) == (EPOCHS, None)
    told = read_record(RunFiles(tmp_path).status(EVALUATOR), TaskStatus)
    assert told.evaluation["global_step"] == 2 * EPOCHS
    by_step = {each["global_step"]: each["loss"] for each in told.evaluations}
    assert trained["val_loss"][1] == by_step[4] > by_step[6] > 0


def test_an_evaluator_that_no_spec_counts_does_not_train(tmp_path):
    with pytest.raises(SpecError, match=r"^evaluator:0 .* cluster\.evaluator: 1"):
        strategy_of(place(tmp_path, EVALUATOR, evaluators=0, strategy="mirrored"))


@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored"])
def test_an_evaluator_that_has_ended_is_not_waited_for(strategy, tmp_path):
    """It had nothing to evaluate, and never asked the leader anything; one that is coming up will."""
    section = training_section(strategy=strategy)
    task = ClusterTask(place(tmp_path, strategy=strategy), section)
    hosting = ControlHosting(task, section)
    hosting.lead()
    try:
        assert hosting.may_come() == ["evaluator:0"]
        for state, awaited in (
            (TaskState.STARTING, ["evaluator:0"]),
            (TaskState.RESTARTING, ["evaluator:0"]),
            (TaskState.SUCCEEDED, []),
            (TaskState.FAILED, []),
        ):
            tasks = [TaskRecord("chief:0", TaskState.RUNNING), TaskRecord("evaluator:0", state)]
            write_record(RunFiles(tmp_path).run, RunRecord("run", "run", tasks=tasks))
            assert hosting.may_come() == awaited
    finally:
        hosting.stop(farewell=False)
        task.close(None, [], lambda for_good: None)
