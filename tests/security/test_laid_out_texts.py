"""Texts of different lengths take the longest one's memory each in an array; a path may name what never ends."""

import os

import numpy as np
import pytest

from dtrain.data.examples import encode_example
from dtrain.data.tables import read_examples
from dtrain.errors import InputError, SpecError
from dtrain.formats.tfrecord import TFRecordWriter
from dtrain.learning.layers.preprocessing.lookups import tokens_in
from dtrain.process.engines import MAIN_NODE, NODE, NODES, aws_batch_place


def csv(path, longest, rows):
    path.write_text("t,y\n" + "x" * longest + ",1\n" + "x,1\n" * rows)


def tfrecord(path, longest, rows):
    with TFRecordWriter(path) as writer:
        for length in (longest, *[1] * rows):
            writer.write(encode_example({"t": [b"x" * length], "y": [1]}))


@pytest.mark.parametrize("write", [csv, tfrecord])
def test_a_long_text_among_many_short_ones_is_refused_before_memory_is_taken(write, tmp_path):
    path = tmp_path / f"x.{write.__name__}"
    write(path, 100, 200)
    texts, numbers = read_examples(path, {"x": ()}, x="t", y="y", targets=True)
    assert [len(text) for text in texts] == [100, *[1] * 200]
    assert np.array_equal(numbers, np.ones(201))
    write(path, 130_000, 100_000 if write is csv else 3000)
    with pytest.raises(InputError, match="grows too much when it is decompressed or made an array"):
        read_examples(path, {"x": ()}, x="t", y="y", targets=True)


def test_a_vocabulary_is_a_file(tmp_path):
    (tmp_path / "words").write_bytes(b"one\r\ntwo\n")
    assert tokens_in(tmp_path / "words", "here") == ["one", "two"]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="expected a file, found a FIFO"):
        tokens_in(tmp_path / "pipe", "here")


def test_nodes_of_aws_batch_are_counted_before_one_is_named():
    environment = {NODE: "0", NODES: "900000000", MAIN_NODE: "0"}
    with pytest.raises(SpecError, match=r"NUM_NODES.*expected a number, found '900000000', at most 100000"):
        aws_batch_place(environment, None, lambda _: "10.0.0.1")
