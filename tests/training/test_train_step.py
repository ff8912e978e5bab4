"""Steps of one's own, and models made of functions: they train as a model of layers does."""

from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import dtrain as dt
from dtrain.config import training_section
from dtrain.errors import InputError, ProgramError
from dtrain.strategies.single import SingleStrategy
from dtrain.training.parts import Batch
from dtrain.training.steps import EvaluationStep

X = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
Y = (X @ [[1.0], [-2.0], [0.5]] + 1).astype(np.float32)


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


def trained(made, **fit):
    made.compile(optimizer=dt.optimizers.SGD(0.1), loss="mse")
    made.set_weights([np.full(spec.shape, 0.1) for spec in made.variables])
    history = made.fit(X, Y, batch_size=8, epochs=3, verbose=0, shuffle=False, **fit).history
    return made.get_weights(), history


def model(cls=dt.Sequential):
    return cls(
        [dt.layers.Dense(4, activation="tanh", input_shape=(3,)), dt.layers.Dense(1, kernel_regularizer="l2")]
    )


def assert_same(found, expected):
    for one, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    np.testing.assert_allclose(found[1]["loss"], expected[1]["loss"], rtol=1e-5)


class InTwoHalves(dt.Sequential):
    def train_step(self, step):
        error = step.forward() - step.y
        step.backward(2 * error / error.size)
        return {"loss": np.mean(error**2) + self.network.regularization_loss(step.weights)}


class TwoHalfBatches(dt.Sequential):
    """Gradients add up, over the smaller parts of a batch; the penalty counts with each."""

    def train_step(self, step):
        half = len(step.x) // 2
        losses = [
            step.loss_and_gradients(step.x[part], step.y[part]) for part in (slice(half), slice(half, None))
        ]
        for gradient in step.gradients.values():
            gradient /= 2
        return {"loss": np.mean(losses)}


@pytest.mark.parametrize("cls", [InTwoHalves, TwoHalfBatches])
def test_steps_that_compute_the_same_train_the_same(cls):
    assert_same(trained(model(cls)), trained(model()))


BETWEEN = {
    "predict_on_batch": lambda model, step: model.predict_on_batch(X + 1),
    "predict": lambda model, step: model.predict(X + 1, batch_size=5, verbose=0),
    "call": lambda model, step: model(X[:3]),
    "evaluate": lambda model, step: model.evaluate(X + 1, Y, verbose=0),
    "test_on_batch": lambda model, step: model.test_on_batch(X - 1, Y),
    "of a part": lambda model, step: dt.Model(model.input, model.layers[0].output).predict(X - 1),
    "forward": lambda model, step: EvaluationStep(model, None, Batch(X - 1), step.weights).forward(),
    "loss": lambda model, step: EvaluationStep(
        model, model.compiled.losses, Batch(X - 1, Y), step.weights
    ).compute_loss(),
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_what_runs_between_forward_and_backward_changes_no_gradient(between):
    class Interrupted(dt.Sequential):
        def train_step(self, step):
            error = step.forward() - step.y
            between(self, step)
            step.backward(2 * error / error.size)
            return {"loss": np.mean(error**2) + self.network.regularization_loss(step.weights)}

    assert_same(trained(model(Interrupted)), trained(model(InTwoHalves)))


def test_gradients_that_are_added_between_forward_and_backward_are_added():
    class Twice(dt.Sequential):
        def train_step(self, step):
            error = step.forward() - step.y
            loss = step.loss_and_gradients(step.x[:4], step.y[:4])
            step.forward()
            step.backward(2 * error / error.size)
            step.loss_and_gradients(step.x[4:], step.y[4:])
            return {"loss": loss}

    class OneAfterTheOther(dt.Sequential):
        def train_step(self, step):
            loss = step.loss_and_gradients(step.x[:4], step.y[:4])
            step.loss_and_gradients(step.x[4:], step.y[4:])
            step.loss_and_gradients()
            return {"loss": loss}

    assert_same(trained(model(Twice)), trained(model(OneAfterTheOther)))


def test_gradients_may_be_changed_and_numbers_reported():
    class Clipped(dt.Sequential):
        def train_step(self, step):
            loss = step.loss_and_gradients()
            for gradient in step.gradients.values():
                np.clip(gradient, -0.01, 0.01, out=gradient)
            return {"loss": loss, "half": loss / 2}

    weights, history = trained(model(Clipped))
    assert max(np.abs(weight - 0.1).max() for weight in weights) <= 6 * 0.1 * 0.01 + 1e-6
    np.testing.assert_allclose(np.array(history["loss"]) / 2, history["half"])


def test_gradients_begin_at_zero_in_every_step():
    class Constant(dt.Sequential):
        def train_step(self, step):
            for gradient in step.gradients.values():
                gradient += 1
            return {"loss": 0.0}

    weights, _ = trained(model(Constant))
    for weight in weights:
        np.testing.assert_allclose(weight, 0.1 - 6 * 0.1, rtol=1e-5)


def test_gradients_may_be_written_in_place_and_add_up():
    class Written(dt.Sequential):
        def train_step(self, step):
            for _ in range(2):
                names = step.write_gradients(
                    lambda places: [place.fill(1) or name for name, place in places.items()]
                )
            assert names == list(step.gradients)
            return {"loss": 0.0}

    weights, _ = trained(model(Written))
    for weight in weights:
        np.testing.assert_allclose(weight, 0.1 - 2 * 6 * 0.1, rtol=1e-5)


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (lambda self, step: {"loss": 1.0}, ProgramError, "expected gradients"),
        (
            lambda self, step: step.loss_and_gradients(),
            ProgramError,
            "expected a dict of numbers with 'loss'",
        ),
        (lambda self, step: step.backward(np.ones((8, 1))), ProgramError, "call forward before"),
        (
            lambda self, step: (step.forward(), step.backward(np.ones((8, 2)))),
            InputError,
            r"expected \[\(8, 1\)\], found \[\(8, 2\)\]",
        ),
        (lambda self, step: step.add_gradients({"x": 1}), InputError, "expected gradients of .* found"),
    ],
)
def test_a_step_that_forgets_something_is_told(step, error, message):
    with pytest.raises(error, match=message):
        trained(model(type("Mine", (dt.Sequential,), {"train_step": step})))


def test_moving_averages_follow_from_a_step_of_ones_own():
    class Mine(dt.Sequential):
        def train_step(self, step):
            error = step.forward() - step.y
            step.backward(2 * error / error.size)
            return {"loss": np.mean(error**2)}

    def normalized(cls):
        return cls([dt.layers.BatchNormalization(input_shape=(3,)), dt.layers.Dense(1)])

    assert_same(trained(normalized(Mine)), trained(normalized(dt.Sequential)))


def test_evaluation_and_prediction_of_ones_own():
    class Mine(dt.Sequential):
        def test_step(self, step):
            step.outputs = step.forward() * 0
            return {"loss": 7.0, "examples": len(step.x)}

        def predict_step(self, step):
            return step.forward() + 100

    made, plain = model(Mine), model()
    for each in (made, plain):
        each.compile(loss="mse", metrics=["mae"])
    plain.set_weights(made.get_weights())
    assert made.evaluate(X, Y, batch_size=8, return_dict=True) == {
        "loss": 7.0,
        "examples": 8.0,
        "mae": pytest.approx(np.abs(Y).mean()),
    }
    np.testing.assert_allclose(made.predict(X), plain.predict(X) + 100)


def linear(**more):
    def loss_and_gradients(weights, x, y):
        error = x @ weights["kernel"] + weights["bias"] - y
        gradients = {"kernel": 2 * x.T @ error / error.size, "bias": 2 * error.mean(axis=0)}
        return (
            np.mean(error**2),
            gradients,
            *([{"seen": weights["seen"] + len(x)}] if "state" in more else []),
        )

    def init(rng):
        state = {"seen": np.zeros((), np.int64)} if "state" in more else {}
        return {
            "kernel": rng.normal(size=(3, 1)).astype(np.float32),
            "bias": np.zeros(1, np.float32),
            **state,
        }

    return dt.from_function(init, loss_and_gradients, **more)


def test_functions_train_as_the_layer_that_computes_the_same():
    layer = dt.Sequential([dt.layers.Dense(1, input_shape=(3,))])
    assert_same(trained(linear()), trained(layer))


def test_a_model_of_functions_evaluates_predicts_and_keeps_state():
    made = linear(state=["seen"], predict=lambda weights, x: x @ weights["kernel"] + weights["bias"])
    made.compile(dt.optimizers.SGD(0.1), metrics=["mae"])
    history = made.fit((X, Y), batch_size=8, epochs=20, validation_data=(X, Y), verbose=0).history
    assert history["val_loss"][-1] < 0.1 < history["val_loss"][0]
    loss, mae = made.evaluate(X, Y)
    assert loss == pytest.approx(np.mean((made.predict(X) - Y) ** 2), rel=1e-5)
    assert mae == pytest.approx(history["val_mae"][-1])
    assert made.arrays["seen"] == 20 * 16


def test_first_values_of_functions_are_the_seeds():
    assert np.array_equal(linear().get_weights()[0], linear().get_weights()[0])
    with SingleStrategy(training=training_section(seed=1)).scope():
        other = linear()
    assert not np.array_equal(other.get_weights()[0], linear().get_weights()[0])


def test_what_functions_cannot_do_is_said():
    made = linear()
    made.compile("sgd")
    with pytest.raises(InputError, match="given no predict"):
        made.predict(X)
    with pytest.raises(InputError, match="has no layers"):
        made.summary()
    with pytest.raises(
        InputError, match="count: expected floats to train, or its name in `state`; found int64"
    ):
        dt.from_function(lambda rng: {"count": np.zeros(1, int)}, lambda weights, x, y: (0.0, {}))
    wrong = dt.from_function(lambda rng: {"a": np.zeros(2)}, lambda weights, x, y: (0.0, {"a": np.zeros(3)}))
    wrong.compile("sgd")
    with pytest.raises(InputError, match=r"a: expected a gradient of shape \(2,\), found \(3,\)"):
        wrong.fit(X, Y, verbose=0)


CLUSTER_PROGRAM = """
    import sys
    sys.path.insert(0, {tests!r})
    import numpy as np
    import dtrain as dt
    from training.test_train_step import InTwoHalves, X, Y, model

    strategy = dt.get_strategy()
    with strategy.scope():
        made = [model(cls) for cls in (dt.Sequential, InTwoHalves)]
        for each in made:
            each.compile(dt.optimizers.SGD(0.1), "mse")
            each.fit(X, Y, batch_size=4, epochs=5, verbose=0, shuffle=False)
    if strategy.is_leader:
        for one, other in zip(*(each.get_weights() for each in made), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
        print("the same")
"""


def test_a_step_of_ones_own_on_a_cluster(launcher):
    (launcher.folder / "train.py").write_text(
        dedent(CLUSTER_PROGRAM.format(tests=str(Path(__file__).parents[1])))
    )
    launch = launcher.start("--updates", "sync", "--workers", "1", "--no-evaluator", "train.py")
    assert launch.end() == 0, launch.err
    assert "the same" in launch.log("chief:0")
