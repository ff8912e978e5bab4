"""What does not fit is refused in one sentence that says where, what was expected and what was found."""

import re

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import InputError, NonFiniteGradientError, SpecError
from dtrain.strategies.single import SingleStrategy

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
Y = np.arange(8) % 2
LABELS = "sparse_categorical_crossentropy"


@pytest.fixture(autouse=True)
def alone():
    with SingleStrategy().scope():
        yield


def model(loss=LABELS, **first):
    made = dt.Sequential(
        [dt.layers.Dense(4, activation="relu", input_shape=(3,), **first), dt.layers.Dense(2)]
    )
    made.compile(dt.optimizers.SGD(0.1), loss)
    return made


@pytest.mark.parametrize(
    ("x", "y", "loss", "message"),
    [
        (X[:, :2], Y, LABELS, r"^dense \(Dense\): expected an input of shape \(batch, 3\), found \(8, 2\)$"),
        (X.astype(str), Y, LABELS, r"^dense \(Dense\): expected numbers, found dtype object"),
        (X.astype(complex), Y, LABELS, r"^dense \(Dense\): expected numbers, found dtype complex128"),
        (
            X,
            Y + 1,
            LABELS,
            r"dense_1 \(Dense\): SparseCategoricalCrossentropy: expected class numbers in \[0, 2\), found 2",
        ),
        (
            X,
            Y - 1,
            LABELS,
            r"dense_1 \(Dense\): SparseCategoricalCrossentropy: expected class numbers in \[0, 2\), found -1",
        ),
        (
            X,
            np.eye(3)[Y],
            LABELS,
            r"expected class numbers of shape \(8,\) for predictions of shape \(8, 2\), found \(8, 3\)",
        ),
        (X, np.eye(3)[Y], "mse", r"expected y_true of y_pred's shape \(8, 2\), found \(8, 3\)"),
        (X, Y[:5], LABELS, r"as many examples in y as in x, found x of shape \(8, 3\) and y of shape \(5,\)"),
        (X[:0], Y[:0], LABELS, "expected at least one batch, found an empty dataset"),
        (X, None, LABELS, "expected targets"),
        (X, Y.astype(str), LABELS, "expected whole class numbers, found object such as 0"),
        (X, Y + 0.5, LABELS, "expected whole class numbers, found float64 such as 0.5"),
        (None, None, LABELS, "expected .* found None"),
        ("digits.csv", None, LABELS, "data: expected .* found 'digits.csv'"),
    ],
)
def test_data_that_do_not_fit(x, y, loss, message):
    with pytest.raises(InputError, match=message):
        model(loss).fit(x, y, verbose=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch: expected a whole number >= 1 as size, found 0"),
        (
            {"epochs": 1.5},
            "fit: expected whole numbers, found steps_per_epoch 1, initial_epoch 0, epochs 1.5",
        ),
        (
            {"callbacks": ["EarlyStopping"]},
            "callbacks: expected instances of dtrain.callbacks.Callback, found 'EarlyStopping'",
        ),
        (
            {"validation_data": (X, Y), "validation_freq": 0},
            "validation_freq: expected a number of epochs of at least 1",
        ),
        ({"callbacks": [dt.callbacks.History]}, "callbacks: expected instances .* found <class"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(InputError, match=message):
        model().fit(X, Y, verbose=0, **arguments)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (
            X[:, :2],
            Y,
            (
                r"^fit: validation_data: dense \(Dense\): expected an input of shape \(batch, 3\), found \(8, "
                r"2\)$"
            ),
        ),
        (X, np.eye(3)[Y], r"^fit: validation_data: .*expected class numbers of shape \(8,\)"),
    ],
)
def test_validation_data_that_do_not_fit_are_refused_before_the_first_step(x, y, message):
    steps = []
    note = dt.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: steps.append(batch))
    with pytest.raises(InputError, match=message):
        model().fit(X, Y, verbose=0, validation_data=(x, y), callbacks=[note])
    assert steps == []


@pytest.mark.parametrize("found", [0, "3", 3.5, None, True])
def test_a_size_that_is_no_positive_integer_is_refused_by_the_layer(found):
    makers = {
        "dense (Dense): units": dt.layers.Dense,
        "lstm (LSTM): units": dt.layers.LSTM,
        "conv2d (Conv2D): filters": lambda size: dt.layers.Conv2D(size, 3),
        "embedding (Embedding): output_dim": lambda size: dt.layers.Embedding(7, size),
    }
    for where, make in makers.items():
        with pytest.raises(
            SpecError, match=f"^{re.escape(where)}: expected a positive integer, found {found!r}$"
        ):
            make(found)


def test_what_is_no_layer_is_refused_and_one_layer_is_a_stack():
    for found in ("dense", dt.layers.Dense):
        with pytest.raises(InputError, match="sequential: expected a layer such as"):
            dt.Sequential([found])
        with pytest.raises(InputError, match="sequential: expected a layer such as"):
            dt.Sequential().add(found)
    assert len(dt.Sequential(dt.layers.Dense(3)).layers) == 1


def test_an_unknown_initializer_is_named_with_its_variable_and_the_nearest():
    with pytest.raises(
        SpecError, match=r"^dense/kernel: unknown initializer 'glorot_unifrom'; do you mean glorot_uniform\?$"
    ):
        model(kernel_initializer="glorot_unifrom").fit(X, Y, verbose=0)


def test_sample_weights_and_validation_data_that_do_not_fit():
    with pytest.raises(
        InputError, match=r"sample_weight to broadcast to the losses' shape \(8,\), found \(8, 2\)"
    ):
        model().fit(X, Y, sample_weight=np.ones((8, 2)), verbose=0)
    with pytest.raises(
        InputError, match=r"dense \(Dense\): expected an input of shape \(batch, 3\), found \(8, 2\)"
    ):
        model().fit(X, Y, validation_data=(X[:, :2], Y), verbose=0)
    for use in (model().evaluate, lambda x, y: model().predict(x)):
        with pytest.raises(InputError, match="found an empty dataset"):
            use(X[:0], Y[:0])


def test_one_gradient_that_is_not_finite_is_told_of_and_left_out(capsys):
    x = np.concatenate([X] * 4)
    x[5, 1] = np.nan
    made, losses = model(), []
    note = dt.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    made.fit(x, np.concatenate([Y] * 4), batch_size=8, shuffle=False, epochs=2, verbose=0, callbacks=[note])
    assert np.isfinite(made.get_weights()[0]).all()
    assert np.isnan(losses).sum() >= 1, "callbacks that look for NaN are told"
    assert capsys.readouterr().err.splitlines() == [
        (
            "dtrain: step 1: a gradient was not applied: inputs: expected finite numbers, found NaN, first at "
            "[5, 1] of shape (8, 3)"
        )
    ]


def test_a_later_fit_says_how_it_counts_the_step(capsys):
    x = np.concatenate([X] * 4)
    made = model()
    made.fit(x, np.concatenate([Y] * 4), batch_size=8, verbose=0)
    x[9, 1] = np.nan
    made.fit(x, np.concatenate([Y] * 4), batch_size=8, shuffle=False, verbose=0)
    assert capsys.readouterr().err.startswith(
        "dtrain: step 2 of this fit (global step 6): a gradient was not applied: "
    )


def test_a_layer_of_a_model_within_is_named_with_it(capsys):
    inner = dt.Sequential([dt.layers.Dense(4, input_shape=(3,)), dt.layers.Dense(4)], name="inner")
    made = dt.Sequential([inner, dt.layers.Dense(2)])
    made.compile(dt.optimizers.SGD(0.1), "mse")
    made.set_weights([np.full(spec.shape, 1e30) for spec in made.variables])
    with pytest.raises(
        NonFiniteGradientError,
        match=r"outputs of inner/dense_1 \(Dense\): expected finite numbers, found inf",
    ):
        made.fit(
            np.abs(np.concatenate([X] * 20)),
            np.concatenate([X] * 20)[:, :2],
            batch_size=1,
            epochs=2,
            verbose=0,
        )


@pytest.mark.parametrize(
    ("x", "y", "weight", "message"),
    [
        (
            X * np.nan,
            X[:, :2],
            1.0,
            r"inputs: expected finite numbers, found NaN, first at \[0, 0\] of shape \(8, 3\)",
        ),
        (X, X[:, :2] * np.inf, 1.0, "targets: expected finite numbers, found infinity"),
        (X, X[:, :2], np.nan, "variable dense/kernel: expected finite numbers, found NaN"),
        (
            np.abs(X) * 1e30,
            X[:, :2],
            1e30,
            r"outputs of dense \(Dense\): expected finite numbers, found infinity",
        ),
        (X, X[:, :2], 1e25, "gradient of dense_1/kernel: expected finite numbers, found"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_training_that_goes_nowhere_fails_and_says_where_it_began(x, y, weight, message, capsys):
    made = model("mse")
    made.set_weights(
        [np.full(spec.shape, weight if spec.name == "dense/kernel" else 1.0) for spec in made.variables]
    )
    with pytest.raises(
        NonFiniteGradientError, match=f"100 gradients in a row held NaN or infinity; the first: {message}"
    ):
        made.fit(x, y, verbose=0)
    assert len(capsys.readouterr().err.splitlines()) == 1
