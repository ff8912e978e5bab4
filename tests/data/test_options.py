"""Options of datasets, and pipelines rebuilt on other inputs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain import data
from dtrain.data import Dataset, Options, TensorSpec
from dtrain.data.experimental import AutoShardPolicy
from dtrain.data.sharding import WorkerShare
from dtrain.errors import InputError


def policy(name):
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy[name]
    return options


def policy_of(dataset):
    return dataset.options().experimental_distribute.auto_shard_policy


def test_numbers_of_policies_are_tensorflows():
    assert {each.name: int(each) for each in AutoShardPolicy} == {
        "OFF": -1,
        "AUTO": 0,
        "FILE": 1,
        "DATA": 2,
        "HINT": 3,
    }


def test_options_are_kept_by_later_steps_and_the_last_word_wins():
    plain = Dataset.range(4)
    off = plain.with_options(policy("OFF"))
    assert policy_of(plain) is AutoShardPolicy.AUTO
    assert policy_of(off.map(lambda x: x).batch(2).repeat()) is AutoShardPolicy.OFF
    assert policy_of(off.with_options(policy("DATA"))) is AutoShardPolicy.DATA
    ordered = Options()
    ordered.deterministic = True
    ordered.autotune.ram_budget = 1 << 20
    both = off.with_options(ordered).options()
    assert (both.experimental_distribute.auto_shard_policy, both.deterministic) == (AutoShardPolicy.OFF, True)
    assert both.autotune.ram_budget == 1 << 20
    assert policy_of(Dataset.zip((plain, off))) is AutoShardPolicy.OFF
    assert [int(x) for x in off] == [0, 1, 2, 3]


def test_options_that_do_not_exist_are_refused():
    options = Options()
    with pytest.raises(AttributeError, match="no option 'determinstic'"):
        options.determinstic = True
    with pytest.raises(InputError, match=r"auto_shard_policy: expected AutoShardPolicy.OFF, .* found 7"):
        options.experimental_distribute.auto_shard_policy = 7
    with pytest.raises(InputError, match="with_options"):
        Dataset.range(2).with_options({"deterministic": True})
    assert options == Options()
    assert options != policy("OFF")


STEPS = [
    lambda ds: ds.map(lambda x: x * 10),
    lambda ds: ds.filter(lambda x: x % 3 != 0),
    lambda ds: ds.take(5),
    lambda ds: ds.shard(2, 1),
    lambda ds: ds.repeat(2),
    lambda ds: ds.shuffle(4, seed=3),
    lambda ds: ds.concatenate(Dataset.range(100, 103)),
    lambda ds: Dataset.zip((ds, {"a": Dataset.range(50, 60)})),
    lambda ds: ds.flat_map(lambda x: Dataset.range(int(x))),
    lambda ds: ds.cache(),
    lambda ds: ds.with_options(policy("OFF")),
    lambda ds: ds.batch(3, drop_remainder=True),
    lambda ds: ds.batch(3).unbatch(),
    lambda ds: ds.batch(3).rebatch([1, 2]),
    lambda ds: Dataset(WorkerShare(ds.node, 2, 1)),
    lambda ds: ds.shard(data.experimental.SHARD_HINT, data.experimental.SHARD_HINT),
]


def on(node, first):
    """The pipeline `node` with another source in the first one's place, through all its steps."""
    if not node.inputs:
        return first
    return node.with_inputs([on(node.inputs[0], first), *node.inputs[1:]])


def flat(dataset):
    return [np.asarray(part).tolist() for element in dataset for part in data.structure.arrays_of(element)]


@every_row("step", STEPS, ids=range(len(STEPS)))
def test_a_step_on_other_inputs_is_the_same_step(step):
    made = step(Dataset.range(9))
    other = Dataset(on(made.node, Dataset.range(20, 33).node))
    assert flat(other) == flat(step(Dataset.range(20, 33)))
    assert other.element_spec == made.element_spec
    assert Dataset(on(made.node, Dataset.range(0).node)).element_spec == made.element_spec
    assert flat(made) == flat(step(Dataset.range(9)))


def test_the_length_of_a_last_batch_is_left_open_by_a_map_over_batches():
    batches = Dataset.range(7).batch(4)
    assert batches.map(lambda x: x * 10).element_spec == TensorSpec((None,), "int64")
    even = Dataset.range(7).batch(4, drop_remainder=True)
    assert even.map(lambda x: x * 10).element_spec == TensorSpec((4,), "int64")
    assert batches.map(lambda x: x.sum()).element_spec == TensorSpec((), "int64")


@pytest.mark.parametrize(
    ("drop", "sizes", "length"),
    [(True, [2], 2), (True, [2, 2], 2), (True, [2, 1], None), (False, [3], None)],
)
def test_the_length_of_rebatched_batches_is_known_where_all_are_full(drop, sizes, length):
    batches = Dataset.range(8).batch(4, drop_remainder=drop)
    assert batches.rebatch(sizes).element_spec == TensorSpec((length,), "int64")
    full = batches.rebatch(sizes, drop_remainder=True).element_spec
    assert full == TensorSpec((sizes[0] if len(set(sizes)) == 1 else None,), "int64")


def test_a_rebatched_batch_of_size_0_needs_no_data():
    assert [x.tolist() for x in Dataset.range(0).batch(4).rebatch([0, 2])] == [[]]
    assert [x.tolist() for x in Dataset.range(3).batch(4).rebatch([2, 0])] == [[0, 1], [], [2]]


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 20),
    st.integers(1, 5),
    st.booleans(),
    st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any),
    st.booleans(),
    st.integers(1, 3),
)
def test_the_length_of_rebatched_batches_is_what_reading_finds(count, size, drop, sizes, drop_last, times):
    batches = Dataset.range(count).batch(size, drop).repeat(times).cache()
    rebatched = batches.rebatch(sizes, drop_last)
    assert rebatched.cardinality() in (sum(1 for _ in rebatched), data.UNKNOWN)
    assert (rebatched.cardinality() == data.UNKNOWN) == (batches.cardinality() == 0)
    assert Dataset.range(9).batch(2).take(3).rebatch(sizes).cardinality() == data.UNKNOWN
    assert batches.repeat().rebatch(sizes).cardinality() in (data.INFINITE, data.UNKNOWN)


def test_the_size_of_rebatched_batches_is_known_where_it_is_one():
    batches = Dataset.range(8).batch(4)
    assert [batches.rebatch(sizes).node.batch_size for sizes in (3, [2, 2], [2, 1])] == [3, 2, 0]


def test_the_form_of_what_a_function_returns_is_computed_once():
    calls = []
    mapped = Dataset.range(8).map(lambda x: calls.append(int(x)) or x)
    batches = mapped.batch(4)
    assert batches.element_spec == batches.repeat().element_spec == TensorSpec((None,), "int64")
    assert calls == [0]
