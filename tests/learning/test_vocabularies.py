"""Lookup layers read their vocabulary from a text file, one token a line, as Keras's do."""

import platform
import re
from pathlib import Path

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import SpecError
from dtrain.learning.layers import IntegerLookup, StringLookup
from dtrain.strategies.single import SingleStrategy

HOST = re.escape(platform.node())


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", ["words", Path("words")])
def test_a_line_is_a_token(folder, path):
    (folder / "words").write_text("cat\nthe dog\nüber\x0bu\n", encoding="utf-8")
    layer = StringLookup(vocabulary=path)
    assert layer.get_vocabulary() == ["[UNK]", "cat", "the dog", "über\x0bu"]
    assert StringLookup(vocabulary=path, mask_token="").vocabulary_size() == 5
    assert StringLookup(vocabulary=path, invert=True, num_oov_indices=0).get_vocabulary()[0] == "cat"


def test_an_empty_file_is_an_empty_vocabulary(folder):
    (folder / "words").touch()
    assert StringLookup(vocabulary=str(folder / "words")).get_vocabulary() == ["[UNK]"]


def test_lines_of_integers(folder):
    (folder / "numbers").write_text("10\r\n-3\r\n7", encoding="utf-8")
    assert IntegerLookup(vocabulary="numbers").get_vocabulary() == [-1, 10, -3, 7]


def test_what_get_vocabulary_gave_may_be_written_and_read(folder):
    (folder / "words").write_text("\n".join(StringLookup(vocabulary=["a", "b"]).get_vocabulary()))
    assert StringLookup(vocabulary="words").get_vocabulary() == ["[UNK]", "a", "b"]


@pytest.mark.parametrize("make", [StringLookup, IntegerLookup])
def test_a_file_that_cannot_be_read_is_one_message(folder, make):
    expected = "expected tokens, or the path of a text file with one token a line"
    for path, found in (
        ("missing.txt", "No such file or directory"),
        (str(folder), "expected a file, found a folder"),
    ):
        with pytest.raises(
            SpecError, match=rf"vocabulary: cannot read {path} on host {HOST}: {found}; {expected}$"
        ):
            make(vocabulary=path)
    (folder / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(
        SpecError, match=rf"vocabulary: cannot read binary on host {HOST}: it is no UTF-8 text; {expected}$"
    ):
        make(vocabulary="binary")


def test_a_line_that_is_no_integer_is_named(folder):
    (folder / "numbers").write_text("1\ntwo\n")
    with pytest.raises(SpecError, match=r"vocabulary: expected integers, found 'two' in line 2 of numbers$"):
        IntegerLookup(vocabulary="numbers")


def test_a_saved_model_has_the_tokens_and_needs_no_file(folder):
    (folder / "words").write_text("cat\ndog\n")
    with SingleStrategy().scope():
        model = dt.Sequential([StringLookup(vocabulary="words", input_shape=(1,)), dt.layers.Embedding(3, 2)])
        expected = model.predict(np.array([["dog"], ["cat"], ["cow"]], object))
        model.save("model")
        (folder / "words").unlink()
        loaded = dt.load_model("model")
        np.testing.assert_array_equal(loaded.predict(np.array([["dog"], ["cat"], ["cow"]], object)), expected)


def test_data_cannot_make_a_layer_read_a_file(folder):
    (folder / "secret").write_text("password\n")
    with pytest.raises(SpecError, match="vocabulary: expected tokens in a list, found 'secret'"):
        StringLookup.from_config({"vocabulary": "secret"})


def test_layers_that_prepare_data_compute_at_once_on_arrays():
    lookup = dt.layers.StringLookup(vocabulary=["a", "b"])
    assert lookup("b") == 2
    assert lookup(b"c") == 0
    assert lookup(["a", "c"]).tolist() == [1, 0]
    numbers = dt.layers.IntegerLookup(vocabulary=[7, 9], output_mode="multi_hot")
    assert numbers(np.array([[7, 7], [9, 1]])).tolist() == [[0, 1, 0], [1, 0, 1]]
    halves = dt.layers.Rescaling(0.5, offset=1.0)([2, 4])
    assert (halves.tolist(), halves.dtype) == ([2.0, 3.0], np.float32)
    normal = dt.layers.Normalization(mean=1.0, variance=4.0)
    assert normal(np.array([[3.0], [5.0]])).tolist() == [[1.0], [2.0]]
    assert tuple(lookup(dt.Input((2,), dtype="string")).shape) == (None, 2)
