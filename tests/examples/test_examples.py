"""Every example runs as a user would run it, and reaches what it promises."""

import gzip
import importlib.util
import json
import re
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from answers import is_of

EXAMPLES = Path(__file__).parents[2] / "examples"
NO_PROGRAMS = {"images.py"}
SMALL = ("--workers", "1", "--ps", "1", "--no-evaluator")
"""Where the default cluster is not what is promised; two examples run on it."""
ACCURACY = r"accuracy on images not seen ([\d.]+)"


@pytest.fixture
def output(launcher):
    """The leader's output of an example on a cluster, whose words follow `dtrain launch`."""

    def run(*words, leader="chief:0"):
        launch = launcher.start(*words)
        assert launch.end() == 0, launch.err
        launch.wait_gone()
        return launch.log(leader)

    return run


def numbers(pattern, text):
    """Every number of a pattern with one group."""
    return [float(found) for found in re.findall(pattern, text)]


def test_digits(output):
    (accuracy,) = numbers(
        r"held-out accuracy ([\d.]+)", output(*SMALL, EXAMPLES / "digits.py", "--steps", "300")
    )
    assert accuracy > 0.9


def test_local_steps(output):
    words = ("--workers", "2", "--ps", "1", "--no-evaluator", "--local-steps", "20", "--backup-workers", "1")
    log = output(*words, EXAMPLES / "local_steps.py", "--epochs", "20")
    assert "20 epochs, 460 steps of each replica" in log
    (accuracy,) = numbers(r"held-out accuracy ([\d.]+)", log)
    assert accuracy > 0.94


def test_pipeline_mnist(output):
    words = ("--stages", "3", "--no-evaluator")
    (accuracy,) = numbers(
        ACCURACY, output(*words, EXAMPLES / "pipeline_mnist.py", "--quick", "--epochs", "8")
    )
    assert accuracy > 0.95


def test_linear_regression(output):
    words = (
        "--workers",
        "2",
        "--ps",
        "1",
        "--set",
        "cluster.chief=0",
        "--no-evaluator",
        EXAMPLES / "linear_regression.py",
    )
    log = output(*words, "--learning_rate", "3e-3", "--max_steps", "2000", leader="worker:0")
    weight, bias = re.search(r"^weight ([\d.]+) .*bias ([\d.]+)", log, re.M).groups()
    assert (float(weight), float(bias)) == (pytest.approx(2, abs=0.1), pytest.approx(10, abs=0.2))


def test_custom_loop(output):
    words = ("--strategy", "mirrored", "--set", "training.replicas=2")
    log = output(*words, EXAMPLES / "custom_loop.py", "--quick", "--epochs", "5")
    assert "replicas 2" in log
    assert numbers(ACCURACY, log)[-1] > 0.75


def test_recommender(output):
    log = output(
        "--workers",
        "1",
        "--no-evaluator",
        "--set",
        "training.partitioner={fixed_shards: 2}",
        EXAMPLES / "recommender.py",
        "--steps",
        "400",
    )
    variance, error = map(
        float, re.search(r"variance of ratings is ([\d.]+), the error ([\d.]+)", log).groups()
    )
    assert error < 0.5 * variance
    assert "film 7 is [" in log


def test_migrate_estimator(output):
    """Its numbers are TensorFlow's, step by step. Its data and weights are its own: those of tests/golden,
    wherever others lie.
    """
    golden = json.loads((Path(__file__).parents[1] / "golden" / "j_end_to_end.json").read_text())
    same = {
        "replicas": 2,
        "data": "repeat_then_batch",
        "global_batch": 2,
        "optimizer": ["Adagrad", {"learning_rate": 0.05}],
    }
    run = next(run for run in golden["runs"] if same.items() <= run.items())
    log = output("--workers", "1", "--updates", "sync", EXAMPLES / "migrate_estimator.py", "--print_weights")
    weights = [line.split()[1:] for line in log.splitlines() if line.startswith("weights ")]
    expected = [
        [step, *kernel, *bias]
        for step, (kernel, bias) in enumerate(zip(run["kernel"], run["bias"], strict=True))
    ]
    np.testing.assert_allclose(np.array(weights, float), expected[1:], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        numbers(r"evaluation after step 30: loss ([\d.]+)", log), run["eval_loss_mean"], rtol=1e-4
    )


def test_migrate_keras(output):
    log = output("--workers", "3", "--ps", "1", "--updates", "sync", EXAMPLES / "migrate_keras.py")
    losses = numbers(r"epoch \d: loss ([\d.]+)", log)
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
    assert numbers(r"evaluation: loss ([\d.]+)", log)


def test_mnist_mlp(output):
    (accuracy,) = numbers(ACCURACY, output(EXAMPLES / "mnist_mlp.py", "--quick"))
    assert accuracy > 0.85


def test_mnist_cnn(output, launcher):
    log = output(*SMALL, EXAMPLES / "mnist_cnn.py", "--quick", "--epochs", "4")
    (accuracy,) = numbers(ACCURACY, log)
    assert accuracy > 0.8
    assert re.findall(r"learning rate of epoch \d was ([\d.e-]+)", log) == [
        "0.001",
        "0.001",
        "0.001",
        "0.0001",
    ]
    run_dir = launcher.launches[0].run_dir
    assert len(list(run_dir.glob("ckpt_*"))) == 4
    assert list(run_dir.glob("logs/**/events*"))
    alone = launcher.run(EXAMPLES / "mnist_cnn.py", "--quick", "--evaluate", run_dir / "mnist_cnn.dtrain")
    assert alone.end() == 0, alone.err
    assert re.search(f"^{ACCURACY}.*$", log, re.M)[0] in alone.out, "the same with and without the cluster"


def test_tuned_trial(output):
    words = (
        "--n_hidden",
        "2",
        "--n_neurons",
        "30",
        "--learning_rate",
        "0.01",
        "--optimizer",
        "adam",
        "--epochs",
        "4",
    )
    fresh = (
        "--ps",
        "1",
        "--no-evaluator",
        "--updates",
        "sync",
    )  # on a loaded machine, a gradient may be of weights long past
    log = output(*fresh, EXAMPLES / "tuned_trial.py", "--quick", *words)
    reports = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert [report["global_step"] for report in reports] == [45, 90, 135, 180]
    assert {report["metric"] for report in reports} == {"accuracy"}
    assert reports[-1]["value"] > 0.8


def test_a_study_of_tuned_trials(launcher):
    study = (EXAMPLES / "tuned_trial.study.yaml").read_text()
    assert "max_trial_count: 20" in study
    (launcher.folder / "study.yaml").write_text(study.replace("max_trial_count: 20", "max_trial_count: 4"))
    command = launcher.dtrain(
        "tune", "study.yaml", str(EXAMPLES / "tuned_trial.py"), "--quick", "--epochs", "3"
    )
    assert command.end() == 0, command.err
    best = launcher.dtrain("tune", "best", "digits-search", "--json")
    assert best.end() == 0, best.err
    assert json.loads(best.out)["value"] > 0.9
    is_of("tune", json.loads(best.out))
    shown = launcher.dtrain("tune", "status", "digits-search", "--json")
    assert shown.end() == 0, shown.err
    is_of("tune", json.loads(shown.out))


def test_own_model(output):
    (error,) = numbers(r"not seen: ([\d.]+)", output(EXAMPLES / "own_model.py"))
    assert error < 0.2


def test_coordinator_loop(output):
    words = ("--workers", "2", "--ps", "2", "--no-evaluator", EXAMPLES / "coordinator_loop.py")
    log = output(*words, "--epochs", "3")
    assert numbers(r"held-out accuracy ([\d.]+)", log)[-1] > 0.9
    assert numbers(r"(\d+) examples", log) == [3840, 7680, 11520]


def test_torch_mlp(output):
    pytest.importorskip("torch")
    (accuracy,) = numbers(ACCURACY, output(EXAMPLES / "torch_mlp.py", "--quick"))
    assert accuracy > 0.9


def test_every_example_is_run_here():
    tests = {name.removeprefix("test_") + ".py" for name in globals() if name.startswith("test_")}
    assert {path.name for path in EXAMPLES.glob("*.py")} <= tests | NO_PROGRAMS


# The files of the image examples


@pytest.fixture
def images(monkeypatch):
    """The module that the image examples share."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delenv("DTRAIN_DATA", raising=False)
    for name in ("images", "digits"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("images")


def arguments(**given):
    return Namespace(**{"dataset": "mnist", "data": None, "quick": False, **given})


def write_idx(path, array):
    content = (
        bytes([0, 0, 8, array.ndim])
        + np.array(array.shape, ">i4").tobytes()
        + array.astype(np.uint8).tobytes()
    )
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files_are_read(images, tmp_path, ending):
    pixels = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    for prefix in ("train", "t10k"):
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte{ending}", pixels)
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte{ending}", np.array([7, 2]))
    (x, y), _ = images.load(arguments(data=str(tmp_path)))
    np.testing.assert_allclose(x * 255, pixels, rtol=1e-6)
    assert y.tolist() == [7, 2]


def test_without_files_it_says_how_to_get_them(images, tmp_path):
    with pytest.raises(SystemExit, match=r"no mnist files in .*; try --quick(.|\n)*https://"):
        images.load(arguments(data=str(tmp_path)))
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"PNG!")
    with pytest.raises(SystemExit, match="expected an idx file"):
        images.load(arguments(data=str(tmp_path)))


def test_quick_is_what_is_shipped(images):
    (x, y), (x_test, y_test) = images.load(arguments(quick=True))
    assert (len(x), x.shape[1:], x.max()) == (len(y), (8, 8), 1)
    assert len(x_test) == len(y_test) == 1797 - len(x)
