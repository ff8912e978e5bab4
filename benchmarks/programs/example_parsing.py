"""Parsing of tf.train.Examples of about 1 KB from a TFRecord file, by dtrain, tf.data or a torch DataLoader.

python example_parsing.py --of dtrain|tf.data|torch --file FILE [--one-by-one] [--passes 3]

dtrain and tf.data have one core and check every checksum; the DataLoader has all cores, 2 worker processes, a parser in Python as one
writes it by hand, and checks none. Prints one JSON object: records per second, and per second of a core, of the
last passes; the first one is left out.
"""

import argparse
import json
import os
import resource
import struct
import time

import numpy as np

BATCH = 256
PIXELS, WEIGHTS = 784, 32
WORKERS = 2


def one_core():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def of_dtrain(file, one_by_one):
    import dtrain as dt

    one_core()
    features = {
        "image": dt.data.FixedLenFeature((), "string"),
        "label": dt.data.FixedLenFeature((), "int64"),
        "weights": dt.data.FixedLenFeature((WEIGHTS,), "float32"),
        "name": dt.data.FixedLenFeature((), "string"),
    }
    records = dt.data.TFRecordDataset(file)
    if one_by_one:
        return records.map(lambda record: dt.data.parse_single_example(record, features)).batch(BATCH)
    return records.batch(BATCH).map(lambda batch: dt.data.parse_example(batch, features))


def of_tensorflow(file, one_by_one):
    one_core()
    import tensorflow as tf

    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "weights": tf.io.FixedLenFeature([WEIGHTS], tf.float32),
        "name": tf.io.FixedLenFeature([], tf.string),
    }
    records = tf.data.TFRecordDataset(file)
    if one_by_one:
        return records.map(lambda record: tf.io.parse_single_example(record, features)).batch(BATCH)
    return records.batch(BATCH).map(lambda batch: tf.io.parse_example(batch, features))


def of_torch(file, one_by_one):
    import torch

    class Records(torch.utils.data.Dataset):
        def __init__(self):
            self.file, self.offsets = None, []
            with open(file, "rb") as opened:
                nbytes, offset = os.fstat(opened.fileno()).st_size, 0
                while offset < nbytes:
                    length = struct.unpack("<Q", os.pread(opened.fileno(), 8, offset))[0]
                    self.offsets.append((offset + 12, length))
                    offset += 16 + length

        def __len__(self):
            return len(self.offsets)

        def __getitem__(self, number):
            if self.file is None:
                self.file = os.open(file, os.O_RDONLY)
            offset, length = self.offsets[number]
            found = example(os.pread(self.file, length, offset))
            weights = np.frombuffer(found["weights"], "<f4").copy()
            return found["image"], varint(found["label"], 0)[0], weights, found["name"]

    return torch.utils.data.DataLoader(Records(), batch_size=BATCH, num_workers=WORKERS)


def varint(data, at):
    value = shift = 0
    while True:
        octet = data[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, at
        shift += 7


def field(data, at):
    """The begin and the end of the content of a field with a length."""
    length, begin = varint(data, at + 1)
    return begin, begin + length


def example(data):
    """The bytes of the first value of each feature of a tf.train.Example."""
    found = {}
    at, end = field(data, 0)
    while at < end:
        entry, at = field(data, at)
        key, key_end = field(data, entry)
        value, _ = field(data, key_end)
        values, _ = field(data, value)
        begin, stop = field(data, values)
        found[data[key:key_end].decode()] = data[begin:stop]
    return found


KINDS = {"dtrain": of_dtrain, "tf.data": of_tensorflow, "torch": of_torch}


def cpu_s():
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", choices=KINDS, required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--one-by-one", action="store_true")
    parser.add_argument("--passes", type=int, default=3)
    args = parser.parse_args()
    data = KINDS[args.of](args.file, args.one_by_one)
    records = total = 0
    for number in range(1 + args.passes):
        if number == 1:
            begun_s, begun_cpu_s, records = time.perf_counter(), cpu_s(), 0
        for batch in data:
            parts = batch.values() if isinstance(batch, dict) else batch
            records += len(next(iter(parts)))
            total += len(next(iter(parts)))
    wall_s, used_s = time.perf_counter() - begun_s, cpu_s() - begun_cpu_s
    print(json.dumps({"records": records, "per_s": records / wall_s, "per_cpu_s": records / used_s}))


if __name__ == "__main__":
    main()
