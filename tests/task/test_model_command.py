"""`dtrain evaluate`, `predict` and `export`: what they print and write, and what they refuse."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest

import dtrain as dt
from dtrain import checkpoints
from dtrain.strategies.single import SingleStrategy
from dtrain.task import model_command

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
DTRAIN = [sys.executable, "-m", "dtrain_cli.main"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A trained model in a file, and the same as a run; data."""
    folder = tmp_path_factory.mktemp("models")
    with SingleStrategy().scope():
        model = dt.Sequential([dt.layers.Dense(4, "relu", input_shape=(3,)), dt.layers.Dense(2, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(X, Y, verbose=0)
    model.save(folder / "model")
    from dtrain.saving.model_files import read_model

    description = read_model(folder / "model").description
    run = folder / "runs" / "20260101-000000-mine-0001"
    checkpoints.save(run / "checkpoints", 7, model.arrays, {"model": description}, now=0.0)
    checkpoints.save(run / "checkpoints", 9, model.arrays, {}, now=0.0)
    (run / "run.json").write_text(json.dumps({"run": run.name, "name": "mine"}))
    np.savez(folder / "data.npz", x=X, y=Y)
    np.save(folder / "data.npy", X)
    return folder


@pytest.fixture
def order(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(action, code=0, **fields):
        order = model_command.ModelRequest(
            action=action, **{"model": str(folder / "model"), "data": str(folder / "data.npz"), **fields}
        )
        assert model_command.main(order) == code
        said = capsys.readouterr()
        return said.out if code == 0 else said.err

    return run


@pytest.fixture
def model(folder):
    with SingleStrategy().scope():
        return dt.load_model(folder / "model")


def test_evaluate_prints_what_evaluate_returns(order, model, tmp_path):
    loss, accuracy = model.evaluate(X, Y, verbose=0)
    assert order("evaluate") == f"loss      {loss:.6g}\naccuracy  {accuracy:.6g}\n"
    answer = json.loads(order("evaluate", as_json=True))
    assert (answer["loss"], answer["accuracy"]) == (loss, accuracy)
    assert order("evaluate", output="answer.json") == ""
    assert json.loads((tmp_path / "answer.json").read_text()) == answer
    other = json.loads(
        order("evaluate", as_json=True, metrics=["sparse_top_k_categorical_accuracy"], steps=1, batch_size=8)
    )
    assert other["sparse_top_k_categorical_accuracy"] == 1.0
    assert "accuracy" not in other


def test_predict_prints_lines_or_writes_a_file(order, model, tmp_path, folder):
    expected = model.predict(X)
    lines = [json.loads(line) for line in order("predict").splitlines()]
    np.testing.assert_array_equal(np.float32(lines), expected)
    assert [
        int(line) for line in order("predict", classes=True, data=str(folder / "data.npy")).split()
    ] == expected.argmax(1).tolist()
    assert json.loads(order("predict", as_json=True))["predictions"] == lines
    for suffix, read in {
        ".npy": np.load,
        ".npz": lambda path: np.load(path)["dense_1"],
        ".csv": lambda path: np.loadtxt(path, delimiter=","),
        ".json": lambda path: json.loads(path.read_text()),
        ".jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
    }.items():
        assert order("predict", output=f"out/p{suffix}") == ""
        np.testing.assert_array_equal(np.float32(read(tmp_path / "out" / f"p{suffix}")), expected)
    assert json.loads(order("predict", output="p.npy", as_json=True))["examples"] == 40


@pytest.mark.parametrize(
    ("activation", "loss"),
    [("sigmoid", "binary_crossentropy"), (None, dt.losses.BinaryCrossentropy(from_logits=True))],
)
def test_the_classes_of_a_single_output_are_two(order, tmp_path, activation, loss):
    with SingleStrategy().scope():
        two = dt.Sequential([dt.layers.Dense(1, activation, input_shape=(3,))])
        two.compile("sgd", loss)
        two.set_weights([np.array([[4.0], [0.0], [0.0]], np.float32), np.zeros(1, np.float32)])
        two.save("two")
    np.save("rows.npy", X)
    said = order("predict", classes=True, model="two", data="rows.npy")
    assert [int(line) for line in said.split()] == Y.tolist()


def test_output_that_cannot_be_written_is_one_line(folder):
    (folder / "shop.csv").write_text("price,rooms\n200000,3\n" * 40)
    for model, words in (
        ("model", "the output cannot be written: No space left"),
        ("shop.csv", "not a model file"),
    ):
        command = [*DTRAIN, "predict", str(folder / model), str(folder / "data.npy")]
        with open("/dev/full", "w") as full:
            found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert found.returncode == 1
        assert words in found.stderr
        assert len(found.stderr.splitlines()) == 1


def test_export_writes_what_onnxruntime_runs(order, model, tmp_path):
    assert order("export") == "model.onnx\n"
    assert json.loads(order("export", output="two.onnx", as_json=True))["outputs"] == ["dense_1"]
    for name in ("model.onnx", "two.onnx"):
        session = onnxruntime.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(None, {"input": X})[0], model.predict(X), atol=1e-5)


def test_classes_of_ones_own_come_from_a_file(order, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "import dtrain as dt\nclass Twice(dt.layers.Layer):\n    def forward(self, weights, x, call):\n     "
        "   return 2 * x, None\n"
    )
    import runpy

    twice = runpy.run_path(str(own))["Twice"]
    with SingleStrategy().scope():
        dt.Sequential([twice(input_shape=(3,))]).save("own")
    assert "unknown layer 'Twice'" in order("predict", code=1, model="own")
    assert (
        json.loads(order("predict", model="own", custom_objects=str(own)).splitlines()[0])
        == (2 * X[0]).tolist()
    )


def test_outputs_of_a_dict_are_columns_by_their_names(order, tmp_path):
    x = dt.Input((3,))
    made = dt.Model(x, {name: dt.layers.Dense(1, name=name)(x) for name in ("price", "kind")})
    made.save(tmp_path / "named")
    rows = [json.loads(line) for line in order("predict", model="named").splitlines()]
    assert [list(row) for row in rows] == [["price", "kind"]] * len(X)


@pytest.mark.parametrize(
    ("action", "fields", "code", "said"),
    [
        ("evaluate", {"data": "none.npz"}, 1, "none.npz: cannot be read"),
        ("evaluate", {"model": "none"}, 1, "none cannot be read"),
        ("evaluate", {"metrics": ["acuracy"]}, 2, "unknown metric 'acuracy'; do you mean accuracy?"),
        ("evaluate", {"data": "uneven.npz"}, 1, "uneven.npz: expected as many examples in y as in x"),
        (
            "evaluate",
            {"model": "people.csv"},
            1,
            "it is not a model file, or damaged: it begins like b'name,age'",
        ),
        (
            "predict",
            {"model": "people.pkl"},
            1,
            r"it is not a model file, or damaged: it begins like b'\x80\x04",
        ),
        ("evaluate", {"y": "label"}, 1, "expected a column label; it has x, y"),
        ("predict", {"output": "p.txt"}, 2, "p.txt: expected a name that ends in .npy"),
        ("export", {"output": "m.pb"}, 2, "ends in .onnx"),
        ("export", {"output": "/proc/m.onnx"}, 1, "cannot write /proc/m.onnx"),
    ],
)
def test_mistakes_are_one_line(order, tmp_path, action, fields, code, said):
    np.savez(tmp_path / "uneven.npz", x=X, y=Y[1:])
    (tmp_path / "people.csv").write_text("name,age\nBob,3\n")
    (tmp_path / "people.pkl").write_bytes(pickle.dumps({"name": ["Bob"]}, 4))
    message = order(action, code=code, **fields)
    assert said in message
    assert message.count("\n") == 1


def dtrain(folder, *words):
    environment = {
        **os.environ,
        "DTRAIN_RUNS_DIR": str(folder / "runs"),
        "TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}',
    }
    return subprocess.Popen(
        [*DTRAIN, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_finds_files_and_runs(folder):
    """Four commands at once."""
    checkpoint = "runs/20260101-000000-mine-0001/checkpoints/ckpt-7"
    commands = [dtrain(folder, "evaluate", model, "data.npz") for model in ("model", checkpoint, "mine")]
    commands.append(dtrain(folder, "predict", "nowhere", "data.npz"))
    said = [command.communicate(timeout=60) for command in commands]
    assert [command.returncode for command in commands] == [0, 0, 1, 3], said
    (of_file, warned), (of_checkpoint, _), (_, of_run), (_, nowhere) = said
    assert warned == ""
    assert of_checkpoint == of_file
    assert "ckpt-9 holds weights and no model" in of_run
    assert "nowhere: no such file or folder, and no run with the id, name or path 'nowhere'" in nowhere


def test_a_reader_that_goes_away_is_no_error(folder):
    command = (
        f"{sys.executable} -m dtrain_cli.main predict model data.npz --batch-size 1 | head -n 1; echo "
        f"${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"
