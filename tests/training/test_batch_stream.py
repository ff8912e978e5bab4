"""Parts of batches by number, in whatever order a session deals them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.data import Dataset
from dtrain.data.input_context import InputContext
from dtrain.state.batch_cut import BatchCut
from dtrain.training.batches import Batches, BatchesOfReplicas
from dtrain.training.fits.leading import Epochs


def batches_of(addressable, n=7):
    source = Dataset.range(n) if addressable else Dataset.from_generator(lambda: range(n))
    return Batches(source.shuffle(4, seed=3).batch(2))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 60), max_size=12), st.booleans(), st.integers(1, 4), st.booleans())
def test_every_number_is_the_same_part_in_any_order(numbers, addressable, parts, even):
    cut = BatchCut(parts, even)
    in_order = batches_of(addressable).stream(BatchCut())
    batches = [in_order.at(number).batch.x.tolist() for number in range(21)]
    stream = batches_of(addressable).stream(cut)
    for number in numbers:
        batch, part = divmod(number, parts)
        if batch < len(batches):
            expected = [batches[batch][row] for row in cut.rows(part, len(batches[batch]))]
            found = stream.at(number)
            assert (found.batch.x.tolist() if found.batch else []) == expected
            assert found.empty == parts - cut.filled(len(batches[batch]))
            assert found.batch_size == len(batches[batch])


def test_where_a_part_is_a_batch_every_number_is_a_batch_with_examples():
    dealt = BatchesOfReplicas(Dataset.range(6).batch(2))
    stream = Batches.of(dealt, batch_size=None, shuffle=False, seed=0).stream(BatchCut(3))
    parts = [stream.at(number) for number in range(4)]
    assert [part.batch.x.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert {(part.parts, part.empty, part.batch_size) for part in parts} == {(3, 0, 6)}


def test_two_walks_through_a_pipeline_that_must_be_read_from_the_start_read_it_twice():
    read = []
    dataset = Dataset.from_generator(lambda: iter(range(40))).map(lambda x: read.append(int(x)) or x).batch(1)
    stream = Batches(dataset).stream(BatchCut())
    read.clear()
    for number in range(20):
        stream.at(20 + number)
        stream.at(number)
        stream.at(number)
    assert len(read) <= 40 + 20 + 2


def test_other_replicas_batches_are_not_computed():
    computed = []
    dataset = Dataset.range(12).batch(2).map(lambda x: computed.append(int(x[0])) or x)
    stream = Batches(dataset).stream(BatchCut())
    computed.clear()
    assert [stream.at(number).batch.x.tolist() for number in (1, 4)] == [[2, 3], [8, 9]]
    assert computed == [2, 8]


def test_of_what_is_addressable_below_batch_only_the_rows_of_the_part_are_computed():
    computed = []
    dataset = Dataset.range(12).map(lambda x: computed.append(int(x)) or x).shuffle(12, seed=1).batch(6)
    stream = Batches(dataset).stream(BatchCut(3))
    computed.clear()
    found = stream.at(3 + 1).batch.x.tolist()
    assert computed == found
    assert len(found) == 2


def test_of_other_pipelines_the_batch_is_computed_once_for_all_its_parts():
    computed = []
    dataset = Dataset.range(12).batch(6).map(lambda x: computed.append(x.tolist()) or x)
    stream = Batches(Dataset.from_generator(lambda: dataset)).stream(BatchCut(3))
    computed.clear()
    assert [stream.at(number).batch.x.tolist() for number in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert len(computed) == 1


def test_a_batch_of_pipelines_is_named_by_its_number_whoever_reads_it():
    context = InputContext(3, 1, 2)
    batches = Batches.of(
        lambda context: Dataset.range(context.input_pipeline_id * 100, 400).batch(1),
        batch_size=None,
        shuffle=False,
        seed=0,
        context=context,
    )
    [stream] = batches.streams([1], BatchCut(2))
    assert [int(stream.at(number).batch.x[0]) for number in (1, 4, 7, 6, 1)] == [100, 101, 102, 2, 100]


def test_an_epoch_of_pipelines_of_each_replica_s_own_counts_them_all():
    context = InputContext(3, 1, 2)
    batches = Batches.of(
        lambda context: Dataset.range(1 + 2 * context.input_pipeline_id).batch(1),
        batch_size=None,
        shuffle=False,
        seed=0,
        context=context,
    )
    assert batches.count == 1 + 3 + 5
    assert Epochs.of(batches, None, 1, 0, 2).steps_per_epoch == 5
