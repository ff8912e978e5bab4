"""What travels in place of a push and of values: from a replica's memory to a server's blocks, for any
placement.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.errors import InputError
from dtrain.parameters import placement
from dtrain.parameters.compression import CompressedPacking, Compression
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.variables import VariableSpec

VARIABLES = (
    VariableSpec("kernel", (6, 3)),
    VariableSpec("bias", (3,)),
    VariableSpec("mean", (4,), trainable=False),
    VariableSpec("count", (2,), "int64", trainable=False),
    VariableSpec("fine", (3,), "float64"),
    VariableSpec("table", (8, 2), sparse=True),
)
CONFIGS = ("bf16", "fp16")
PLACEMENTS = [(1, None), (2, None), (3, {"fixed_shards": 3}), (2, {"fixed_shards": 2})]


def arrays(kinds):
    return [np.zeros(size, dtype) for dtype, size in kinds]


class Replica:
    """The memory of a replica whose gradients are drawn, and what it packs."""

    def __init__(self, config, servers=2, partitioner=None):
        self.plan = placement.plan(VARIABLES, servers, partitioner=partitioner)
        self.compression = Compression.of(config)
        self.weights, self.gradients = ReplicaMemory(self.plan), ReplicaMemory(self.plan)
        self.packing = CompressedPacking(self.compression, self.weights, self.gradients, arrays)

    def draw(self, seed):
        rng = np.random.default_rng(seed)
        for spec in VARIABLES[:-1]:
            self.gradients.variables[spec.name][...] = (100 * rng.standard_normal(spec.shape)).astype(
                spec.dtype
            )
        self.gradients.split()

    def packed(self):
        rows = [
            [each for _ in layout.tables for each in (np.arange(2), np.ones(4, np.float32))]
            for layout in self.plan.layouts
        ]
        return self.packing.pack(rows)

    def restored(self, packed):
        """Whole gradients by name, as servers restore them."""
        blocks = [
            self.compression.restore_push(layout, each)
            for layout, each in zip(self.plan.layouts, packed, strict=True)
        ]
        dense = [each[: len(layout.groups)] for layout, each in zip(self.plan.layouts, blocks, strict=True)]
        memory = ReplicaMemory(self.plan)
        for place, block in zip(memory.blocks, dense, strict=True):
            for target, source in zip(place, block, strict=True):
                assert (target.dtype, target.size) == (source.dtype, source.size)
                target[...] = source
        for server in range(self.plan.servers):
            memory.read_at(server, memory.blocks[server])
        memory.join()
        return {name: np.array(value) for name, value in memory.variables.items()}


@pytest.mark.parametrize("config", CONFIGS)
@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_gradient_arrives_as_the_same_on_any_servers(config, seed):
    found = []
    for servers, partitioner in PLACEMENTS:
        replica = Replica(config, servers, partitioner)
        replica.draw(seed)
        found.append(replica.restored(replica.packed()))
        for name in ("mean", "count", "fine"):
            assert np.array_equal(found[-1][name], replica.gradients.variables[name]), "left alone"
    first, *others = found
    for other in others:
        assert all(np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("config", ["bf16", "fp16"])
def test_sixteen_bits_are_half_the_bytes(config):
    replica = Replica(config, 1)
    [blocks] = replica.packed()
    dense, rows = replica.gradients.blocks[0], 4 * 4
    floats = dense[0].nbytes + rows
    assert sum(block.nbytes for block in blocks) == sum(
        b.nbytes for b in dense
    ) + rows + 16 - floats // 2 + 4 * (config == "fp16")


@pytest.mark.parametrize("config", CONFIGS)
def test_values_come_in_sixteen_bits_or_whole(config):
    replica = Replica(config, 1)
    [layout] = replica.plan.layouts
    kinds = replica.compression.value_kinds(layout)
    assert [dtype for dtype, _ in kinds].count(replica.compression.half.dtype) == 1
    values = [(np.arange(group.size) + 1 / 3).astype(group.dtype) for group in layout.groups]
    narrow = arrays(kinds)
    replica.compression.compress_values(layout, values, narrow)
    found = replica.packing.unpack(0, narrow)
    for group, whole, block in zip(layout.groups, values, found, strict=True):
        assert block.dtype == whole.dtype
        assert np.array_equal(block, whole) != replica.compression.applies_to(group)
        np.testing.assert_allclose(block, whole, rtol=2**-8)
    assert replica.packing.unpack(0, values) is values
    other_model = [np.zeros(3, np.float32)]
    assert replica.packing.unpack(0, other_model) is other_model


def bad(replica, index, block):
    blocks = replica.packed()[0]
    blocks[index] = block
    return blocks


def test_blocks_of_another_form_are_refused():
    half, scaled = (Replica(config, 1) for config in CONFIGS)
    for each in (half, scaled):
        each.draw(0)
    wrong = [
        (half, [], "too few"),
        (half, half.gradients.blocks[0], "expected numbers of 16 bits"),
        (scaled, bad(scaled, 0, np.zeros(1, np.float32)), "scale"),
        (scaled, bad(scaled, 0, np.array([math.nan], np.float32)), "scale"),
        (scaled, bad(scaled, 0, np.ones(2, np.float32)), "scale"),
    ]
    for replica, blocks, reason in wrong:
        with pytest.raises(InputError, match=reason):
            replica.compression.restore_push(replica.plan.layout(0), blocks)


def test_no_compression_is_none():
    assert Compression.of("none") is None
