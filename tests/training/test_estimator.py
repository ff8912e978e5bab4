"""`train_and_evaluate`: what one process and a cluster evaluate and keep."""

import re

import numpy as np
import pytest
from msgspec.structs import replace

import dtrain as dt
import dtrain.compat.v1 as tf1
from dtrain.errors import InputError, SpecError
from dtrain.strategies.single import SingleStrategy

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(8, 1)


def batches():
    return dt.data.Dataset.from_tensor_slices((X, 3 * X)).batch(4)


def endless():
    return batches().repeat()


def model_fn():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    model.compile(dt.optimizers.SGD(0.1), "mse")
    return model


def test_one_process_exports_the_final_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = dt.EvalSpec(
        batches,
        steps=None,
        exporters=[dt.FinalExporter("final"), dt.BestExporter(), dt.LatestExporter("latest")],
    )
    with SingleStrategy().scope():
        estimator = dt.Estimator(model_fn)
        results, kept_in = dt.train_and_evaluate(estimator, dt.TrainSpec(endless, 20), spec)
        assert results["global_step"] == 20
        assert [path.name for path in kept_in] == ["20.dtrain"] * 3
        for name in ("final", "best_exporter", "latest"):
            kept = dt.load_model(tmp_path / "export" / name / "20.dtrain")
            assert kept.evaluate(batches()) == pytest.approx(results["loss"])
    np.testing.assert_array_equal(kept.get_weights()[0], estimator._made["train"].model.get_weights()[0])


def test_an_exporter_keeps_the_newest_of_those_it_wants(tmp_path):
    with SingleStrategy().scope() as strategy:
        strategy.context = replace(strategy.context, directory=tmp_path)
        best, model = dt.BestExporter(exports_to_keep=2), model_fn()
        for step, loss in enumerate([5.0, 6.0, 4.0, 3.0, 3.5]):
            best.export(model, step, {"loss": loss}, is_final=False)
        best.export(model, 4, {"loss": 3.5}, is_final=True)
    assert sorted(path.name for path in (tmp_path / "export" / "best_exporter").iterdir()) == [
        "2.dtrain",
        "3.dtrain",
    ]


def test_the_evaluator_of_a_cluster_exports(launcher):
    program = launcher.folder / "estimate.py"
    program.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(__file__).rsplit('/', 2)[0]!r})\n"
        "import dtrain as dt\n"
        "from training.test_estimator import batches, endless, model_fn\n"
        "spec = dt.EvalSpec(batches, steps=None, exporters=[dt.FinalExporter('final')])\n"
        "results, _ = dt.train_and_evaluate(dt.Estimator(model_fn), dt.TrainSpec(endless, 20), spec)\n"
        "if results: print(f'loss {results[\"loss\"]:.6f}')\n"
    )
    launch = launcher.start("--workers", "1", "--ps", "1", program)
    assert launch.end() == 0, launch.err
    with SingleStrategy().scope():
        kept = dt.load_model(launch.run_dir / "export" / "final" / "20.dtrain")
        assert f"{kept.evaluate(batches()):.6f}" == re.search(r"^loss (.*)$", launch.log("chief:0"), re.M)[1]


LATE_EVALUATOR = """
import json, os, time
from pathlib import Path
import numpy as np
import dtrain as dt

def is_there(pid):
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True

task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
if task == "chief":
    Path("new").write_text(str(os.getpid()))
    Path("new").rename("chief")
while task == "evaluator" and (not Path("chief").exists() or is_there(int(Path("chief").read_text()))):
    time.sleep(0.01)
x = np.ones((8, 1), np.float32)
with dt.ParameterServerStrategy().scope():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse")
model.fit(x, x, batch_size=8, epochs=1, steps_per_epoch=20, validation_data=(x, x), verbose=0)
"""


def test_an_evaluator_that_comes_when_the_chief_has_gone_evaluates_all_the_same(launcher):
    (launcher.folder / "late.py").write_text(LATE_EVALUATOR)
    launch = launcher.start("--workers", "1", "--ps", "2", "late.py")
    assert launch.end() == 0, launch.err
    assert re.search(r"^evaluator:0 \| evaluation at step 20 - ", launch.out, re.M)


def test_specs_that_make_no_sense():
    with pytest.raises(InputError, match="max_steps of at least 1 or None, found 0"):
        dt.TrainSpec(batches, 0)
    with pytest.raises(InputError, match="times of at least 0 s"):
        dt.EvalSpec(batches, start_delay_secs=-1)
    with pytest.raises(InputError, match="exports_to_keep of at least 1"):
        dt.LatestExporter(exports_to_keep=0)


def noted(**changed):
    """A `model_fn` whose EstimatorSpec has other arguments."""

    def of_symbols(features, labels, mode):
        predictions = tf1.layers.dense(features, 1)
        loss = tf1.losses.mean_squared_error(labels, predictions)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        given = {"loss": loss, "train_op": train_op, "predictions": predictions}
        made = {name: change(given) if callable(change) else change for name, change in changed.items()}
        return dt.estimator.EstimatorSpec(mode, **{**given, **made})

    return of_symbols


def test_a_derived_label_is_computed_of_each_batch():
    def model_fn(features, labels, mode):
        predictions = tf1.layers.dense(features, 1, kernel_initializer=tf1.zeros_initializer())
        loss = tf1.losses.mean_squared_error(dt.layers.Rescaling(2.0)(labels), predictions)
        return dt.estimator.EstimatorSpec(
            mode, loss=loss, train_op=tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        )

    with SingleStrategy().scope():
        estimator = dt.Estimator(model_fn).train(batches, steps=1)
        evaluated = estimator.evaluate(batches)
    x, y = X[:4], 6 * X[:4]
    kernel, bias = 0.1 * 2 * np.mean(x * y), 0.1 * 2 * np.mean(y)
    expected = np.mean((kernel * X + bias - 6 * X) ** 2)
    assert evaluated == {"loss": pytest.approx(expected, rel=1e-5), "global_step": 1}


WRONG = {
    "loss: expected what tf1.losses returns for the mode 'train', found float": noted(loss=0.5),
    "train_op: expected what an optimizer's minimize returns": noted(train_op=None),
    r"eval_metric_ops\['off'\]: expected what tf1.metrics returns": noted(eval_metric_ops={"off": 1}),
    "minimize: expected a loss of tf1.losses, found SymbolicTensor": noted(
        train_op=lambda given: tf1.train.AdagradOptimizer(0.1).minimize(given["predictions"])
    ),
    "var_list: give the other layers trainable=False": noted(
        train_op=lambda given: tf1.train.AdagradOptimizer(0.1).minimize(given["loss"], var_list=[])
    ),
    "weights: expected a number, found list": noted(
        loss=lambda given: tf1.losses.hinge_loss(given["predictions"], given["predictions"], weights=[1])
    ),
    "MeanSquaredError: expected labels, found no such argument": noted(
        loss=lambda given: tf1.losses.mean_squared_error(predictions=given["predictions"])
    ),
    "model_fn: expected an EstimatorSpec, found NoneType": lambda features, labels, mode: None,
    "model_fn: expected arguments of features, labels, mode, params, config, found x": lambda x, y: None,
    "a function without arguments returns a compiled dt.Model, found NoneType": lambda: None,
}


@pytest.mark.parametrize("message", WRONG)
def test_a_model_fn_that_makes_no_sense(message):
    with SingleStrategy().scope(), pytest.raises(InputError, match=message):
        dt.Estimator(WRONG[message]).train(batches, steps=1)


def test_calls_that_make_no_sense():
    with SingleStrategy().scope():
        estimator = dt.Estimator(noted())
        with pytest.raises(SpecError, match=r"RunConfig: has no argument session_config; .* no sessions"):
            dt.estimator.RunConfig(session_config=None)
        with pytest.raises(InputError, match="expected a trained model, found no call of train"):
            estimator.evaluate(batches)
        with pytest.raises(InputError, match="give either steps or max_steps"):
            estimator.train(batches, steps=1, max_steps=1)
        with pytest.raises(InputError, match="the dataset has no end; expected steps or max_steps"):
            estimator.train(endless)
        with pytest.raises(InputError, match=r"hooks: expected callbacks of .*, found int"):
            estimator.train(batches, hooks=[3])
        with pytest.raises(SpecError, match="reuse: to share variables, make the layer once"):
            tf1.layers.Dense(1, reuse=True)


def test_names_of_tensorflow_1_that_are_absent_say_what_to_use():
    for module, name, use in (
        (tf1, "Session", "Estimator"),
        (tf1.train, "Supervisor", "get_strategy"),
        (tf1.train, "RMSPropOptimizer", "dt.optimizers.RMSprop"),
        (tf1.losses, "get_total_loss", "add"),
        (dt.estimator, "DNNClassifier", "dt.Sequential"),
        (dt.compat, "v2", "v1"),
    ):
        with pytest.raises(AttributeError, match=use):
            getattr(module, name)
    assert tf1.data is dt.data
    assert isinstance(tf1.layers.MaxPooling2D(2, 2), dt.layers.MaxPooling2D)
    assert tf1.train.latest_checkpoint is dt.train.latest_checkpoint
