"""A program that runs without a launcher ends with its own lines, not with the calls inside dtrain."""

import subprocess
import sys

import pytest

MODEL = """
model = dt.Sequential([dt.layers.Dense(1, input_shape=(3,))])
model.compile("sgd", "mse")
model.fit(data, steps_per_epoch=2)
"""
IN_A_MAP = """
import numpy as np
import dtrain as dt
rows = np.ones((32, 3), np.float32), np.ones((32, 1), np.float32)
data = dt.data.Dataset.from_tensor_slices(rows).map(lambda x, y: (x / undefined, y)).batch(4)
"""
NO_FILE = """
import dtrain as dt
data = dt.data.TFRecordDataset("nofile.tfrecord").map(lambda record: (record, 1)).batch(4)
"""


def run(text, folder, **variables):
    (folder / "program.py").write_text(text + MODEL)
    found = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 1
    return found.stderr


@pytest.mark.parametrize(
    ("text", "lines", "last"),
    [
        (
            IN_A_MAP,
            ["model.fit(data", "calls inside dtrain", "in <lambda>", "x / undefined"],
            "NameError: name 'undefined' is not defined",
        ),
        (
            NO_FILE,
            ["model.fit(data"],
            "dtrain.errors.InputError: nofile.tfrecord: cannot be read: No such file or directory.",
        ),
    ],
)
def test_a_mistake_shows_the_programs_lines(tmp_path, text, lines, last):
    said = run(text, tmp_path).rstrip("\n").split("\n")
    assert said[-1] == last
    assert len(said) <= 10, said
    for words in lines:
        assert any(words in line for line in said), said
    assert not any("/dtrain/" in line for line in said), said


def test_the_whole_traceback_is_there_for_who_asks(tmp_path):
    assert "/dtrain/data/" in run(NO_FILE, tmp_path, DTRAIN_FULL_TRACEBACK="1")


def test_a_programs_own_hook_is_left_alone(tmp_path):
    own = "import sys\nsys.excepthook = lambda kind, error, trace: print('mine', file=sys.stderr)\n"
    assert run(own + NO_FILE, tmp_path) == "mine\n"


COUNT = """
import sys
import numpy as np
import dtrain as dt
x, y = np.ones((64, 8), np.float32), np.zeros(64, np.int64)
with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(16, activation="relu"), dt.layers.Dense(10)])
    loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=dt.optimizers.Adagrad(0.05), loss=loss, metrics=["accuracy"])
model.fit(x, y, batch_size=32, validation_data=(x, y))
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "dtrain"))
"""


def test_a_program_loads_only_the_strategy_and_the_layers_that_it_uses(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", COUNT], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    loaded = run.stdout.splitlines()[-1].split()
    unused = ("multi_worker_mirrored", "parameter_server", "mirrored", "coordinator", "evaluator")
    unused += ("recurrent", "preprocessing", "collectives", "distribute", "experimental")
    assert not [name for name in loaded if set(name.split(".")) & set(unused)]
    assert len(loaded) <= 240
