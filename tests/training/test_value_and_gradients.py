"""Gradients in loops of one's own: shares of a batch's loss, penalties, own losses, tables, moving averages."""

import numpy as np
import pytest
from row_by_row import every_row
from strategies.shipped import mirrored

import dtrain as dt
from dtrain.distribute import PerReplica, get_replica_context
from dtrain.errors import ContextError, InputError

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(6, 1)).astype(np.float32)
PARTS = PerReplica([X[:4], X[4:], X[:0]]), PerReplica([Y[:4], Y[4:], Y[:0]])


def model(strategy=None, *, penalty=None, units=1):
    with (strategy or dt.get_strategy()).scope():
        made = dt.Sequential(
            [
                dt.Input((3,)),
                dt.layers.Dense(4, activation="tanh", kernel_regularizer=penalty),
                dt.layers.Dense(units),
            ]
        )
        made.compile("sgd", "mse")
    return made


def test_the_shares_of_replicas_add_up_to_the_batch():
    strategy = mirrored(3)
    many, one = model(strategy, penalty="l2"), model(penalty="l2")
    one.set_weights(many.get_weights())

    def step(x, y):
        loss, gradients = many.value_and_gradients("mse", x, y, global_batch_size=6)
        return get_replica_context().all_reduce("SUM", [loss, *gradients])

    found = strategy.experimental_local_results(strategy.run(step, PARTS))[2]
    loss, gradients = one.value_and_gradients("mse", X, Y, global_batch_size=6)
    for each, expected in zip(found, [loss, *gradients], strict=True):
        np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-6)
    assert loss == pytest.approx(one.evaluate(X, Y, verbose=0), rel=1e-5)


@pytest.mark.parametrize("loss", ["mse", dt.losses.MeanSquaredError(reduction="none"), None])
def test_without_a_size_the_loss_is_the_mean_of_the_examples(loss):
    one = model()
    found, _ = one.value_and_gradients(loss, X, Y)
    assert found == pytest.approx(np.mean((one.predict(X) - Y) ** 2), rel=1e-5)


def test_a_summed_loss_is_divided_by_nothing():
    one = model()
    found, _ = one.value_and_gradients(dt.losses.MeanSquaredError(reduction="sum"), X, Y)
    assert found == pytest.approx(np.sum((one.predict(X) - Y) ** 2), rel=1e-5)


def test_gradients_are_those_of_differences():
    one = model(penalty="l2")
    _, gradients = one.value_and_gradients("mse", X, Y)
    for variable, gradient in zip(one.trainable_variables, gradients, strict=True):
        at = (0,) * len(variable.shape)
        value = variable.numpy()
        around = []
        for change in (-1e-2, 1e-2):
            moved = value.copy()
            moved[at] += change
            variable.assign(moved)
            around.append(one.value_and_gradients("mse", X, Y)[0])
        variable.assign(value)
        assert gradient[at] == pytest.approx((around[1] - around[0]) / 2e-2, rel=2e-2, abs=1e-3)


def test_a_function_of_losses_and_their_gradients():
    half = dt.losses.MeanSquaredError()

    def halved(y_true, y_pred):
        losses, gradients = half.of_each(y_true, y_pred)
        return 0.5 * losses, 0.5 * gradients

    one = model()
    loss, gradients = one.value_and_gradients(halved, X, Y)
    whole, doubled = one.value_and_gradients("mse", X, Y)
    assert loss == pytest.approx(whole / 2, rel=1e-6)
    for each, other in zip(gradients, doubled, strict=True):
        np.testing.assert_allclose(2 * each, other, rtol=1e-5)


def test_a_function_without_gradients_is_refused():
    with pytest.raises(InputError, match="expected a pair"):
        model().value_and_gradients(lambda y_true, y_pred: (y_true - y_pred) ** 2, X, Y)


def test_outputs_come_with_the_gradients_if_asked_for():
    one = model()
    *_, outputs = one.value_and_gradients("mse", X, Y, return_outputs=True)
    np.testing.assert_allclose(outputs, one.predict(X), rtol=1e-6)


def test_the_gradient_of_a_table_is_of_its_rows():
    one = dt.Sequential([dt.Input((2,)), dt.layers.Embedding(5, 2), dt.layers.Flatten(), dt.layers.Dense(1)])
    optimizer = dt.optimizers.SGD(0.1)
    before = one.get_weights()[0]
    _, gradients = one.value_and_gradients("mse", np.array([[1, 3]]), Y[:1])
    assert isinstance(gradients[0], dt.SparseRows)
    optimizer.apply_gradients(zip(gradients, one.trainable_variables, strict=True))
    assert set(np.flatnonzero((one.get_weights()[0] != before).any(axis=1))) == {1, 3}


def test_moving_averages_outside_are_the_mean_of_the_replicas():
    strategy = mirrored(2)
    with strategy.scope():
        one = dt.Sequential([dt.Input((3,)), dt.layers.BatchNormalization(momentum=0.5)])
    variables = one.non_trainable_variables
    parts = [X[:4], X[4:]]
    strategy.run(lambda x: one.value_and_gradients("mse", x, x), (PerReplica(parts),))
    means = [0.5 * part.mean(axis=0) for part in parts]
    np.testing.assert_allclose(variables[0].values, means, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.arrays[variables[0].name], np.mean(means, axis=0), rtol=1e-5, atol=1e-6)


def test_without_training_dropout_drops_nothing_and_averages_stay():
    one = dt.Sequential([dt.Input((3,)), dt.layers.Dropout(0.5), dt.layers.BatchNormalization()])
    before = one.get_weights()
    loss, _ = one.value_and_gradients("mse", X, X, training=False)
    assert loss == pytest.approx(np.mean((one.predict(X) - X) ** 2), rel=1e-5)
    for each, other in zip(one.get_weights(), before, strict=True):
        np.testing.assert_array_equal(each, other)


def test_dropout_differs_between_replicas_and_steps_and_follows_from_the_seed():
    def losses():
        strategy = mirrored(2)
        with strategy.scope():
            one = dt.Sequential([dt.Input((64,)), dt.layers.Dropout(0.5)])
        ones = np.ones((1, 64), np.float32)
        found = []
        for _ in range(2):
            run = strategy.run(
                lambda: one.value_and_gradients("mse", ones, 0 * ones, return_outputs=True)[2].tobytes()
            )
            found += run.values
        return found

    first = losses()
    assert len(set(first)) == 4
    assert losses() == first


def test_a_frozen_layer_has_no_gradient():
    one = model()
    one.layers[0].trainable = False
    _, gradients = one.value_and_gradients("mse", X, Y)
    assert [each.name for each in one.trainable_variables] == ["dense_1/kernel", "dense_1/bias"]
    assert [gradient.shape for gradient in gradients] == [(4, 1), (1,)]


def test_weights_set_outside_are_those_of_all_replicas():
    strategy = mirrored(2)
    one = model(strategy)
    variables = one.trainable_variables
    one.set_weights([np.full(each.shape, 0.25, np.float32) for each in variables])
    found = strategy.run(lambda: float(variables[0].numpy().sum()))
    assert found == pytest.approx(3.0)


def test_outside_of_the_replicas_of_several_it_is_refused():
    strategy = mirrored(2)
    one = model(strategy)
    with strategy.scope(), pytest.raises(ContextError, match="in a replica"):
        one.value_and_gradients("mse", X, Y)


def test_fit_goes_on_from_the_weights_of_a_loop_and_a_loop_from_those_of_fit():
    strategy = mirrored(2)
    one = model(strategy)
    optimizer = dt.optimizers.SGD(0.1)

    def step(x, y):
        _, gradients = one.value_and_gradients("mse", x, y, global_batch_size=6)
        optimizer.apply_gradients(zip(gradients, one.trainable_variables, strict=True))

    parts = PerReplica([X[:3], X[3:]]), PerReplica([Y[:3], Y[3:]])
    losses = [one.evaluate(X, Y, verbose=0)]
    for _ in range(3):
        strategy.run(step, parts)
        losses.append(one.evaluate(X, Y, verbose=0))
        one.fit(X, Y, batch_size=6, epochs=1, verbose=0)
        losses.append(one.evaluate(X, Y, verbose=0))
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("size", [-1, 1.5, "6"])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(InputError, match="global_batch_size"):
        model().value_and_gradients("mse", X, Y, global_batch_size=size)


def test_shares_of_losses_know_the_number_of_replicas():
    strategy = mirrored(3)
    found = strategy.run(lambda x: dt.nn.compute_average_loss(x[:, 0]), (PerReplica([X[:2]] * 3),))
    np.testing.assert_allclose(found.values, [X[:2, 0].sum() / 6] * 3, rtol=1e-6)
    assert strategy.run(lambda: float(dt.nn.scale_regularization_loss(3.0))) == 1.0
    with strategy.scope(), pytest.raises(ContextError):
        dt.nn.compute_average_loss(X[:, 0])


def test_metrics_of_replicas_are_added_up_when_they_are_read_outside():
    strategy = mirrored(3)
    metric = dt.metrics.MeanSquaredError()
    strategy.run(lambda y: metric.update_state(y, 0 * y), (PARTS[1],))
    assert metric.result() == pytest.approx(np.mean(Y**2), rel=1e-6)
    metric.reset_state()
    assert metric.result() == 0


def adam_model(strategy):
    with strategy.scope():
        made = dt.Sequential([dt.Input((3,)), dt.layers.Dense(1, kernel_initializer="ones")])
        made.compile(dt.optimizers.Adam(0.05), "mse")
    return made


def loop(strategy, made, steps):
    """Steps over the whole batch, by the model's compiled optimizer."""
    half = PerReplica([X[:3], X[3:]]), PerReplica([Y[:3], Y[3:]])

    def step(x, y):
        _, gradients = made.value_and_gradients(None, x, y, global_batch_size=6)
        made.optimizer.apply_gradients(zip(gradients, made.trainable_variables, strict=True))

    for _ in range(steps):
        strategy.run(step, half)


def fit(made, steps):
    made.fit(X, Y, batch_size=6, epochs=steps, shuffle=False, verbose=0)


@every_row("order", ["LLLLLL", "FFLL", "LLFF", "LFLFLF", "FLLF"])
def test_the_optimizer_goes_on_from_loops_to_fit_and_back(order):
    alone = adam_model(mirrored(2))
    fit(alone, len(order))
    strategy = mirrored(2)
    made = adam_model(strategy)
    for kind in order:
        if kind == "L":
            loop(strategy, made, 1)
        else:
            fit(made, 1)
    for each, other in zip(made.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(each, other, rtol=1e-5, atol=1e-6)
    if order.endswith("L"):
        assert int(made.optimizer.iterations) == len(order)


def test_a_model_saved_after_a_loop_goes_on_from_there(tmp_path):
    whole, part = mirrored(2), mirrored(2)
    alone, made = adam_model(whole), adam_model(part)
    loop(whole, alone, 4)
    loop(part, made, 2)
    made.save(tmp_path / "model.dtrain")
    later = mirrored(2)
    with later.scope():
        again = dt.load_model(tmp_path / "model.dtrain")
    loop(later, again, 2)
    for each, other in zip(again.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(each, other, rtol=1e-5, atol=1e-6)
