"""How a program's constructor meets the spec: what was said further left wins, whatever its value; a process
has one strategy.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
from net.spec_keys import IN_STRATEGIES

import dtrain as dt
from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import AsyncSection, OuterSection, RunSpec, SyncSection, TrainingSettings, resolve
from dtrain.config.plain_data import keys_of, members_of, words_of
from dtrain.config.resolution import LAID_OUT
from dtrain.config.training_section import DEFAULTS
from dtrain.distribute import partitioners
from dtrain.errors import ProgramError, SpecError
from dtrain.process.assignment import TaskAssignment
from dtrain.process.tensorflow import write_tf_config
from dtrain.runs.files import RunFiles, read_record, write_record
from dtrain.strategies import interface as process
from dtrain.strategies.choice import TrainingArguments
from dtrain.variables.partitioning import Partitioner

CLUSTER = ClusterSpec.from_lists(
    chief=["127.0.0.1:1"], worker=["127.0.0.1:2", "127.0.0.1:3"], ps=["127.0.0.1:4", "127.0.0.1:5"]
)
COUNTS = {"chief": 1, "worker": 2, "ps": 2}
OTHERS = {**IN_STRATEGIES, "updates": "sync"}
"""A value of every key of `training` that is not its default."""
BELONGS_TO_SYNC = set(SyncSection.__struct_fields__) - set(AsyncSection.__struct_fields__)
OF_SERVERS = BELONGS_TO_SYNC | set(AsyncSection.__struct_fields__)


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """This process has no strategy yet, and no cluster."""
    monkeypatch.setattr(process, "_process", process._Process())
    monkeypatch.setattr(sys, "argv", ["p.py"])
    yield
    process.close_default()


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """Be a task of a launch whose user said some keys of `training`."""

    def be(said=(), task="worker:0", **training):
        words = {**{key: DEFAULTS[key] for key in said}, **training}
        spec, problems = resolve({"cluster": COUNTS, "training": words})
        assert problems == []
        task = TaskId.parse(task)
        assignment = TaskAssignment(task, CLUSTER, spec, "run", run_dir=tmp_path, secret="x", launched=True)
        for name, value in assignment.to_environment(write_tf_config(CLUSTER, task)).items():
            monkeypatch.setenv(name, value)

    return be


def test_a_program_may_write_every_word_of_a_setting():
    def words(kind):
        return {word for member in members_of(kind) for word in words_of(member)}

    may = {name: words(kind) for name, kind in keys_of(TrainingSettings).items()}
    for section in (SyncSection, AsyncSection):
        chosen = {name: words(kind) for name, kind in get_type_hints(section).items() if words(kind)}
        del chosen["strategy"], chosen["updates"]
        assert chosen == {name: may[name] for name in chosen}
        assert len(chosen) > 5


def test_the_constructor_s_arguments_are_typed_as_the_section_is():
    hints = get_type_hints(TrainingArguments)
    section = get_type_hints(TrainingSettings)
    assert hints.keys() == section.keys()
    assert hints.pop("partitioner") == dict[str, int] | Partitioner | None
    assert {name: section[name] for name in hints} == hints


def refused(**wishes) -> str:
    with pytest.raises(SpecError) as caught:
        dt.ParameterServerStrategy(**wishes)
    return str(caught.value)


WRONG = [
    ({"backup": 1}, "there is no argument 'backup'; did you mean backup_workers?"),
    ({"nonsense": 1}, "there is no argument 'nonsense'"),
    ({"updates": "snyc"}, "updates: expected sync or async, found 'snyc'"),
    ({"backup_workers": "1"}, "backup_workers: expected a whole number, found '1'"),
    ({"seed": True}, "seed: expected a whole number, found True"),
    ({"deterministic": 1}, "deterministic: expected true or false, found 1"),
    ({"staleness_bound": 1.5}, "staleness_bound: expected a whole number, found 1.5"),
    ({"compression": "bf32"}, "compression: expected none, bf16 or fp16, found 'bf32'"),
    (
        {"partitioner": {"fixed_shards": "2"}},
        "partitioner.fixed_shards: expected a whole number, found '2'",
    ),
]


@pytest.mark.parametrize(("wishes", "message"), WRONG)
def test_a_wrong_wish_is_refused(wishes, message):
    assert message in refused(**wishes)


@pytest.mark.parametrize(("wishes", "message"), WRONG)
def test_a_wrong_wish_of_a_second_strategy_is_refused(wishes, message):
    dt.get_strategy()
    assert message in refused(**wishes)


def test_wishes_that_make_no_sense_together_are_refused():
    message = refused(updates="sync", staleness_bound=3)
    assert "staleness_bound: has no meaning with `updates: sync`" in message
    assert "it belongs to `updates: async`" in message


@pytest.mark.parametrize(
    ("wishes", "reason"),
    [
        ({}, "has no meaning with `updates: async`: each gradient is an update by itself, as it arrives"),
        ({"updates": "sync", "backup_workers": 1}, "which replicas are late is chance"),
        ({"updates": "sync", "replicas_to_aggregate": 2}, "which 2 of 3 replicas come first is chance"),
    ],
)
def test_a_wish_for_determinism_is_refused_where_chance_decides(launched, wishes, reason):
    launched()
    assert refused(deterministic=True, **wishes).startswith(
        f"ParameterServerStrategy: deterministic: {reason}"
    )


# Precedence


def test_there_is_a_value_for_every_key():
    assert set(OTHERS) == set(DEFAULTS) - {"strategy"}


@pytest.mark.parametrize("key", sorted(OF_SERVERS - {*LAID_OUT}))
def test_a_wish_wins_over_the_default_and_loses_against_what_was_said(launched, key):
    beside = {"updates": "sync"} if key in BELONGS_TO_SYNC else {}
    if key in ("outer", "merge"):
        beside = {"updates": "async" if key == "outer" else "sync", "local_steps": 2}
    default = DEFAULTS[key]

    def asked():
        found = getattr(dt.ParameterServerStrategy(**{key: OTHERS[key]}).training, key)
        return found if key != "outer" or found is None else {"momentum": found.momentum}

    launched(**beside)
    assert asked() == OTHERS[key]
    process.close_default()
    launched(said=[key], **beside)
    assert asked() == default


def test_an_outer_optimizer_is_an_sgd_of_numbers(launched):
    launched()
    sgd = dt.optimizers.SGD(0.5, momentum=0.8, nesterov=True)
    made = dt.ParameterServerStrategy(local_steps=20, outer_optimizer=sgd)
    assert made.training.updates == "sync"
    assert made.training.outer == OuterSection(learning_rate=0.5, momentum=0.8, nesterov=True)
    process.close_default()
    made = dt.ParameterServerStrategy(updates="async", local_steps=20, outer_optimizer=sgd)
    assert made.training.outer == OuterSection(learning_rate=0.5, momentum=0.8, delayed=True)
    process.close_default()
    schedule = dt.optimizers.schedules.CosineDecay(0.1, 10)
    for other in (dt.optimizers.Adam(), dt.optimizers.SGD(schedule), dt.optimizers.SGD(clipnorm=1.0)):
        assert "expected dt.optimizers.SGD with numbers" in refused(local_steps=20, outer_optimizer=other)
    assert "found outer as well" in refused(local_steps=20, outer={}, outer_optimizer=sgd)


def test_no_staleness_on_the_command_line_stays_synchronous_training(launched):
    launched(staleness_bound=0)
    assert dt.ParameterServerStrategy(updates="async").training.updates == "sync"


def test_a_contradiction_names_what_was_said_elsewhere(launched):
    launched(said=["updates"])
    message = refused(updates="sync", backup_workers=1)
    assert "backup_workers: has no meaning with `updates: async`" in message
    assert "it belongs to `updates: sync`" in message
    assert "(the spec or the command line says updates: async)" in message


def test_a_contradiction_names_what_was_said_of_another_key(launched):
    launched(staleness_bound=3)
    message = refused(updates="sync")
    assert "staleness_bound: has no meaning with `updates: sync`" in message
    assert "it belongs to `updates: async`" in message
    assert "(the spec or the command line says staleness_bound: 3)" in message


def test_none_and_null_are_the_same():
    training = dt.ParameterServerStrategy(
        staleness_bound="none", partitioner="none", max_staleness=None, compression=None
    ).training
    assert (training.staleness_bound, training.partitioner, training.max_staleness) == (None, None, None)
    assert training.compression == "none"


@pytest.mark.parametrize(
    ("partitioner", "meant"),
    [
        (partitioners.FixedShardsPartitioner(2), {"fixed_shards": 2}),
        (partitioners.MinSizePartitioner(1024, max_shards=3), {"min_size": 1024, "max_shards": 3}),
        (partitioners.MaxSizePartitioner(1024), {"max_size": 1024}),
        (partitioners.MaxSizePartitioner(1024, max_shards=3), {"max_size": 1024, "max_shards": 3}),
        (None, None),
    ],
)
@pytest.mark.parametrize("name", ["partitioner", "variable_partitioner"])
def test_partitioners_are_taken_under_tensorflows_name_too(name, partitioner, meant):
    assert dt.ParameterServerStrategy(**{name: partitioner}).training.partitioner == meant


def test_a_partitioner_is_given_once():
    message = refused(
        partitioner={"fixed_shards": 2}, variable_partitioner=partitioners.FixedShardsPartitioner(2)
    )
    assert "give either partitioner or variable_partitioner, not both" in message


def test_a_process_alone_trains_as_its_program_wishes():
    strategy = dt.ParameterServerStrategy(seed=3, nan_policy="fail", updates="sync", backup_workers=1)
    assert (strategy.context.seed, strategy.training.nan_policy) == (3, "fail")


# One strategy a process


def test_the_same_wishes_or_none_give_the_same_strategy():
    first = dt.ParameterServerStrategy(updates="sync", seed=3)
    assert dt.ParameterServerStrategy(updates="sync", seed=3) is first
    assert dt.ParameterServerStrategy(seed=3, backup_workers=0) is first
    assert dt.ParameterServerStrategy() is first
    assert dt.get_strategy() is first


def test_a_second_strategy_with_other_wishes_is_an_error():
    dt.ParameterServerStrategy(updates="sync")
    assert "updates='async', but this process has a strategy already, made with updates='sync'" in refused(
        updates="async"
    )
    assert "seed=3, but this process has a strategy already, made with seed left at its default" in refused(
        seed=3
    )


def test_wishes_after_a_model_was_made_are_an_error():
    dt.Sequential([dt.layers.Dense(1)])
    assert "updates='sync', but this process has a strategy already" in refused(updates="sync")


def test_wishes_that_the_spec_overrules_are_other_wishes_all_the_same(launched):
    launched(updates="sync")
    dt.ParameterServerStrategy(updates="sync")
    assert "updates='async'" in refused(updates="async")


def test_a_strategy_is_an_instance_of_what_made_it(launched):
    alone = dt.ParameterServerStrategy()
    assert isinstance(alone, dt.ParameterServerStrategy)
    assert isinstance(alone, dt.Strategy)
    process.close_default()
    launched()
    worker = dt.get_strategy()
    assert type(worker) is not type(alone)
    assert isinstance(worker, dt.ParameterServerStrategy)
    assert isinstance(worker, dt.Strategy)
    assert not isinstance(object(), dt.ParameterServerStrategy)
    assert not isinstance(object(), dt.Strategy)


def test_on_parameter_servers_functions_in_replicas_are_refused(launched):
    launched()
    worker = dt.get_strategy()
    with worker.scope():
        model = dt.Sequential([dt.Input((2,)), dt.layers.Dense(1)])
        variables = model.trainable_variables
    gradients = [np.zeros(variable.shape, np.float32) for variable in variables]
    for call in (
        lambda: worker.run(print),
        lambda: worker.reduce("SUM", 1.0, axis=None),
        lambda: worker.gather(np.ones(1), axis=0),
        lambda: model.value_and_gradients("mse", np.ones((1, 2)), np.ones((1, 1))),
        lambda: dt.optimizers.SGD().apply_gradients(zip(gradients, variables, strict=True)),
    ):
        with pytest.raises(ProgramError, match="on parameter servers"):
            call()


@pytest.mark.parametrize(
    ("settings", "in_sync"),
    [
        ({}, 1),
        ({"updates": "sync"}, 3),
        ({"updates": "sync", "backup_workers": 1}, 2),
        ({"updates": "sync", "replicas_to_aggregate": 6}, 6),
        ({"updates": "sync", "chief_trains": False}, 2),
        ({"staleness_bound": 2}, 1),
    ],
)
def test_replicas_are_in_sync_in_synchronous_training_and_one_is_in_async(launched, settings, in_sync):
    launched(**settings)
    assert dt.get_strategy().num_replicas_in_sync == in_sync


# What a launcher has laid out


@pytest.mark.parametrize(
    ("wish", "option"),
    [
        ({"strategy": "single"}, "--strategy single"),
        ({"chief_trains": False}, "--set training.chief_trains=false"),
        ({"transport": "grpc"}, "--set training.transport=grpc"),
    ],
)
def test_another_layout_is_answered_with_the_option(launched, wish, option):
    launched()
    assert f"run: dtrain launch {option} p.py" in refused(**wish)


def test_the_layout_that_is_there_may_be_wished(launched):
    launched(transport="grpc")
    assert (
        dt.ParameterServerStrategy(
            strategy="parameter_server", chief_trains=True, transport="grpc"
        ).context.num_replicas
        == 3
    )


def test_the_layout_that_was_said_wins(launched):
    launched(said=["chief_trains"])
    assert dt.ParameterServerStrategy(chief_trains=False).training.chief_trains


def test_a_strategy_that_does_not_exist_is_answered_with_those_that_do(launched):
    launched()
    assert "strategy: this version has parameter_server, single, mirrored, " in refused(strategy="magic")


def test_a_launcher_hands_over_which_keys_were_said(launched, tmp_path):
    launched(said=["updates"])
    assert TaskAssignment.from_environment(os.environ).spec.said == {"training": {"updates": "async"}}


def test_the_program_of_the_first_defect(tmp_path):
    """Arguments of a second strategy were dropped without a word."""
    program = Path(tmp_path, "p.py")
    program.write_text(
        'import dtrain as dt\na = dt.get_strategy()\nb = dt.ParameterServerStrategy(updates="snyc", '
        "nonsense=1)\nprint(a is b)\n"
    )
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "True" not in ended.stdout


def test_the_leader_of_a_launch_writes_down_what_its_program_wished(launched, tmp_path):
    launched()
    dt.ParameterServerStrategy(updates="sync")
    assert not RunFiles(tmp_path).spec.exists(), "only the leader speaks for all"
    process.close_default()
    launched(task="chief:0", said=["seed"])
    dt.ParameterServerStrategy(updates="sync", seed=5)
    written = read_record(RunFiles(tmp_path).spec, RunSpec)
    assert (written.training.updates, written.training.seed) == ("sync", 0)
    assert written.said == {"training": {"seed": 0}}


def test_a_joined_worker_knows_what_was_said(launched, tmp_path):
    """The run directory's spec, from which a worker joins, has the keys as well."""
    files = RunFiles(tmp_path)
    write_record(files.spec, RunSpec(said={"training": {"seed": 0}}))
    assert read_record(files.spec, RunSpec).said == {"training": {"seed": 0}}


def test_a_program_may_name_its_cluster_as_with_tensorflow(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    resolver = dt.distribute.cluster_resolver.TFConfigClusterResolver()
    partitioner = dt.distribute.partitioners.MinSizePartitioner(min_shard_bytes=256 << 10, max_shards=2)
    strategy = dt.distribute.experimental.ParameterServerStrategy(resolver, partitioner)
    assert strategy.training.partitioner == {"min_size": 256 << 10, "max_shards": 2}
    assert isinstance(strategy, dt.distribute.Strategy)
    assert strategy.cluster_resolver.task_type is None
    assert strategy.cluster_resolver.cluster_spec().as_dict() == {}
    assert dt.distribute.MirroredStrategy is dt.MirroredStrategy
    for make in (dt.distribute.ParameterServerStrategy, dt.distribute.MultiWorkerMirroredStrategy):
        with pytest.raises(SpecError, match=r"cluster_resolver: expected an object such as .* found int"):
            make(3)
