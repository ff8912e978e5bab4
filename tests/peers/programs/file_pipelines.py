"""Pipelines over files that tf.data and dtrain both read: `python file_pipelines.py FOLDER` prints, as JSON, the
elements that TensorFlow gives. The tests call `pipelines` with dtrain's modules in TensorFlow's place.
"""

import json
import sys
from pathlib import Path
from random import Random

CHANCE_PIPELINES = 60


def pipelines(tf, folder):
    """Datasets by name; `tf` has `data`, `io`, `length` and the dtypes float32, int64, string."""
    data, io = tf.data, tf.io
    records = sorted(map(str, folder.glob("*.tfrecord")))
    texts = sorted(map(str, folder.glob("*.txt")))
    tables = sorted(map(str, folder.glob("*.csv")))

    def of_records(name):
        return data.TFRecordDataset(name)

    def of_lines(name):
        return data.TextLineDataset(name)

    def parse(record):
        features = {
            "id": io.FixedLenFeature([], tf.int64),
            "values": io.FixedLenFeature([3], tf.float32),
            "name": io.FixedLenFeature([], tf.string, default_value=b"none"),
        }
        return io.parse_single_example(record, features)

    def parse_batch(batch):
        features = {"id": io.FixedLenFeature([], tf.int64), "values": io.FixedLenFeature([3], tf.float32)}
        return io.parse_example(batch, features)

    found = {
        "records": data.TFRecordDataset(records),
        "records, two files in turn": data.TFRecordDataset(records, num_parallel_reads=2),
        "records, gzip": data.TFRecordDataset([str(folder / "r.gz")], "GZIP"),
        "records, zlib": data.TFRecordDataset([str(folder / "r.zlib")], compression_type="ZLIB"),
        "records of names": data.TFRecordDataset(data.Dataset.from_tensor_slices(records)),
        "examples": data.TFRecordDataset(records).map(parse),
        "examples, batched": data.TFRecordDataset(records).map(parse).batch(4),
        "examples of batches": data.TFRecordDataset(records).batch(5).map(parse_batch),
        "lines": data.TextLineDataset(texts),
        "lines, three files in turn": data.TextLineDataset(texts, num_parallel_reads=3),
        "csv": data.experimental.CsvDataset(tables, [tf.int64, 7.5, ""], header=True),
        "csv, columns": data.experimental.CsvDataset(
            tables, [tf.int64, "none"], header=True, select_cols=[0, 2]
        ),
        "csv, missing": data.experimental.CsvDataset(
            tables, [tf.int64, 7.5, "?"], header=True, na_value="NA"
        ).batch(3),
        "csv by names": data.experimental.make_csv_dataset(
            tables, 4, label_name="b", num_epochs=1, shuffle=False
        ),
        "listed": data.Dataset.list_files(str(folder / "*.tfrecord"), shuffle=False),
        "listed and read": data.Dataset.list_files(str(folder / "*.txt"), shuffle=False).flat_map(of_lines),
        "listed twice": data.Dataset.list_files(
            [str(folder / "*.txt"), str(folder / "a*.txt")], shuffle=False
        ),
    }
    for cycle in (1, 2, 3, 9):
        for block in (1, 2, 5):
            names = data.Dataset.from_tensor_slices(texts)
            interleaved = names.interleave(of_lines, cycle_length=cycle, block_length=block)
            found[f"interleave {cycle} {block}"] = interleaved
            found[f"interleave {cycle} {block}, sharded"] = interleaved.shard(3, 1).batch(4)
    for shards in (2, 3):
        for index in range(shards):
            found[f"files {index} of {shards}"] = (
                data.Dataset.from_tensor_slices(records)
                .shard(shards, index)
                .repeat(2)
                .interleave(of_records, cycle_length=2, block_length=1)
                .batch(4, drop_remainder=bool(index))
            )
            found[f"rows {index} of {shards}"] = data.TextLineDataset(texts).shard(shards, index).repeat(3)
    for seed in range(CHANCE_PIPELINES):
        name, dataset = by_chance(tf, Random(seed), texts, of_lines)
        found[f"{seed}: {name}"] = dataset
    return found


def by_chance(tf, chance, texts, of_lines):
    """A pipeline of up to six steps, and its name."""
    names = tf.data.Dataset.from_tensor_slices(texts[: chance.randint(1, len(texts))])
    cycle, block = chance.randint(1, 4), chance.randint(1, 3)
    dataset = names.interleave(of_lines, cycle_length=cycle, block_length=block)
    said = [f"interleave({cycle}, {block})"]
    batched = 0
    for _ in range(chance.randint(1, 6)):
        n = chance.randint(1, 5)
        step = chance.choice(
            ["take", "skip", "shard", "repeat", "batch", "full", "filter", "concatenate", "unbatch"]
        )
        if step == "take":
            dataset = dataset.take(4 * n)
        elif step == "skip":
            dataset = dataset.skip(n)
        elif step == "shard":
            dataset = dataset.shard(n + 1, n - 1)
        elif step == "repeat":
            dataset = dataset.repeat(min(n, 3))
        elif step in ("batch", "full"):
            if batched:
                continue
            dataset = dataset.batch(n, drop_remainder=step == "full")
            batched = 1
        elif step == "filter":
            if batched:
                continue
            dataset = dataset.filter(lambda line, n=n: tf.length(line) != n)
        elif step == "concatenate":
            dataset = dataset.concatenate(dataset.take(n))
        elif step == "unbatch":
            if not batched:
                continue
            dataset = dataset.unbatch()
            batched = 0
        said.append(f"{step}({n})")
    return ".".join(said), dataset


def plain(element):
    """An element as JSON holds it: lists, numbers, and the dtype of each array."""
    if isinstance(element, dict):
        return {name: plain(part) for name, part in element.items()}
    if isinstance(element, tuple):
        return [plain(part) for part in element]
    if isinstance(element, bytes):
        return element.decode("latin-1")
    if isinstance(element, str):
        return element
    texts = element.dtype == object
    return ["string" if texts else str(element.dtype), list(element.shape), flat(element)]


def flat(array):
    """The values of an array."""
    values = array.reshape(-1).tolist()
    return [value.decode("latin-1") if isinstance(value, bytes) else value for value in values]


def main():
    """Print what TensorFlow reads."""
    import tensorflow

    class Names:
        data, io = tensorflow.data, tensorflow.io
        float32, int64, string = tensorflow.float32, tensorflow.int64, tensorflow.string
        length = staticmethod(tensorflow.strings.length)

    found = pipelines(Names, Path(sys.argv[1]))
    elements = {name: [plain(each) for each in one.as_numpy_iterator()] for name, one in found.items()}
    print(json.dumps(elements))


if __name__ == "__main__":
    main()
