"""Layers that give categories, besides their values, which conformance/test_preprocessing_golden.py checks."""

import numpy as np
import pytest
from row_by_row import every_row

import dtrain as dt
from dtrain.errors import InputError, SpecError
from dtrain.learning import layers
from dtrain.learning.layers import Call


def forward(layer, x):
    return layer.forward({}, np.asarray(x), Call())[0]


def test_examples_without_an_axis_are_a_batch_in_a_model_and_one_example_outside():
    layer = layers.CategoryEncoding(3)
    assert forward(layer, [0, 2]).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert layer([0, 2]).tolist() == [1, 0, 1]
    assert layer.output_shape(()) == (3,)


@pytest.mark.parametrize(
    "layer",
    [
        layers.Discretization([0.0, 1.0], output_mode="count"),
        layers.Hashing(4, output_mode="multi_hot"),
        layers.CategoryEncoding(9, output_mode="one_hot"),
        layers.IntegerLookup(vocabulary=[1, 2], output_mode="tf_idf", idf_weights=[1, 2]),
    ],
)
def test_shapes_are_those_promised_for_any_number_of_axes(layer):
    for shape in ((), (1,), (3,), (2, 1), (2, 3)):
        x = np.ones((2, *shape), np.int64)
        assert forward(layer, x).shape == (2, *layer.output_shape(shape))
        assert forward(layer, x[:0]).shape == (0, *layer.output_shape(shape))


def test_texts_become_integers_of_words_in_a_model_and_in_a_pipeline():
    layer = layers.TextVectorization(output_sequence_length=4)
    layer.adapt(dt.data.Dataset.from_tensor_slices(["the fox", "The dog!", "a dog"]).batch(2))
    assert layer.get_vocabulary() == ["", "[UNK]", "the", "dog", "fox", "a"]
    rows = dt.data.Dataset.from_tensor_slices(["the cat", "A fox."]).map(layer)
    assert [row.tolist() for row in rows] == [[2, 1, 0, 0], [5, 4, 0, 0]]
    assert layer.output_shape((1,)) == (4,)
    assert layer(np.array(["the cat", "fox"])).tolist() == [[2, 1, 0, 0], [4, 0, 0, 0]]
    tokens = layers.TextVectorization(output_mode=None)(["The cat", "fox"])
    assert tokens.tolist() == [["the", "cat"], ["fox", ""]]


def test_functions_may_standardize_and_split():
    layer = layers.TextVectorization(
        standardize=lambda texts: [text.replace("<br>", " ") for text in texts],
        split=lambda texts: [text.split("-") for text in texts],
        vocabulary=["a b", "c"],
    )
    assert layer(["a<br>b-c", "d"]).tolist() == [[2, 3], [1, 0]]
    with pytest.raises(SpecError, match="standardize: a function cannot be written as data"):
        layer.get_config()


@pytest.mark.parametrize(
    "layer", [layers.StringLookup(), layers.TextVectorization(), layers.Discretization(num_bins=2)]
)
def test_adapt_says_what_it_cannot_read(layer):
    pairs = dt.data.Dataset.from_tensor_slices((np.array([["a"]]), np.array([1]))).batch(1)
    with pytest.raises(
        InputError, match=r"adapt: expected a dataset of arrays, found elements that are a tuple"
    ):
        layer.adapt(pairs)


def test_adapt_reads_so_many_batches_of_an_endless_dataset():
    numbers = dt.data.Dataset.from_tensor_slices(np.arange(4.0, dtype=np.float32)).repeat().batch(2)
    layer = layers.Normalization(axis=None)
    layer.adapt(numbers, steps=2)
    assert (layer.mean, layer.variance) == (1.5, 1.25)
    bins = layers.Discretization(num_bins=2)
    bins.adapt(numbers, steps=2)
    assert len(bins.bin_boundaries) == 1


def test_moments_of_batches_of_other_lengths_are_those_of_the_whole():
    data = np.random.default_rng(0).normal(1e3, 1e-1, (101, 3)).astype(np.float32)
    layer, whole = layers.Normalization(), data.astype(np.float64)
    layer.adapt(data, batch_size=7)
    np.testing.assert_allclose(layer.mean, whole.mean(axis=0, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(layer.variance, whole.var(axis=0, keepdims=True), rtol=1e-9)


def test_what_adapt_has_learned_is_learned_anew():
    layer = layers.StringLookup(output_mode="tf_idf")
    layer.adapt([["a", "b"], ["a", "a"]])
    layer.adapt([["c", "c"], ["d", "c"]])
    assert layer.get_vocabulary() == ["[UNK]", "c", "d"]
    again = layers.StringLookup.from_config(layer.get_config())
    np.testing.assert_array_equal(again([["c", "d"]]), layer([["c", "d"]]))


@every_row(
    "make, said",
    [
        (lambda: layers.Hashing(0), "num_bins: expected a positive integer, found 0"),
        (lambda: layers.Hashing(3, salt=(1, 2, 3)), "salt: expected an integer, or two"),
        (lambda: layers.Hashing(3, sparse=True, output_mode="count"), "sparse: expected False"),
        (lambda: layers.CategoryEncoding(10**9), "num_tokens: expected at most 100000000, found 1e\\+09"),
        (lambda: layers.Discretization([2.0, 1.0]), "bin_boundaries: expected them in ascending order"),
        (
            lambda: layers.Discretization(num_bins=2, epsilon=0.0),
            "epsilon: expected a number between 0 and 1",
        ),
        (lambda: layers.Discretization()([1.0]), r"has no bin_boundaries; give them, or call adapt\(data\)"),
        (lambda: layers.Discretization().adapt([1.0]), "adapt: expected num_bins in the constructor"),
        (lambda: layers.TextVectorization(ragged=True), "ragged: expected False"),
        (lambda: layers.TextVectorization(ngrams=0), "ngrams: expected a positive integer, found 0"),
        (lambda: layers.TextVectorization()(["a"]), r"has no vocabulary; give one, or call adapt\(data\)"),
        (lambda: layers.TextVectorization.from_config({"vocabulary": "/etc/passwd"}), "tokens in a list"),
        (lambda: layers.StringLookup(encoding="idna"), "encoding: expected 'utf-8', found 'idna'"),
        (lambda: layers.StringLookup(pad_to_max_tokens=True), "expected max_tokens beside it, found none"),
        (
            lambda: layers.StringLookup(vocabulary=["a"], output_mode="tf_idf"),
            "idf_weights: expected one for",
        ),
        (lambda: layers.StringLookup(output_mode="tf_idf", num_oov_indices=10**6), "expected 0 to 10000"),
    ],
)
def test_wrong_arguments_are_one_sentence(make, said):
    with pytest.raises(SpecError, match=said) as raised:
        make()
    assert "\n" not in str(raised.value)


@every_row(
    "call, said",
    [
        (lambda: layers.Hashing(3)([0.5]), "expected strings or integers, found dtype float64"),
        (lambda: layers.CategoryEncoding(3)([[0.5]]), "expected integers, found 0.5"),
        (lambda: layers.CategoryEncoding(3)([[1, 7]]), "expected integers from 0 to 2, found 7"),
        (lambda: layers.CategoryEncoding(3)(["a"]), "expected integers, found 'a'"),
        (lambda: layers.HashedCrossing(3)(np.ones(3)), "expected a list of at least two features"),
        (lambda: layers.HashedCrossing(3)([[1, 2], [1]]), r"expected features of shape \(2,\), found one of"),
        (lambda: layers.TextVectorization(vocabulary=["a"])([["a", "b"]]), "expected one text an example"),
        (lambda: layers.TextVectorization(vocabulary=["a"])([1, 2]), "expected texts, found dtype int64"),
        (lambda: layers.Discretization(num_bins=2).adapt([]), "expected at least one example, found none"),
    ],
)
def test_wrong_input_is_one_sentence(call, said):
    with pytest.raises(InputError, match=said):
        call()
