"""Small habits of Keras programs: whole numbers as floats, updates of a loaded model, a wrong class number."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import InputError


def compiled(optimizer="sgd"):
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(3,))])
    model.compile(optimizer, "mse")
    return model


def ones(examples):
    return np.ones((examples, 3), np.float32), np.ones((examples, 1), np.float32)


def test_a_loaded_model_says_how_many_updates_it_has_seen(tmp_path):
    model = compiled(dt.optimizers.Adam(dt.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)))
    model.fit(*ones(96), batch_size=32, epochs=2, verbose=0)
    model.save(tmp_path / "saved.safetensors")
    loaded = dt.load_model(tmp_path / "saved.safetensors")
    assert int(model.optimizer.iterations) == int(loaded.optimizer.iterations) == 6
    loaded.fit(*ones(32), batch_size=32, verbose=0)
    assert int(loaded.optimizer.iterations) == 7


def test_an_epoch_may_have_a_whole_number_of_steps_that_is_a_float():
    data = dt.data.Dataset.from_tensor_slices(ones(80)).batch(16).repeat()
    model = compiled()
    model.fit(data, steps_per_epoch=np.ceil(80 / 16), epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 10
    with pytest.raises(InputError, match=r"found steps_per_epoch 2\.5"):
        model.fit(data, steps_per_epoch=2.5, verbose=0)


def test_the_class_number_that_is_wrong_is_named():
    loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(InputError, match=r"found float64 such as 0\.5"):
        loss(np.array([2.0, 0.5, 1.0]), np.zeros((3, 4), np.float32))


def test_arguments_of_keras_that_have_no_effect_are_taken():
    model = compiled()
    more = {"workers": 3, "use_multiprocessing": True, "max_queue_size": 5}
    assert len(model.fit(*ones(8), verbose=0, **more).history["loss"]) == 1
    assert model.evaluate(*ones(8), verbose=0, **more) >= 0
    assert model.predict(ones(8)[0], verbose=0, **more).shape == (8, 1)


@pytest.mark.parametrize("dtype", ["datetime64[ns]", "timedelta64[s]"])
def test_dates_are_no_numbers(dtype):
    days = np.zeros(32, dtype)
    with pytest.raises(InputError, match="expected numbers or text, found"):
        compiled().fit(ones(32)[0], days, verbose=0)


@pytest.mark.parametrize("targets", [np.ones(32, np.float32), np.ones((32, 1), np.float32)])
@pytest.mark.parametrize("call", ["fit", "evaluate"])
def test_a_dataset_without_batches_is_told_of_batch(targets, call):
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(8,))])
    model.compile("sgd", "mse")
    data = dt.data.Dataset.from_tensor_slices((np.ones((32, 8), np.float32), targets))
    with pytest.raises(InputError, match=r"\.batch\(n\)"):
        getattr(model, call)(data, verbose=0)


def test_two_threads_that_train_at_once_are_refused_and_a_callback_may_train():
    inner = compiled()
    begun, refused = threading.Event(), threading.Event()

    class InTheMidst(dt.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            inner.fit(*ones(8), verbose=0)
            begun.set()
            assert refused.wait(60)

    def train():
        begun.wait(60)
        try:
            with pytest.raises(InputError, match="another thread of this process is in a fit"):
                inner.fit(*ones(8), verbose=0)
        finally:
            refused.set()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(train)
        compiled().fit(*ones(8), verbose=0, callbacks=[InTheMidst()])
        other.result(60)
    inner.fit(*ones(8), verbose=0)
