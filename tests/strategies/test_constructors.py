"""Constructors of the strategies without servers: devices, wishes, one strategy a process, what a launcher says."""

import os
import sys

import numpy as np
import pytest

import dtrain as dt
from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import resolve
from dtrain.errors import SpecError
from dtrain.process.assignment import TaskAssignment
from dtrain.process.tensorflow import write_tf_config
from dtrain.strategies import interface as process

CENTRAL = dt.distribute.experimental.CentralStorageStrategy
ALONE = ClusterSpec.from_lists(chief=["127.0.0.1:1"])
SERVED = ClusterSpec.from_lists(chief=["127.0.0.1:1"], worker=["127.0.0.1:2"], ps=["127.0.0.1:3"])


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """This process has no strategy yet, and no cluster."""
    monkeypatch.setattr(process, "_process", process._Process())
    monkeypatch.setattr(sys, "argv", ["p.py"])
    yield
    process.close_default()


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """Be the chief of a launch whose user said some keys of `training`."""

    def be(cluster=ALONE, **training):
        counts = {role.value: len(addresses) for role, addresses in cluster.jobs.items()}
        spec, problems = resolve({"cluster": counts, "training": training}, trains=True)
        assert problems == []
        task = TaskId.parse("chief:0")
        assignment = TaskAssignment(task, cluster, spec, "run", run_dir=tmp_path, secret="x", launched=True)
        for name, value in assignment.to_environment(write_tf_config(cluster, task)).items():
            monkeypatch.setenv(name, value)

    return be


def refused(make, *args, **wishes) -> str:
    with pytest.raises(SpecError) as caught:
        make(*args, **wishes)
    return str(caught.value)


@pytest.mark.parametrize("make", [dt.MirroredStrategy, CENTRAL])
def test_there_are_as_many_replicas_as_devices_and_else_as_cores(make):
    assert make(["CPU:0", "CPU:1", "/cpu:2"]).num_replicas_in_sync == 3
    process.close_default()
    strategy = make()
    assert strategy.num_replicas_in_sync == len(os.sched_getaffinity(0))
    assert isinstance(strategy, make)
    assert isinstance(strategy, dt.Strategy)
    assert make() is strategy is dt.get_strategy()


def test_the_two_are_different_strategies():
    mirrored = dt.MirroredStrategy(["CPU:0"])
    assert not isinstance(mirrored, CENTRAL)
    assert not isinstance(mirrored, dt.ParameterServerStrategy)


def test_strategies_of_a_process_alone_follow_one_another_and_models_stay_with_theirs():
    """A program of the book's chapter trains with one, then with the other, and compares the times."""
    x, y = np.arange(48, dtype=np.float32).reshape(12, 4) / 48, np.ones((12, 1), np.float32)
    weights, models = [], []
    for make in (
        lambda: dt.MirroredStrategy(["CPU:0", "CPU:1"]),
        lambda: CENTRAL(["CPU:0", "CPU:1"]),
        lambda: dt.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]),
        dt.MultiWorkerMirroredStrategy,
    ):
        strategy = make()
        assert dt.get_strategy() is strategy
        with strategy.scope():
            models.append(dt.Sequential([dt.layers.Dense(1, "linear", input_shape=(4,), name="same")]))
            models[-1].compile("adam", "mse")
        models[-1].fit(x, y, batch_size=6, epochs=2, shuffle=False, verbose=0)
        weights.append(np.concatenate([np.ravel(each) for each in models[-1].get_weights()]))
    np.testing.assert_allclose(weights, [weights[0]] * 4, rtol=1e-5)
    first = models[0]
    assert isinstance(first.strategy, dt.MirroredStrategy)
    first.fit(x, y, batch_size=6, shuffle=False, verbose=0)
    assert first.optimizer.iterations == 6
    with pytest.raises(SpecError, match="seed=3, but this process has a strategy already"):
        dt.MultiWorkerMirroredStrategy(seed=3)


def test_wishes_of_the_training_section_go_beside_the_devices():
    strategy = dt.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], backup_workers=1, weighting="examples")
    assert (strategy.num_replicas_in_sync, strategy.training.weighting) == (2, "examples")
    assert "backup_workers=0, but this process has a strategy already" in refused(
        dt.MirroredStrategy, backup_workers=0
    )


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"devices": ["CPU:0", "CPU:0"]}, "devices: expected different ones, found ['CPU:0', 'CPU:0']"),
        ({"devices": "CPU:0"}, "devices: expected a list of names such as ['CPU:0'], found 'CPU:0'"),
        ({"devices": 2}, "devices: expected a list of names such as ['CPU:0'], found 2"),
        ({"devices": ["GPU:0"]}, "devices: expected names of CPUs such as 'CPU:0', found 'GPU:0'"),
        ({"devices": ["CPU:0"], "replicas": 1}, "give either devices or replicas"),
        ({"updates": "async"}, "updates: mirrored makes every step with all replicas"),
        ({"replicas": 2, "backup_workers": 2}, "backup_workers: of 2 replicas at most 1 can be backups"),
        ({"placement": "greedy"}, "placement: has no meaning with `strategy: mirrored`"),
        ({"nonsense": 1}, "there is no argument 'nonsense'"),
    ],
)
def test_what_makes_no_sense_is_refused(wishes, message):
    found = refused(dt.MirroredStrategy, **wishes)
    assert found.startswith("MirroredStrategy: ")
    assert message in found


def test_a_launcher_s_words_win_and_its_default_yields(launched):
    launched(strategy="mirrored")
    assert dt.get_strategy().num_replicas_in_sync == 2
    assert isinstance(dt.get_strategy(), dt.MirroredStrategy)
    process.close_default()
    assert dt.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]).num_replicas_in_sync == 3
    process.close_default()
    launched(strategy="mirrored", replicas=4)
    assert dt.MirroredStrategy(["CPU:0"]).num_replicas_in_sync == 4


def test_a_program_of_another_strategy_runs_under_the_chosen_one(launched):
    launched(strategy="central_storage", replicas=3)
    strategy = dt.ParameterServerStrategy(staleness_bound=3, partitioner={"fixed_shards": 2}, seed=4)
    assert isinstance(strategy, CENTRAL)
    assert (strategy.num_replicas_in_sync, strategy.context.seed) == (3, 4)


def test_a_strategy_that_comes_too_late_is_answered_with_the_option(launched):
    launched(SERVED)
    assert "run: dtrain launch --strategy mirrored p.py" in refused(dt.MirroredStrategy)


def test_several_tasks_are_no_place_for_threads_of_one(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", write_tf_config(SERVED, TaskId.parse("chief:0")))
    assert "cluster.ps: mirrored trains without parameter servers" in refused(dt.MirroredStrategy)


def test_nccl_is_a_name_alone_in_both_strategies():
    """Sums are taken on processors in any case; a program that names NCCL trains, here as there."""
    nccl = dt.distribute.CommunicationImplementation.NCCL
    options = dt.distribute.experimental.CommunicationOptions(implementation=nccl)
    mirrored = dt.MirroredStrategy(["CPU:0", "CPU:1"], dt.distribute.NcclAllReduce(num_packs=1))
    assert mirrored.num_replicas_in_sync == 2
    assert dt.MultiWorkerMirroredStrategy(communication_options=options).num_replicas_in_sync == 1


def test_what_a_notebook_and_a_program_of_transform_are_told():
    for name, words in (("launch", "dtrain launch program.py"), ("transform", "layer.adapt")):
        with pytest.raises(AttributeError, match=words):
            getattr(dt, name)
