"""Plans of variables: every row once, where the rules say; and memory without gaps, views without copies."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.errors import InputError, SpecError
from dtrain.parameters.placement import Plan, plan
from dtrain.parameters.replica_memory import ReplicaMemory, gather
from dtrain.variables import VariableSpec

SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)
KINDS = st.tuples(SHAPES, st.sampled_from(["float32", "float64", "int64", "bool"]), st.booleans())
PARTITIONERS = (
    st.none()
    | st.builds(lambda n: {"fixed_shards": n}, st.integers(1, 12))
    | st.builds(lambda b, n: {"min_size": b, "max_shards": n}, st.integers(1, 100), st.integers(1, 8))
    | st.builds(lambda b: {"max_size": b}, st.integers(1, 100))
)


@st.composite
def plans(draw, **fixed):
    variables = [VariableSpec(f"v{i}", *kind) for i, kind in enumerate(draw(st.lists(KINDS, max_size=7)))]
    arguments = {
        "servers": draw(st.integers(1, 5)),
        "placement": draw(st.sampled_from(["round_robin", "greedy"])),
        "partitioner": draw(PARTITIONERS),
    }
    return plan(variables, **{**arguments, **fixed})


@settings(deadline=None, max_examples=100)
@given(plans())
def test_the_shards_of_a_variable_are_its_rows_once(made):
    for position, variable in enumerate(made.variables):
        shards = made.shards_of(position)
        rows = [shard.row_stop - shard.row_start for shard in shards]
        assert [shard.row_start for shard in shards] == [sum(rows[:i]) for i in range(len(rows))]
        assert sum(rows) == (variable.shape[0] if variable.shape else 1)
        assert max(rows) - min(rows) <= 1
        assert rows == sorted(rows, reverse=True)
        assert sum(shard.nbytes for shard in shards) == variable.nbytes
        names = (
            [f"{variable.name}/part_{i}" for i in range(len(shards))] if len(shards) > 1 else [variable.name]
        )
        assert [shard.name for shard in shards] == names


@settings(deadline=None, max_examples=100)
@given(plans())
def test_a_plan_travels_as_json(made):
    copy = Plan.from_dict(json.loads(json.dumps(made.to_dict())))
    assert copy == made
    assert copy.hash == made.hash


@settings(deadline=None, max_examples=50)
@given(plans(placement="round_robin"))
def test_round_robin_deals_shards_in_order_of_creation(made):
    assert [shard.server for shard in made.shards] == [
        turn % made.servers for turn in range(len(made.shards))
    ]


@settings(deadline=None, max_examples=50)
@given(plans(placement="greedy"))
def test_greedy_is_within_four_thirds_of_the_best(made):
    """LPT's bound, against the lower bounds of the best: the mean, and the largest shard."""
    loads = [
        sum(shard.nbytes for shard in made.shards if shard.server == server) for server in range(made.servers)
    ]
    sizes = sorted((shard.nbytes for shard in made.shards), reverse=True)
    pair = sum(sizes[made.servers - 1 : made.servers + 1]) if len(sizes) > made.servers else 0
    best = max(sum(sizes) / made.servers, sizes[0] if sizes else 0, pair)
    assert max(loads) <= max(best, 4 / 3 * best)


def test_greedy_breaks_ties_by_the_lowest_server():
    variables = [
        VariableSpec("a", (4,)),
        VariableSpec("b", (9,)),
        VariableSpec("c", (4,)),
        VariableSpec("d", (5,)),
    ]
    assert [shard.server for shard in plan(variables, 2, "greedy").shards] == [1, 0, 0, 1]


@settings(deadline=None, max_examples=100)
@given(plans())
def test_a_servers_memory_has_no_gaps(made):
    for server in range(made.servers):
        layout = made.layout(server)
        assert [group.trainable for group in layout.groups] == sorted(
            (group.trainable for group in layout.groups), reverse=True
        )
        assert len({(group.dtype, group.trainable) for group in layout.groups}) == len(layout.groups)
        flats = [np.zeros(group.size, group.dtype) for group in layout.groups]
        views = layout.views(flats)
        assert {name: view.shape for name, view in views.items()} == {
            s.name: s.shape for s in made.shards if s.server == server
        }
        for view in views.values():
            assert view.base is not None
            view[...] = 1
        assert all(flat.all() for flat in flats)
        for group in layout.groups:
            ends = [offset + shard.size for offset, shard in zip(group.offsets, group.shards, strict=True)]
            assert [*group.offsets, group.size] == [0, *ends]


@settings(deadline=None, max_examples=100)
@given(plans(), st.randoms(use_true_random=False))
def test_what_a_replica_splits_it_can_join(made, random):
    wrote, read = ReplicaMemory(made), ReplicaMemory(made)
    for array in wrote.variables.values():
        array[...] = np.array([random.randrange(2) for _ in range(array.size)]).reshape(array.shape)
    wrote.split()
    for theirs, ours in zip(wrote.blocks, read.blocks, strict=True):
        for block, target in zip(theirs, ours, strict=True):
            target[...] = block
    read.join()
    gathered = gather(made, read.blocks)
    for name, array in wrote.variables.items():
        np.testing.assert_array_equal(read.variables[name], array)
        np.testing.assert_array_equal(gathered[name], array)


@settings(deadline=None, max_examples=50)
@given(plans(partitioner=None))
def test_whole_variables_are_views_of_one_buffer(made):
    memory = ReplicaMemory(made)
    for variable in made.variables:
        array = memory.variables[variable.name]
        assert array.shape == variable.shape
        assert array.flags.c_contiguous
        assert array.size == 0 or np.shares_memory(array, memory.buffers[variable.dtype, variable.trainable])


def test_the_hash_tells_plans_apart():
    variables = [VariableSpec("a", (4, 2)), VariableSpec("b", (3,))]
    others = [
        plan(variables, 2),
        plan(variables, 3),
        plan(variables, 2, "round_robin", {"fixed_shards": 2}),
        plan(variables[::-1], 2),
        plan([VariableSpec("a", (8,)), variables[1]], 2),
        plan([VariableSpec("a", (4, 2), "float64"), variables[1]], 2),
        plan([VariableSpec("a", (4, 2), trainable=False), variables[1]], 2),
    ]
    assert len({made.hash for made in others}) == len(others)
    assert plan(variables, 2).hash == others[0].hash


@every_row(
    "arguments, message",
    [
        ({"servers": 0}, "at least one parameter server"),
        ({"placement": "random"}, "expected round_robin or greedy"),
        ({"partitioner": {"fixed_shard": 2}}, "expected a partitioner such as"),
        ({"partitioner": {"min_size": 2, "shards": 2}}, "expected a partitioner such as"),
        ({"partitioner": {"fixed_shards": 0}}, "expected 1 to 4 parts along axis 0"),
        ({"partitioner": {"max_size": 0}}, "max_shard_bytes must be at least 1"),
        ({"partitioner": lambda shape, dtype: [1, 2]}, "one along every other"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(SpecError, match=message):
        plan([VariableSpec("a", (4, 2))], **{"servers": 2, **arguments})


def test_names_are_unique_also_after_cutting():
    with pytest.raises(InputError, match="two variables are called a"):
        plan([VariableSpec("a", ()), VariableSpec("a", ())], 1)
    with pytest.raises(InputError, match="a/part_0"):
        plan([VariableSpec("a", (4,)), VariableSpec("a/part_0", ())], 1, "round_robin", {"fixed_shards": 2})


GOOD = plan([VariableSpec("a", (4, 2))], 2, "round_robin", {"fixed_shards": 2}).to_dict()


@every_row(
    "change",
    [
        {"servers": 1},
        {"servers": "2"},
        {"variables": None},
        {"variables": [{**GOOD["variables"][0], "shards": []}]},
        {"variables": [{**GOOD["variables"][0], "shards": [[3, 0], [2, 1]]}]},
        {"variables": [{**GOOD["variables"][0], "shards": [[5, 0], [-1, 1]]}]},
        {"variables": [{**GOOD["variables"][0], "shards": [[4, -1]]}]},
        {"variables": [{**GOOD["variables"][0], "dtype": "object"}]},
        {"variables": [{**GOOD["variables"][0], "shape": [-4, 2]}]},
        {"variables": [{"name": "a"}]},
    ],
)
def test_what_is_no_plan_is_refused(change):
    with pytest.raises(InputError):
        Plan.from_dict({**GOOD, **change})
