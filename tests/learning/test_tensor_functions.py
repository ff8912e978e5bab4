"""Tensor functions on arrays, on symbols and within tapes: TensorFlow's values and gradients."""

import json

import numpy as np
import pytest
from learning.tensor_function_cases import CASES, REFERENCE, X, Y, found
from row_by_row import every_row

import dtrain as dt
from dtrain.errors import InputError, ProgramError, SpecError
from dtrain.learning.functions.tensors import functions

EXPECTED = json.loads(REFERENCE.read_text())


def close(given, expected, name):
    np.testing.assert_allclose(given, expected, rtol=2e-5, atol=2e-6, err_msg=name)


@every_row("name", list(CASES))
def test_values_and_gradients_are_tensorflow_s(name):
    for what, given, expected in zip(
        ("value", "x", "y"), found(dt, CASES[name]), EXPECTED[name], strict=True
    ):
        if what == "value" or (given is not None and expected is not None):
            close(given, expected, f"{name}: {what}")
        else:  # where TensorFlow finds no way, there is none, or it is flat
            assert not np.any(0 if given is None else given), (name, what)
            assert not np.any(0 if expected is None else expected), (name, what)


WITHOUT_EXAMPLES = {
    *("transpose", "argmax", "argmin", "reduce_sum", "reduce_variance", "reduce_any", "matmul"),
    *("tile", "gather", "gather of each", "reshape", "indexing", "one_hot", "zeros, ones"),
    "sparse cross-entropy",
}
"""Cases whose result does not have the examples along its first axis, or not as many."""


@every_row("name", list(CASES))
def test_symbols_have_the_same_values(name):
    x, y = dt.Input((4,)), dt.Input((4,))
    if name in WITHOUT_EXAMPLES:
        with pytest.raises((InputError, ProgramError), match=r"first axis|np\.|cannot be computed"):
            CASES[name](dt, x, y)
        return
    result = CASES[name](dt, x, y)
    if isinstance(result, np.ndarray):
        return
    assert result.shape[0] is None
    model = dt.Model([x, y], [result, x * 1.0 + y])
    again = dt.Model.from_config(json.loads(json.dumps(model.get_config())))
    for each in (model, again):
        value = each.predict([X, Y])[0]
        close(value, EXPECTED[name][0], name)
        assert all(length in (None, n) for n, length in zip(value.shape, result.shape, strict=True))
        assert value.dtype == result.dtype


LEFT_OUT = {
    *("argmax", "argmin", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *(
        "logical_and",
        "logical_or",
        "logical_not",
        "reduce_all",
        "reduce_any",
        "round",
        "floor",
        "ceil",
        "sign",
    ),
    *("zeros_like", "ones_like", "stop_gradient", "one_hot", "cast", "getitem", "where", "gather"),
    *("concat", "stack", "split", "tile", "expand_dims", "squeeze", "reshape", "einsum"),
    *("clip_by_value", "sparse_softmax_cross_entropy_with_logits"),
}
"""Functions without a gradient, and those whose arguments differ, which the cases above hold."""
OF_TWO = {
    *("add", "subtract", "multiply", "divide", "divide_no_nan", "maximum", "minimum", "pow", "matmul"),
    *("squared_difference", "sigmoid_cross_entropy_with_logits", "softmax_cross_entropy_with_logits"),
}


@every_row("name", sorted(set(functions()) - LEFT_OUT))
def test_gradients_agree_with_finite_differences(name):
    function = functions()[name]
    arrays = (Y, X.T if name == "matmul" else Y.T.reshape(3, 4) + 0.05) if name in OF_TWO else (Y,)
    assert dt.utils.check_gradients(function, *arrays) < 0.02


def test_a_wrong_gradient_is_found():
    def wrong(x):
        return dt.stop_gradient(x) * x

    with pytest.raises(InputError, match="check_gradients: input 0: expected the derivative"):
        dt.utils.check_gradients(wrong, X)


def test_layers_and_models_are_checked_with_their_variables():
    assert dt.utils.check_gradients(dt.layers.Dense(3, "tanh"), X) < 0.02
    assert dt.utils.check_gradients(dt.Sequential([dt.layers.Dense(3, "tanh"), dt.layers.Dense(1)]), X) < 0.02


def test_a_graph_of_operators_trains_without_autograd_where_layers_have_gradients():
    x = dt.Input((4,))
    assert [type(each.node.part).__name__ for each in (x + x, 2 * x, x / 4, 1 - x, -x, x * x)] == [
        *("Add", "Rescaling", "Rescaling", "Rescaling", "Rescaling", "Multiply")
    ]


@every_row(
    "make, words",
    [
        (lambda x: np.mean(x), "np.mean: found the result of Input()"),
        (lambda x: dt.reduce_mean(x), "first axis of the result"),
        (lambda x: 1 if x else 2, "`if`"),
        (lambda x: dt.zeros(dt.shape(x)), "zeros: expected known lengths"),
        (lambda x: list(x), "a loop over it"),
        (lambda x: np.asarray(x), "has no numbers before the model runs"),
    ],
)
def test_what_symbols_cannot_do_is_one_sentence(make, words):
    with pytest.raises((ProgramError, InputError)) as caught:
        make(dt.Input((4,)))
    assert words in str(caught.value)


def test_a_file_names_no_function_that_is_none():
    with pytest.raises(SpecError, match="expected a function of dt, found '__import__'"):
        dt.layers.TensorFunction("__import__")


def test_random_numbers_follow_from_the_seed():
    dt.random.set_seed(3)
    first = dt.random.normal([2, 3]), dt.random.uniform((4,), 1, 2)
    dt.random.set_seed(3)
    np.testing.assert_array_equal(dt.random.normal([2, 3]), first[0])
    np.testing.assert_array_equal(dt.random.uniform((4,), 1, 2), first[1])
    assert first[0].dtype == dt.float32
    assert ((first[1] >= 1) & (first[1] < 2)).all()
