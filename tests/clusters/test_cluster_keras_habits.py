"""Habits of Keras programs on a real cluster: save and load in every task, evaluators and data that have no
end.
"""

import re
import subprocess
import sys

import pytest

import dtrain as dt
from dtrain.runs.claims import NAME
from dtrain.strategies.single import SingleStrategy

SAVING = """
import sys
from pathlib import Path
import numpy as np
import dtrain as dt

x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(32, 1)
strategy = dt.get_strategy()
with strategy.scope():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse")
model.fit(x, 3 * x, epochs=2, batch_size=4, verbose=0, validation_data=(x, 3 * x),
          callbacks=[dt.callbacks.ModelCheckpoint("t/cp.ckpt", save_weights_only=True)])
own = 100.0 + max(strategy.rank, 0) + 10 * strategy.evaluates
model.set_weights([np.full((1, 1), own), np.zeros(1)])
model.save("s/m")
with strategy.scope():
    [kernel, _] = dt.load_model("s/m").get_weights()
assert kernel == own, (kernel, own)
model.set_weights([np.zeros((1, 1)), np.ones(1)])
model.save_weights(Path("s/w").absolute())
model.set_weights([np.ones((1, 1)), np.ones(1)])
model.load_weights("s/w")
assert model.get_weights()[0] == 0
model.save("s/m", overwrite=True)
try:
    model.save("s/m", overwrite=False)
except dt.errors.CheckpointError:
    pass
else:
    raise AssertionError("it is there")
model.load_weights("given")
assert model.get_weights()[0] == 7
if strategy.is_leader:
    model.load_weights("t/cp.ckpt")
print("all is well", flush=True)
"""


def test_a_task_reads_what_it_has_saved(launcher):
    folder = launcher.folder
    (folder / "program.py").write_text(SAVING)
    with SingleStrategy().scope():
        given = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    given.set_weights([[[7.0]], [0.0]])
    given.save_weights(folder / "given")
    launch = launcher.start("--workers", "1", "--ps", "1", "--set", "success=all_workers", "program.py")
    assert launch.end() == 0, launch.err
    for task in ("chief:0", "worker:0", "evaluator:0"):
        assert "all is well" in launch.log(task), launch.err
    launch.wait_gone()
    assert [path.name for path in sorted(folder.glob("[st]/*"))] == ["m", "w", "cp.ckpt"]
    assert not list(launch.run_dir.rglob("m")), "what other tasks save is thrown away"
    assert not list(launch.run_dir.glob("*thrown-away*"))


UNTRAINED = """
import numpy as np
import dtrain as dt

x = np.ones((8, 1))
model = dt.Sequential([dt.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x, epochs=1, verbose=0)
print("result", model.evaluate(x, x, verbose=0), flush=True)
"""


def test_an_evaluator_without_validation_data_says_so_and_ends(launcher):
    (launcher.folder / "program.py").write_text(UNTRAINED)
    launch = launcher.start("--workers", "1", "--ps", "1", "program.py")
    assert launch.end() == 0, launch.err
    assert "result" in launch.log("chief:0")
    [line] = launch.log("evaluator:0").splitlines()
    assert line == "the evaluator ends: fit was given no validation_data to evaluate"
    assert launch.task("evaluator:0")["exit_code"] == 0
    assert launch.task("evaluator:0")["state"] == "succeeded"
    assert "failed" not in launch.err
    launch.wait_gone()


ENDLESS = """
import numpy as np
import dtrain as dt

x = np.ones((8, 1))
data = dt.data.Dataset.from_tensor_slices((x, x)).repeat().batch(4)
model = dt.Sequential([dt.layers.Dense(1)])
model.compile("sgd", "mse")
if dt.get_strategy().evaluates or not dt.get_strategy().has_evaluator:
    model.fit(x, x, verbose=0, validation_data=data)
    raise AssertionError("it was not refused")
model.fit(x, x, verbose=0, validation_data=(x, x))
"""


@pytest.mark.parametrize("evaluator", ["--evaluator", "--no-evaluator"])
def test_validation_data_without_end_are_refused_at_once(launcher, evaluator):
    (launcher.folder / "program.py").write_text(ENDLESS)
    launch = launcher.start("--workers", "1", "--ps", "1", evaluator, "program.py")
    code = launch.end()
    alone = evaluator == "--no-evaluator"
    assert code == (1 if alone else 0), launch.err
    log = launch.log("chief:0" if alone else "evaluator:0")
    assert "InputError: fit: validation_data: the dataset is infinite; expected validation_steps" in log
    launch.wait_gone()


SHARED = """
import sys
import numpy as np
import dtrain as dt

x = np.ones((8, 1))
model = dt.Sequential([dt.layers.Dense(1)])
model.compile("sgd", "mse")
paths = set(sys.argv[1:])
callbacks = [dt.callbacks.ModelCheckpoint("c")] if "c" in paths else []
callbacks += [dt.callbacks.CSVLogger("l")] if "l" in paths else []
model.fit(x, x, verbose=0, callbacks=callbacks)
if "m" in paths:
    model.save("m")
"""
HOLD = """
from dtrain.runs.claims import claim
for path in "mcl":
    claim(path, "first-run")
print("claimed", flush=True)
input()
"""


def test_a_second_run_that_writes_the_same_path_is_refused(launcher):
    """Where a program saves a model, and where callbacks write; when the first run has ended none is."""
    (launcher.folder / "program.py").write_text(SHARED)
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        cwd=launcher.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout.readline() == "claimed\n"
    words = ("--workers", "1", "--ps", "1", "--no-evaluator", "program.py")
    for path, launch in [(path, launcher.start(*words, path)) for path in "mcl"]:
        assert launch.end() == 2, launch.err
        said = (
            rf"RunInUseError: {path} is written by run first-run \(process {first.pid}\), which has not ended"
        )
        assert re.search(said, launch.log("chief:0"))
        assert not (launcher.folder / path).exists()
    first.communicate("\n")
    launch = launcher.start(*words, *"mcl")
    assert launch.end() == 0, launch.err
    assert all((launcher.folder / path).exists() for path in "mcl")
    assert not (launcher.folder / NAME).exists()
    launch.wait_gone()


FINITE = """
import numpy as np
import dtrain as dt

def rows():
    for number in range(18):
        yield np.float32([number / 20, 1]), np.float32(number / 20)

data = dt.data.Dataset.from_generator(rows, output_types=("float32", "float32"), output_shapes=((2,), ())).batch(4)
with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
    model.compile("sgd", "mse")
history = model.fit(data, epochs=2, verbose=0).history
print("epochs", len(history["loss"]), "steps", int(model.optimizer.iterations), flush=True)
"""


@pytest.mark.parametrize(
    "options", [["--updates", "sync", "--ps", "1"], ["--strategy", "multi_worker_mirrored"]]
)
def test_an_epoch_over_data_of_unknown_length_is_the_data_once(launcher, options):
    (launcher.folder / "program.py").write_text(FINITE)
    launch = launcher.start("--workers", "1", "--no-evaluator", *options, "program.py")
    assert launch.end() == 0, launch.err
    assert "at step 10" in launch.err
    told = [line for line in launch.out.splitlines() if "epochs 2 steps 10" in line]
    assert len(told) == 2, launch.out
    launch.wait_gone()
