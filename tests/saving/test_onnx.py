"""ONNX: onnxruntime computes what `predict` does, for every layer and random shapes; what it cannot is
refused by name.
"""

import sys

import numpy as np
import onnxruntime
import pytest
from msgspec.structs import replace
from row_by_row import every_row
from saving.zoo import CASES, MERGING, WITHOUT_ONNX, Example, branched, example, merged, shaken

import dtrain as dt
from dtrain.errors import CheckpointError, DtrainError, InputError, SpecError
from dtrain.strategies.single import SingleStrategy

L = dt.layers
SEEDS = range(4)


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


def run(path, x):
    """What onnxruntime makes of a batch."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    given = x if isinstance(x, dict) else dict(zip(names, x if isinstance(x, list) else [x], strict=True))
    return session.run(None, given)


def assert_agrees(case: Example, path):
    case.model.export(path)
    expected = case.predict()
    expected = expected if isinstance(expected, list) else [expected]
    for one, other in zip(run(path, case.x), expected, strict=True):
        assert one.shape == other.shape
        if other.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        else:
            assert one.tolist() == other.tolist()


@every_row("seed", SEEDS)
@every_row("name", CASES)
def test_every_layer_agrees(tmp_path, name, seed):
    assert_agrees(example(name, seed), tmp_path / "model.onnx")


@every_row("seed", SEEDS)
@every_row("cls", MERGING)
def test_merging_layers_agree(tmp_path, cls, seed):
    assert_agrees(merged(cls, seed), tmp_path / "model.onnx")


def test_models_within_agree(tmp_path):
    tower = dt.Sequential(
        [L.Dense(3, input_shape=(4,)), L.BatchNormalization(), L.Dropout(0.5), L.Dense(2)], name="tower"
    )
    a, b = L.Input((4,), name="a"), L.Input((4,), name="b")
    made = dt.Model([a, b], [tower(a), L.subtract([tower(b, training=False), L.Dense(2)(a)])])
    x = [np.random.default_rng(seed).normal(size=(5, 4)).astype(np.float32) for seed in SEEDS[:2]]
    path = tmp_path / "model.onnx"
    assert_agrees(Example(made, x), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_outputs()] == ["tower", "subtract"] == made.network.output_names


def test_a_merge_of_inputs_of_different_ranks_agrees(tmp_path):
    rng = np.random.default_rng(0)
    a, b = L.Input((3, 4)), L.Input((4,))
    x = [rng.normal(size=(3, 3, 4)).astype(np.float32), rng.normal(size=(3, 4)).astype(np.float32)]
    assert_agrees(Example(dt.Model([a, b], L.Multiply()([a, b])), x), tmp_path / "model.onnx")


def test_a_graph_agrees_and_keeps_its_names(tmp_path):
    case = branched()
    case.x["words"] = case.x["words"].astype(np.int32)
    assert_agrees(case, tmp_path / "two.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "two.onnx", providers=["CPUExecutionProvider"])
    assert [(each.name, each.type, each.shape) for each in session.get_inputs()] == [
        ("words", "tensor(int32)", ["batch", 4]),
        ("image", "tensor(float)", ["batch", 6, 6, 2]),
    ]
    assert [each.name for each in session.get_outputs()] == ["dense", "shared"]


@pytest.mark.parametrize("cls", [L.LSTM, L.GRU, L.SimpleRNN])
def test_final_states_agree(tmp_path, cls):
    x = L.Input((4, 3))
    model = dt.Model(x, cls(5, return_sequences=True, return_state=True)(x))
    batch = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    assert_agrees(Example(shaken(model, np.random.default_rng(1)), batch), tmp_path / "model.onnx")


@pytest.mark.parametrize("layers", [[L.Conv2D(2, 3, padding="same"), L.GlobalAveragePooling2D()], [L.GRU(3)]])
def test_lengths_may_be_free(tmp_path, layers):
    free = (None, None, 2) if len(layers) == 2 else (None, 2)
    model = dt.Sequential([L.InputLayer(input_shape=free), *layers])
    for length in (5, 8):
        shape = tuple(length if n is None else n for n in free)
        batch = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
        assert_agrees(Example(model, batch), tmp_path / "model.onnx")


WORDS = np.array([["b", "a", "?"], ["c", "", "b"]])
NUMBERS = np.array([[7, 5, 9], [0, 7, 1]])


@every_row("mode", ["int", "one_hot", "multi_hot", "count"])
@every_row("mask", [False, True])
@every_row("width", [1, 3])
def test_lookups_agree(tmp_path, mode, mask, width):
    strings = L.StringLookup(vocabulary=["a", "b", "c"], mask_token="" if mask else None, output_mode=mode)
    integers = L.IntegerLookup(vocabulary=[5, 7], mask_token=0 if mask else None, output_mode=mode)
    for layer, x in ((strings, WORDS), (integers, NUMBERS)):
        model = dt.Sequential([L.InputLayer(input_shape=(width,)), layer])
        assert_agrees(Example(model, x[:, :width]), tmp_path / "model.onnx")


def test_weighted_and_padded_lookups_agree(tmp_path):
    weighted = L.StringLookup(vocabulary=["a", "b"], idf_weights=[0.5, 2.0], output_mode="tf_idf")
    longer = L.StringLookup(vocabulary=["a"], max_tokens=5, pad_to_max_tokens=True, output_mode="count")
    for layer in (weighted, longer):
        model = dt.Sequential([L.InputLayer(input_shape=(3,)), layer])
        assert_agrees(Example(model, WORDS), tmp_path / "model.onnx")


def test_inverted_lookups_agree(tmp_path):
    for layer in (
        L.StringLookup(vocabulary=["a", "b"], invert=True),
        L.IntegerLookup(vocabulary=[5, 7], invert=True),
    ):
        model = dt.Sequential([L.InputLayer(input_shape=(3,)), layer])
        assert_agrees(Example(model, np.array([[0, 1, 2], [9, 2, -1]])), tmp_path / "model.onnx")


def test_words_become_vectors(tmp_path):
    model = dt.Sequential(
        [L.StringLookup(vocabulary=["a", "b"], input_shape=(3,)), L.Embedding(3, 4), L.Flatten(), L.Dense(2)]
    )
    assert_agrees(Example(shaken(model, np.random.default_rng(0)), WORDS), tmp_path / "model.onnx")


class Own(L.Layer):
    pass


def cube():
    from dtrain.learning.core.activations import Activation

    return Activation("cube", lambda x: x**3, lambda x, y, dy: dy * 3 * x**2, needs_x=True)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (lambda: Own(name="mine"), r"mine \(Own\): cannot be exported: ONNX has no form of this layer"),
        (
            lambda: L.CategoryEncoding(4),
            r"category_encoding \(CategoryEncoding\): cannot be exported: ONNX has",
        ),
        (lambda: L.Dense(2, cube()), r"dense \(Dense\): ONNX does not know the activation 'cube'"),
        (
            lambda: L.LSTM(2, activation="gelu"),
            r"lstm \(LSTM\): ONNX does not know the activation 'gelu' within a cell",
        ),
        (
            lambda: L.IntegerLookup(vocabulary=[1], num_oov_indices=2),
            r"integer_lookup \(IntegerLookup\): in ONNX unknown tokens",
        ),
    ],
)
def test_what_onnx_does_not_know_is_named(tmp_path, layer, said):
    made = layer()
    model = dt.Sequential([L.InputLayer(input_shape=(4, 3)), made])
    with pytest.raises(SpecError, match=said):
        model.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@every_row("name", WITHOUT_ONNX)
def test_a_layer_without_a_form_in_onnx_is_named(tmp_path, name):
    with pytest.raises(SpecError, match="cannot be exported: ONNX has no form"):
        example(name, 0).model.export(tmp_path / "model.onnx")


def test_wrong_use_is_refused(tmp_path, monkeypatch):
    model = dt.Sequential([L.Dense(1, input_shape=(2,))])
    with pytest.raises(SpecError, match=r"ends in \.onnx"):
        model.export(tmp_path / "model.tflite")
    with pytest.raises(SpecError, match="tf_saved_model"):
        model.export(tmp_path / "model.onnx", format="tf_saved_model")
    with pytest.raises(InputError, match="shapes are unknown"):
        dt.Sequential([L.Dense(1)]).export(tmp_path / "model.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(CheckpointError, match="it is a directory"):
        model.export(tmp_path / "folder.onnx")
    for name in [
        name for name in sys.modules if name == "onnx" or name.startswith("dtrain.saving.onnx_export")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(DtrainError, match=r"pip install -e '\.\[onnx\]'` in dtrain's clone"):
        model.export(tmp_path / "model.onnx")


def test_only_the_leaders_file_counts(tmp_path):
    model = dt.Sequential([L.Dense(1, input_shape=(2,))])
    model.strategy.context = replace(model.strategy.context, is_leader=False)
    model.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
