"""Servers whose replicas compress: they hold float32, and send 16 bits to replicas that go on computing."""

import numpy as np
import pytest
from roles.by_hand import VARIABLES, Hand, only
from roles.test_tables_on_servers import loaded, look_up
from roles.test_worker_driver import Line, Silent, reply, values

from dtrain.errors import PeerLostError
from dtrain.learning import optimizers
from dtrain.messages import LookupRows, Refusal, Snapshot, SnapshotRows, Verdict
from dtrain.parameters import placement
from dtrain.parameters.compression import CompressedPacking, Compression
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.roles.worker.machine import ReplicaMachine

CONFIGS = ("bf16", "fp16")
THIRD = np.float32(1 / 3)


def hand(compression, **training):
    made = Hand(compression=compression, optimizer=optimizers.SGD(1.0), **training)
    made.initialise()
    return made


def arrays(kinds):
    return [np.zeros(size, dtype) for dtype, size in kinds]


def memories(plan, config):
    """A replica's weights and gradients, and their packing."""
    weights, gradients = ReplicaMemory(plan), ReplicaMemory(plan)
    return weights, gradients, CompressedPacking(Compression.of(config), weights, gradients, arrays)


def equal(made, value):
    """The blocks of a gradient of equal numbers for the one server."""
    _, gradients, packing = memories(made.plan, made.training.compression)
    for buffer in gradients.buffers.values():
        buffer.fill(value)
    return packing.pack([[]])[0]


@pytest.mark.parametrize("compression", CONFIGS)
def test_a_synchronous_mean_is_of_float32_and_its_values_travel_in_half_the_bytes(compression):
    made = hand(compression, updates="sync", chief_trains=False, max_steps=2)
    blocks = equal(made, THIRD)
    made.push("worker:0", blocks=blocks)
    answers = made.push("worker:1", blocks=blocks)
    held = made.servers[0].held.store.values[0]
    assert held.dtype == np.float32
    assert held.tolist() == pytest.approx([-THIRD] * 7, rel={"bf16": 2**-9, "fp16": 2**-11}[compression])
    for answer in answers:
        assert answer.message.verdict is Verdict.ACCEPTED
        assert [block.itemsize for block in answer.blocks] == [2, 8]
    made.say("chief:0", Snapshot(at_least=1, wait_s=0.0))
    [rows] = made.say("chief:0", SnapshotRows(part=0, array="", start=0, stop=7))
    assert np.array_equal(rows.blocks[0], held), "a checkpoint is float32"
    for task in ("worker:0", "worker:1"):
        answers = made.push(task, sequence=2, base=1, blocks=blocks)
    assert np.array_equal(answers[0].blocks[0], made.servers[0].held.store.values[0]), (
        "so is the last version"
    )


def test_the_leader_pulls_float32_and_the_others_what_they_are_always_sent():
    made = hand("bf16", updates="async")
    made.push("worker:0", blocks=equal(made, THIRD))
    assert [only(made.pull(task)).version for task in ("chief:0", "worker:1")] == [1, 1]
    assert made.pull("chief:0")[0].blocks[0].dtype == np.float32
    assert made.pull("worker:1")[0].blocks[0].dtype == np.uint16


def test_in_sync_everybody_is_sent_float32_where_the_leader_looks_at_a_version():
    made = hand("bf16", updates="sync", chief_trains=False)
    made.servers[0].held.release(1)
    for task in ("worker:0", "worker:1"):
        answers = made.push(task, blocks=equal(made, THIRD))
    assert [answer.blocks[0].dtype for answer in answers] == [np.float32, np.float32]


def test_each_version_is_compressed_once_and_shown_as_it_is():
    made = hand("bf16", updates="async")
    store, blocks = made.servers[0].held.store, equal(made, 1)
    for version in (1, 2):
        made.push("worker:0", sequence=version, base=version - 1, blocks=blocks)
        shown = store.shown(version)
        assert store.shown(version) is shown
        assert Compression.of("bf16").half.widen(shown[0]).tolist() == [-version] * 7


@pytest.mark.parametrize("updates", ["sync", "async"])
def test_what_is_not_compressed_alike_is_refused_and_changes_nothing(updates):
    made = hand("bf16", updates=updates)
    before = made.image()
    assert "is compression the same for all tasks?" in only(made.push("worker:0")).reason
    assert isinstance(only(made.push("worker:0", blocks=[])), Refusal)
    assert (
        "do all tasks build the same model?"
        in only(made.push("worker:0", blocks=[], plan_hash="other")).reason
    )
    assert made.image() == before


@pytest.mark.parametrize("compression", ["bf16", "fp16"])
def test_rows_of_a_table_travel_in_sixteen_bits_but_to_the_leader(compression):
    made = loaded(compression=compression, updates="async")
    half = Compression.of(compression).half
    [short] = look_up(made, [1, 4])[0].blocks
    [whole] = made.say(
        "chief:0", LookupRows(generation=1, tables=(0,), wait_s=5.0, term=5), [np.array([1, 4])]
    )[0].blocks
    assert (short.dtype.name, whole.dtype.name) == (half.dtype, "float32")
    assert np.array_equal(short, half.narrow(whole))
    head = [np.ones(1, np.float32)] if compression == "fp16" else []
    ones = [half.narrow(np.ones(size, np.float32)) for size in (2, 4)]
    accepted = made.push("worker:0", blocks=[*head, ones[0], np.array([1, 4]), ones[1]], term=5)
    assert only(accepted).verdict is Verdict.ACCEPTED
    assert not np.array_equal(made.servers[0].held.store.table(0).values[[1, 4]].reshape(-1), whole)


# The replica's side


@pytest.mark.parametrize("config", CONFIGS)
def test_a_push_is_repeated_to_the_bit(config):
    old, new = Line(values(), PeerLostError("lost ps:0")), Line(reply(1, 3), reply(2, 4))
    lines, plan = iter([old, new]), placement.plan(VARIABLES, 1)
    weights, gradients, packing = memories(plan, config)
    ways = {"connect_s": 1.0, "patience_s": 5.0, "packing": packing}
    machine = ReplicaMachine(1, 1, 1, plan.hash, sync=True)
    replica = ReplicaDriver(
        machine, weights, gradients, lambda server, timeout_s: next(lines), Silent(), **ways
    )
    replica.start()
    gradients.variables["kernel"][...] = [[1, 2], [3, 0.5]]
    replica.push(1, 0, None)
    assert new.sent[0] == old.sent[-1]
