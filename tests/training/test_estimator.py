"""`train_and_evaluate`: what one process and a cluster evaluate and keep."""

import re

import numpy as np
import pytest
from msgspec.structs import replace

import dtrain as dt
from dtrain.errors import InputError
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
