"""Layers, models, losses, steps and loops that programs write: TensorFlow's numbers."""

import ast
import json
import subprocess
import sys

import numpy as np
import pytest
from clusters.watching import succeeded
from keras.written_programs import PROGRAMS, REFERENCE

import dtrain as dt
from dtrain.errors import ProgramError

EXPECTED = json.loads(REFERENCE.read_text())


def assert_close(given, expected, where):
    if isinstance(expected, dict):
        assert set(given) == set(expected), where
        for name, each in expected.items():
            assert_close(given[name], each, f"{where}: {name}")
    elif isinstance(expected, list) and any(not isinstance(each, float) for each in expected):
        for number, pair in enumerate(zip(given, expected, strict=True)):
            assert_close(*pair, f"{where} {number}")
    elif expected is None:
        assert given is None
    else:
        assert np.all(np.isfinite(expected)), f"{where}: TensorFlow's number says nothing"
        np.testing.assert_allclose(given, expected, rtol=2e-4, atol=1e-6, err_msg=where)


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_tensorflow_s(name):
    assert_close(PROGRAMS[name](dt, dt), EXPECTED[name], name)


class Block(dt.Model):
    def __init__(self):
        super().__init__()
        self.dense = dt.layers.Dense(4)
        self.norm = dt.layers.BatchNormalization(momentum=0.5)

    def call(self, x, training=None):
        return self.norm(self.dense(x), training=training)


class Outer(dt.Model):
    def __init__(self):
        super().__init__()
        self.last = dt.layers.Dense(4)
        self.blocks = [Block(), Block()]
        self.first = dt.layers.Dense(4)

    def call(self, x, training=None):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, training=training)
        return self.last(x)


def test_a_model_within_a_model_is_told_the_phase_and_weights_follow_the_attributes(tmp_path):
    """Normalization within is by moving averages in inference; Keras lists weights by attributes."""
    model = Outer()
    model.compile("sgd", "mse")
    x = np.cos(np.arange(96, dtype=np.float32)).reshape(24, 4)
    model.fit(x, x, epochs=2, batch_size=8, verbose=0)
    values = [each.numpy() for each in model.trainable_variables]
    averages = [each.numpy() for each in model.non_trainable_variables]
    last, (one, other), first = values[:2], (values[2:6], values[6:10]), values[10:]
    y = x @ first[0] + first[1]
    for (kernel, bias, gamma, beta), mean, variance in zip(
        (one, other), averages[::2], averages[1::2], strict=True
    ):
        y = (y @ kernel + bias - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    expected = y @ last[0] + last[1]
    np.testing.assert_allclose(model.predict(x, batch_size=5, verbose=0), expected, atol=1e-5)
    model.save(tmp_path / "model")
    again = dt.load_model(tmp_path / "model")
    again.set_weights(model.get_weights())
    np.testing.assert_allclose(again.predict(x, verbose=0), expected, atol=1e-5)


class Scaled(dt.layers.Layer):
    def build(self, input_shape):
        self.scale = self.add_weight(name="scale", shape=(input_shape[-1],), initializer="ones")
        self.inner = dt.layers.Dense(3, activation="tanh")

    def call(self, x):
        return self.inner(x * self.scale) + x * self.scale


def test_gradients_of_a_tape_go_through_layers_of_ones_own():
    """As far as finite differences; a tape that is open while a layer's `call` runs does not disturb it."""
    model = dt.Sequential([dt.Input((3,)), dt.layers.Dense(3), Scaled(), Scaled()])
    x = np.cos(np.arange(12, dtype=np.float32)).reshape(4, 3)
    dt.utils.check_gradients(model, x)
    values = dict(zip(model.trainable_variables, model.get_weights(), strict=True))
    with dt.GradientTape() as tape:
        loss = dt.reduce_sum(dt.square(model(x)))
    gradients = tape.gradient(loss, [*values])
    for variable, gradient in zip(values, gradients, strict=True):
        direction = np.sign(np.asarray(gradient)) + (np.asarray(gradient) == 0)
        ends = []
        for step in (0.01, -0.01):
            variable.assign(values[variable] + step * direction)
            ends.append(float(np.sum(np.square(model.predict(x, verbose=0), dtype=np.float64))))
        variable.assign(values[variable])
        expected = (ends[0] - ends[1]) / 0.02
        np.testing.assert_allclose(np.sum(np.asarray(gradient) * direction), expected, rtol=0.01, atol=0.01)
        assert np.any(np.asarray(gradient))


PROGRAM = """
import numpy as np
import dtrain as dt

X = np.cos(np.arange(96, dtype=np.float32)).reshape(24, 4)


class Net(dt.Model):
    def __init__(self):
        super().__init__()
        self.first = dt.layers.Dense(5, activation="relu")
        self.bent = dt.layers.Lambda(lambda t: dt.math.log(1.0 + dt.exp(t)))
        self.last = dt.layers.Dense(1)

    def call(self, x, training=None):
        return self.last(self.bent(self.first(x)))

    def train_step(self, data):
        x, y = data
        with dt.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.compiled_metrics.update_state(y, predicted)
        return {each.name: each.result() for each in self.metrics}


class WarmUp(dt.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.01 * dt.minimum(1.0, (step + 1) / 4)


def squared(y_true, y_pred):
    return dt.reduce_mean(dt.square(y_true - y_pred), axis=-1)


model = Net()
model.compile(dt.optimizers.SGD(WarmUp()), squared, metrics=["mae"])
history = model.fit(X, X[:, :1] * 2, epochs=2, batch_size=8, shuffle=False, verbose=0).history
print({name: [round(float(each), 4) for each in values] for name, values in history.items()})
"""


@pytest.mark.parametrize("how", ["sync", "async"])
def test_it_trains_on_servers_which_know_no_function_of_the_program(launcher, how):
    (launcher.folder / "p.py").write_text(PROGRAM)
    started = launcher.start("--workers", "1", "--no-evaluator", "--updates", how, "p.py")
    succeeded(started)
    lines = {line.partition("| ")[2] for line in started.out.splitlines() if "{'loss'" in line}
    assert len(lines) == 1
    if how == "sync":
        path = launcher.folder / "p.py"
        alone = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
        expected, found = ast.literal_eval(alone.stdout), ast.literal_eval(lines.pop())
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, atol=2e-4)


WITHOUT = """
import sys
sys.modules["autograd"] = None
import numpy as np
import dtrain as dt
x = dt.Input((4,))
y = dt.layers.Dense(4)(x) * 2 + x
model = dt.Model(x, dt.concat([y, -y], 1))
model.compile("sgd", "mse")
model.fit(np.ones((4, 4)), np.ones((4, 8)), verbose=0)
dt.Model(x, dt.reduce_mean(y, 1, keepdims=True)).predict(np.ones((4, 4)))
try:
    with dt.GradientTape() as tape:
        tape.gradient(dt.Variable(2.0) * 3, [])
except dt.errors.ProgramError as error:
    print(error)
"""


def test_without_the_extra_the_program_gets_one_sentence_and_graphs_of_layers_train():
    run = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert "pip install dtrain[autograd]" in run.stdout


LAYER_ALONE = """
import numpy as np
import dtrain as tf

X = np.cos(np.arange(24, dtype=np.float32)).reshape(6, 4)
dense = tf.layers.Dense(1, kernel_initializer="ones")
optimizer = tf.optimizers.SGD(0.1)
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.losses.mse(2 * X.sum(1, keepdims=True), dense(X)))
    variables = dense.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    print(round(float(loss.numpy()), 3))
"""


def test_a_layer_alone_trains_in_a_loop_of_a_program_without_a_model():
    run = subprocess.run([sys.executable, "-c", LAYER_ALONE], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [
        "1.607",
        "1.172",
        "0.865",
    ]  # what it prints with `import tensorflow as tf`


class Asking(dt.Model):
    def __init__(self, *, dropped):
        super().__init__()
        self.dense = dt.layers.Dense(2, kernel_initializer="ones")
        self.other = dt.layers.Dropout(0.5) if dropped else dt.layers.Dense(2)

    def call(self, x, training=None):
        x = self.dense(x + x)
        if training:
            x = self.other(x, training=training)
        return x * 2


def test_a_model_asks_whether_it_trains():
    given = np.ones((2, 3), np.float32)
    model = Asking(dropped=True)
    np.testing.assert_array_equal(model(given), np.full((2, 2), 12.0))
    assert set(np.unique(model(np.ones((50, 3), np.float32), training=True)).tolist()) == {0.0, 24.0}
    with pytest.raises(ProgramError, match="do nothing in inference, such as Dropout"):
        Asking(dropped=False)(given)


def test_what_a_tape_cannot_do_is_one_sentence():
    x = dt.Variable(2.0)
    with dt.GradientTape() as tape:
        y = x * x
    tape.gradient(y, x)
    with pytest.raises(ProgramError, match="persistent=True"):
        tape.gradient(y, x)
    dense = dt.layers.Dense(1)
    given = np.ones((2, 3), np.float32)
    with dt.GradientTape() as outer:
        seen = outer.watch(given)
        with dt.GradientTape() as inner:
            inner.watch(seen)
            out = dense(seen)
        first = inner.gradient(out, seen)
    with pytest.raises(ProgramError, match="second derivatives"):
        outer.gradient(first, seen)
