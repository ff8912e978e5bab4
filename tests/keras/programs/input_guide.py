"""The guide to distributed input, cell by cell; only the import is another's."""

import os
import tempfile

import numpy as np

import dtrain as tf


def numbers(value):
    return np.asarray(value).tolist()


def mirrored(replicas):
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])


def parts(strategy, value):
    return [numbers(each) for each in strategy.experimental_local_results(value)]


# Distributed datasets: of global batches
strategy = mirrored(4)
dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(100).batch(16)
dist_dataset = strategy.experimental_distribute_dataset(dataset)
print(parts(strategy, next(iter(dist_dataset))[0]))


def train_step(inputs):
    features, labels = inputs
    return labels - 0.3 * features


for x in dist_dataset:
    loss = strategy.run(train_step, args=(x,))
print("Loss is", [np.round(each, 6).tolist() for each in parts(strategy, loss)])

# Rebatching: how batches of 4 are cut for 2, 5 and 3 replicas
for replicas, elements in ((2, 6), (5, 4), (3, 8)):
    strategy = mirrored(replicas)
    cut = strategy.experimental_distribute_dataset(tf.data.Dataset.range(elements).batch(4))
    print(replicas, [parts(strategy, batch) for batch in cut])

# Datasets of a function of an input context
strategy = mirrored(4)


def dataset_fn(input_context):
    batch_size = input_context.get_per_replica_batch_size(16)
    dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(64)
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.batch(batch_size).prefetch(2)


dist_dataset = strategy.distribute_datasets_from_function(dataset_fn)
print([list(np.shape(each)) for each in strategy.experimental_local_results(next(iter(dist_dataset))[0])])
print(len(list(dist_dataset)))

# Options
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
for policy in ("OFF", "AUTO", "FILE", "DATA"):
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    with_options = tf.data.Dataset.range(8).batch(4).with_options(options)
    print(policy, [parts(strategy, b) for b in strategy.experimental_distribute_dataset(with_options)])

# Iterators, and partial batches
distributed_iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(9).batch(4)))
for _ in range(5):
    optional_data = distributed_iterator.get_next_as_optional()
    if not optional_data.has_value():
        break
    values = strategy.run(lambda x: x, args=(optional_data.get_value(),))
    print([numbers(each) for each in strategy.experimental_local_results(values)])
iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4)))
print(parts(strategy, iterator.get_next()))

# The element's specification
spec = strategy.experimental_distribute_dataset(tf.data.Dataset.range(9).batch(4)).element_spec
print(type(spec).__name__)

# Preprocessing layers with state in the pipeline
with strategy.scope():
    layer = tf.keras.layers.StringLookup(vocabulary=["a", "b", "c", "d", "f"])


def lookup_fn(input_context):
    dataset = tf.data.Dataset.from_tensor_slices(["a", "c", "e"]).repeat()
    dataset = dataset.batch(input_context.get_per_replica_batch_size(4))
    return dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id).map(layer)


dist_iterator = iter(strategy.distribute_datasets_from_function(lookup_fn))
for _ in range(3):
    print(parts(strategy, next(dist_iterator)))
folder = tempfile.mkdtemp()
with open(os.path.join(folder, "vocabulary.txt"), "w") as file:
    file.write("a\nb\nc\n")
from_file = tf.keras.layers.StringLookup(vocabulary=os.path.join(folder, "vocabulary.txt"))
print(from_file.get_vocabulary(), numbers(from_file(np.array(["a", "z", "c"]))))
normalization = tf.keras.layers.Normalization(axis=-1)
normalization.adapt(np.float32([[1, 2], [3, 4]]))
print(numbers(normalization(np.float32([[1, 2]]))))

# Values of a function, reduced and gathered
by_function = strategy.experimental_distribute_values_from_function(
    lambda context: np.float32(context.replica_id_in_sync_group)
)
print([float(each) for each in strategy.experimental_local_results(by_function)])
batch = next(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(1, 9).batch(8))))
doubled = strategy.run(lambda x: 2 * x, args=(batch,))
print(numbers(strategy.reduce(tf.distribute.ReduceOp.SUM, doubled, axis=None)))
print(numbers(strategy.reduce("MEAN", doubled, axis=0)), numbers(strategy.gather(doubled, axis=0)))

# Ordered predictions of unordered replicas
dataset = tf.data.Dataset.range(24).enumerate().batch(6)
result = {}
for index, inputs in strategy.experimental_distribute_dataset(dataset):
    output_index, outputs = strategy.run(lambda index, inputs: (index, 2 * inputs), args=(index, inputs))
    for keys, found in zip(parts(strategy, output_index), parts(strategy, outputs)):
        result |= dict(zip(keys, found))
print(result)


# Generators, and files that are listed
def input_gen():
    while True:
        yield np.arange(4)


dataset = tf.data.Dataset.from_generator(input_gen, output_types=(np.float32), output_shapes=(4,))
dist_dataset = strategy.experimental_distribute_dataset(dataset.batch(4).take(1))
print([parts(strategy, batch) for batch in dist_dataset])
for name in ("1.txt", "2.txt", "3.txt"):
    with open(os.path.join(folder, name), "w") as file:
        file.write(f"{name}-a\n{name}-b\n")
dataset = tf.data.Dataset.list_files(os.path.join(folder, "?.txt"), shuffle=False)
dataset = dataset.shard(2, 0).repeat(2).interleave(tf.data.TextLineDataset, cycle_length=2, block_length=1)
print([bytes(line).decode() for line in dataset.as_numpy_iterator()])
