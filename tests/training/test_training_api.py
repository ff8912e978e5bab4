"""What `fit`, `evaluate`, `predict` and the single batches take, return and refuse."""

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import InputError, SpecError
from dtrain.strategies.single import SingleStrategy

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
LABELS = np.arange(20) % 3


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


def classifier(**compiled):
    made = dt.Sequential([dt.layers.Dense(3, activation="softmax", input_shape=(3,))])
    arguments = {"optimizer": dt.optimizers.SGD(0.5), "loss": "sparse_categorical_crossentropy", **compiled}
    made.compile(**arguments)
    return made


def test_history_has_epochs_and_every_number():
    made = classifier(metrics=["accuracy"])
    history = made.fit(
        X, LABELS, epochs=5, initial_epoch=2, verbose=0, validation_data=(X, LABELS), validation_freq=2
    )
    assert history.epoch == [2, 3, 4]
    assert {name: len(values) for name, values in history.history.items()} == {
        "loss": 3,
        "accuracy": 3,
        "val_loss": 1,
        "val_accuracy": 1,
    }


@pytest.mark.parametrize(("frequency", "epochs"), [(1, [0, 1, 2, 3]), (3, [2]), ([1, 4], [0, 3])])
def test_validation_may_be_less_frequent(frequency, epochs):
    validated = []
    note = dt.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: validated.append(epoch) if "val_loss" in logs else None
    )
    classifier().fit(
        X,
        LABELS,
        epochs=4,
        verbose=0,
        validation_data=(X, LABELS),
        validation_freq=frequency,
        callbacks=[note],
    )
    assert validated == epochs


def test_the_end_of_the_arrays_may_be_held_out():
    split, given = classifier(metrics=["accuracy"]), classifier(metrics=["accuracy"])
    found = split.fit((X, LABELS), validation_split=0.25, epochs=2, verbose=0).history
    assert (
        found
        == given.fit(X[:15], LABELS[:15], validation_data=(X[15:], LABELS[15:]), epochs=2, verbose=0).history
    )
    for data, fraction in (((X, LABELS), 1.0), (dt.data.Dataset.range(3), 0.5)):
        with pytest.raises(InputError, match="validation_split: expected"):
            split.fit(data, validation_split=fraction, verbose=0)


def test_class_weights_are_sample_weights_by_class():
    by_class = {0: 0.5, 1: 3.0, 2: 1.0}
    found, expected = classifier(), classifier()
    rows = np.array([by_class[label] for label in LABELS])
    found.fit(X, LABELS, class_weight=by_class, verbose=0)
    expected.fit(X, LABELS, sample_weight=rows, verbose=0)
    np.testing.assert_array_equal(found.get_weights()[0], expected.get_weights()[0])
    one_hot = classifier(loss="categorical_crossentropy")
    one_hot.fit(X, np.eye(3)[LABELS], class_weight=by_class, verbose=0)
    np.testing.assert_allclose(one_hot.get_weights()[0], expected.get_weights()[0], rtol=1e-5)
    both, squared = classifier(), classifier()
    both.fit(X, LABELS, class_weight=by_class, sample_weight=rows, verbose=0)
    squared.fit(X, LABELS, sample_weight=rows**2, verbose=0)
    np.testing.assert_array_equal(both.get_weights()[0], squared.get_weights()[0])
    with pytest.raises(
        InputError, match="class_weight: expected a weight for each class; found class 2, not in"
    ):
        classifier().fit(X, LABELS, class_weight={0: 1.0, 1: 1.0}, verbose=0)


def test_sample_weights_apply_to_weighted_metrics_alone():
    made = classifier(metrics=["accuracy"], weighted_metrics=["accuracy"])
    right = made.predict(X).argmax(axis=1) == LABELS
    weights = np.where(right, 3.0, 1.0)
    results = made.evaluate(X, LABELS, sample_weight=weights, return_dict=True)
    assert results["accuracy"] == pytest.approx(right.mean())
    assert results["weighted_accuracy"] == pytest.approx(3 * right.sum() / weights.sum())
    with pytest.raises(SpecError, match="metrics of different names, found 'accuracy' twice"):
        classifier(metrics=["accuracy", "accuracy"])


def test_train_on_batch_is_a_step_of_fit():
    by_hand, fitted = (classifier(optimizer=dt.optimizers.Adam(0.1), metrics=["accuracy"]) for _ in range(2))
    expected = fitted.evaluate(X[:8], LABELS[:8])
    fitted.fit(X, LABELS, batch_size=8, steps_per_epoch=2, shuffle=False, verbose=0)
    assert by_hand.train_on_batch(X[:8], LABELS[:8]) == pytest.approx(expected)
    by_hand.train_on_batch(X[8:16], LABELS[8:16])
    for one, other in zip(by_hand.get_weights(), fitted.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert by_hand.test_on_batch(X, LABELS, return_dict=True) == by_hand.evaluate(X, LABELS, return_dict=True)
    np.testing.assert_allclose(by_hand.predict_on_batch(X), by_hand.predict(X, batch_size=7), rtol=1e-6)


def test_training_ends_with_the_moving_average():
    def trained(**optimizer):
        made, seen = classifier(optimizer=dt.optimizers.SGD(0.5, **optimizer)), []
        made.set_weights([np.full((3, 3), 0.1), np.zeros(3)])
        note = dt.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(made.get_weights()[0])
        )
        made.fit(X, LABELS, batch_size=5, epochs=2, shuffle=False, verbose=0, callbacks=[note])
        return made.get_weights()[0], seen

    averaged, seen = trained(use_ema=True, ema_momentum=0.9)
    _, plain = trained()
    np.testing.assert_array_equal(seen[:-1], plain[:-1])
    expected = np.full((3, 3), 0.1)
    for weights in plain:
        expected = 0.9 * expected + 0.1 * weights
    np.testing.assert_allclose(averaged, expected, rtol=1e-5)


def test_two_inputs_in_every_form():
    left, right = dt.layers.Input((3,), name="left"), dt.layers.Input((2,), name="right")
    hidden = dt.layers.Dense(2, activation="relu")(left)
    skip = dt.layers.Add()([hidden, right])
    made = dt.Model([left, right], dt.layers.Dense(1)(dt.layers.Concatenate()([skip, left])))
    made.compile("sgd", "mse")
    a, b, y = X, X[:, :2], X[:, :1]
    as_list = made.predict([a, b], batch_size=6)
    np.testing.assert_array_equal(made.predict({"right": b, "left": a}, batch_size=6), as_list)
    for x in ([a, b], {"left": a, "right": b}, dt.data.Dataset.from_tensor_slices(((a, b), y)).batch(5)):
        made.fit(x, None if isinstance(x, dt.data.Dataset) else y, verbose=0)
    assert made.train_on_batch([a, b], y) > made.train_on_batch([a, b], y)


def test_the_summary_counts_exactly(capsys):
    made = dt.Sequential(
        [
            dt.layers.Dense(4, input_shape=(3,)),
            dt.layers.BatchNormalization(),
            dt.layers.Dense(2, name="last"),
        ]
    )
    made.summary()
    assert capsys.readouterr().out.splitlines() == [
        'Model: "sequential"',
        "_" * 65,
        " Layer (type)                              Output Shape  Param #",
        "=" * 65,
        " dense (Dense)                             (None, 4)     16",
        " batch_normalization (BatchNormalization)  (None, 4)     16",
        " last (Dense)                              (None, 2)     10",
        "=" * 65,
        "Total params: 42 (168.00 Byte)",
        "Trainable params: 34 (136.00 Byte)",
        "Non-trainable params: 8 (32.00 Byte)",
        "_" * 65,
    ]
    made.layers[1].trainable = False  # the input is no layer here, as in Keras
    made.summary(print_fn=lambda text: print(text.splitlines()[-3]))
    assert capsys.readouterr().out == "Trainable params: 26 (104.00 Byte)\n"


def test_layers_are_found_counted_and_frozen():
    last = dt.layers.Dense(2, name="last", kernel_regularizer=dt.regularizers.l2())
    made = dt.Sequential([dt.layers.Dense(4, input_shape=(3,)), last])
    assert made.get_layer("last") is made.get_layer(index=1) is last
    assert (made.count_params(), made.input_shape, made.output_shape) == (26, (None, 3), (None, 2))
    made.trainable = False
    assert not any(spec.trainable for spec in made.variables)
    for which in ({"name": "first"}, {"index": 2}):
        with pytest.raises(InputError, match=r"has no layer .*; it has dense, last"):
            made.get_layer(**which)


def test_a_graphs_summary_shows_its_wires(capsys):
    x = dt.layers.Input((3,))
    shared = dt.layers.Dense(3)
    dt.Model(x, dt.layers.Add()([shared(shared(x)), x])).summary()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[-2:] for row in rows if "(Dense)" in row] == [["12", "input[0]"], ["0", "dense[0]"]]
    assert next(row for row in rows if "(Add)" in row)[-2:] == ["dense[0],", "input[0]"]
    with pytest.raises(InputError, match="shapes are unknown"):
        dt.Sequential([dt.layers.Dense(1)]).summary()


def test_compile_comes_first():
    made = dt.Sequential([dt.layers.Dense(1, input_shape=(3,))])
    with pytest.raises(InputError, match="call compile"):
        made.fit(X, LABELS)
    made.compile("sgd")
    with pytest.raises(InputError, match="call compile with a loss"):
        made.fit(X, LABELS)


def test_a_function_is_a_metric():
    def far_off(y_true, y_pred):
        return np.abs(y_pred.argmax(axis=-1) - y_true) > 1

    made = classifier(metrics=[far_off, "accuracy"], weighted_metrics=[far_off])
    assert made.fit(X, LABELS, verbose=0) is made.history
    assert list(made.history.history) == ["loss", "far_off", "accuracy", "weighted_far_off"]
    found = made.evaluate(X, LABELS, return_dict=True, sample_weight=np.ones(20), verbose=0)
    assert (
        found["far_off"] == found["weighted_far_off"] == np.mean(far_off(LABELS, made.predict(X, verbose=0)))
    )
    with pytest.raises(SpecError, match="cannot be written as data"):
        made.save("never.safetensors")


def test_the_rate_has_two_names():
    optimizer = dt.optimizers.SGD(0.5)
    optimizer.lr /= 2
    assert (optimizer.learning_rate, optimizer.lr) == (0.25, 0.25)
