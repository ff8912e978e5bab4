"""Keras's own files are read: models and weights as TensorFlow 2.15.1 wrote them (files_reference.py)."""

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import CheckpointError
from dtrain.strategies.single import SingleStrategy

h5py = pytest.importorskip("h5py")
DATA = Path(__file__).with_name("data")
OUTPUTS = json.loads((DATA / "outputs.json").read_text())


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SingleStrategy().scope():
        yield


def inputs(model):
    shapes = model.input_shape if isinstance(model.input_shape, list) else [model.input_shape]
    x = [np.linspace(-1, 1, 2 * int(np.prod(each[1:]))).reshape(2, *each[1:]).astype("f4") for each in shapes]
    return x if len(x) > 1 else x[0]


@pytest.mark.parametrize(
    "file", [*sorted(path.name for path in DATA.glob("*.keras")), "chain.h5", "graph.h5"]
)
def test_a_model_predicts_what_it_does_in_keras(file):
    model = dt.load_model(DATA / file)
    name = file.partition(".")[0]
    np.testing.assert_allclose(model.predict(inputs(model)), OUTPUTS[name], rtol=1e-5, atol=1e-6)
    assert model.metrics_names == ["loss", "mae"]
    assert type(model.optimizer) is dt.optimizers.Adam
    model.fit(inputs(model), np.ones((2, model.output_shape[-1])), verbose=0)


@pytest.mark.parametrize("name", ["chain", "graph"])
def test_weights_come_by_order_and_by_name(name):
    model = dt.load_model(DATA / f"{name}.keras", compile=False)
    nothing = [np.zeros_like(each) for each in model.get_weights()]
    for file, by_name in ((f"{name}.weights.h5", False), (f"{name}.h5", False), (f"{name}.h5", True)):
        model.set_weights(nothing)
        model.load_weights(DATA / file, by_name=by_name)
        np.testing.assert_allclose(model.predict(inputs(model)), OUTPUTS[name], rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_said_with_the_layer():
    other = dt.Sequential([dt.layers.Dense(5, input_shape=(3,)), dt.layers.Dense(1)])
    for file in ("graph.weights.h5", "graph.h5"):
        with pytest.raises(CheckpointError, match=r"\(3, 5\).*found.*\(3, 2\)"):
            other.load_weights(DATA / file)
    with pytest.raises(CheckpointError, match="expected 2 layers with weights, found 5"):
        other.load_weights(DATA / "chain.h5")
    with pytest.raises(CheckpointError, match=r"holds weights and no model"):
        dt.load_model(DATA / "graph.weights.h5")


def changed(file, change):
    """A copy of graph.keras whose config is another."""
    with zipfile.ZipFile(DATA / "graph.keras") as before, zipfile.ZipFile(file, "w") as after:
        for name in before.namelist():
            content = before.read(name)
            after.writestr(name, change(content) if name == "config.json" else content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda text: text.replace(b'"Concatenate"', b'"Nonsense"'),
            "the layer Nonsense of Keras is not in dtrain",
        ),
        (
            lambda text: text.replace(b'"bias_constraint": null', b'"lora_rank": 4', 1),
            "shared .Dense.: its argument lora_rank=4 is not in dtrain",
        ),
        (lambda text: text[:-9], "no sound HDF5 file or archive of Keras"),
        (lambda text: text.replace(b'["shared", 1, 0', b'["shared", 7, 0'), "read each other"),
    ],
)
def test_what_is_not_there_is_said_with_its_name(change, message):
    changed("m.keras", change)
    with pytest.raises(CheckpointError, match=message):
        dt.load_model("m.keras")


def test_links_out_of_a_file_are_not_followed():
    shutil.copy(DATA / "graph.weights.h5", "mine.h5")
    with h5py.File("mine.h5", "r+") as file:
        del file["layers/dense"]
        file["layers/dense"] = h5py.ExternalLink(str(DATA / "graph.weights.h5"), "layers/dense")
    model = dt.load_model(DATA / "graph.keras")
    with pytest.raises(CheckpointError, match=r"shared .*found \[\]"):
        model.load_weights("mine.h5")


def as_keras_3(text):
    """The description as Keras 3 writes it: other uses of layers, shapes of batches, and policies of numbers."""
    config = json.loads(text)
    for each in config["config"]["layers"]:
        own = each["config"]
        own["dtype"] = {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}}
        if each["class_name"] == "InputLayer":
            own["batch_shape"] = own.pop("batch_input_shape")
        uses = []
        for use in each["inbound_nodes"]:
            tensors = [
                {"class_name": "__keras_tensor__", "config": {"keras_history": source[:3]}} for source in use
            ]
            args = [tensors] if len(tensors) > 1 else tensors
            uses.append({"args": args, "kwargs": {"training": None} if "shared" in each["name"] else {}})
        each["inbound_nodes"] = uses
    config["config"]["output_layers"] = config["config"]["output_layers"][0]
    return json.dumps(config).encode()


def test_the_form_of_keras_3_is_read():
    changed("m.keras", as_keras_3)
    model = dt.load_model("m.keras")
    np.testing.assert_allclose(model.predict(inputs(model)), OUTPUTS["graph"], rtol=1e-5, atol=1e-6)
