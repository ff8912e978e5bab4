"""What Python shows of a model, a dataset and a history: short, and useful in a notebook."""

import numpy as np

import dtrain as dt

X = np.zeros((6, 3), np.float32)


def test_a_model_shows_its_class_its_name_and_its_size():
    model = dt.Sequential([dt.layers.Dense(4), dt.layers.Dense(2)], name="small")
    assert repr(model) == "<Sequential small: not built yet>"
    model.build((None, 3))
    assert repr(model) == f"<Sequential small: {3 * 4 + 4 + 4 * 2 + 2} parameters>"
    assert repr(dt.Sequential()) == "<Sequential sequential: not built yet>"
    entry = dt.Input((3,))
    assert repr(dt.Model(entry, dt.layers.Dense(1000)(entry))) == "<Model model: 4,000 parameters>"


def test_the_layers_of_a_model_are_a_list_as_in_keras():
    model = dt.Sequential([dt.layers.Dense(4), dt.layers.Dense(2)])
    assert isinstance(model.layers, list)
    assert [type(layer) for layer in model.layers] == [dt.layers.Dense, dt.layers.Dense]
    entry = dt.Input((3,))
    assert isinstance(dt.Model(entry, dt.layers.Dense(1)(entry)).layers, list)


def test_a_dataset_shows_its_length_without_reading():
    def never():
        raise AssertionError("was read")
        yield

    assert repr(dt.data.Dataset.range(1200)) == "<Dataset of length 1,200>"
    assert repr(dt.data.Dataset.range(3).repeat()) == "<Dataset endless>"
    signature = dt.data.TensorSpec((), "float32")
    assert (
        repr(dt.data.Dataset.from_generator(never, output_signature=signature))
        == "<Dataset of unknown length>"
    )


def test_a_history_shows_its_last_numbers():
    model = dt.Sequential([dt.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mse")
    history = model.fit(X, X[:, :1], epochs=2, verbose=0)
    assert repr(history) == "<History of 2 epochs, loss 0>"
    assert repr(dt.callbacks.History()) == "<History of 0 epochs>"
