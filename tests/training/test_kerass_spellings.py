"""What programs of Keras write: it is taken where it changes nothing, and else the message says what to write."""

import subprocess
import sys

import numpy as np
import pytest
from row_by_row import every_row

import dtrain as dt
from dtrain.errors import DtrainError

LAYERS = dt.layers
X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = X[:, :1]


def fitted(model=None, loss="mse", optimizer="sgd", **compiled):
    model = model or dt.Sequential([LAYERS.Dense(1, input_shape=(3,))])
    model.compile(optimizer, loss, **compiled)
    model.fit(X, Y, verbose=0)


class Forgetful(dt.losses.MeanSquaredError):
    def __init__(self, factor):
        super().__init__()
        self.f = factor


class OwnMetric(dt.metrics.Metric):
    def __init__(self, name="own"):
        super().__init__(name=name)
        self.total = self.add_weight(name="total", initializer="ones")


class OwnModel(dt.Model):
    def call(self, inputs):
        return np.ones(3)


class OwnStep(dt.Sequential):
    def train_step(self, data):
        x, y = data
        return {"loss": (x - y).mean()}


def used(**compiled):
    model = dt.Sequential([LAYERS.Dense(1, input_shape=(3,))])
    fitted(model, **compiled)
    return model


MISTAKES = {
    "a metric whose sum begins at 1": (OwnMetric, ["initializer='zeros'", "found 'ones'"]),
    "a layer without call": (
        lambda: fitted(dt.Sequential([LAYERS.Layer(), LAYERS.Dense(1)])),
        ["call", "declare", "output_shape", "forward", "backward"],
    ),
    "a subclassed model that returns numbers": (lambda: fitted(OwnModel()), ["`call`", "found ndarray"]),
    "train_step of data without gradients": (
        lambda: fitted(OwnStep([LAYERS.Dense(1, input_shape=(3,))])),
        ["expected gradients", "found none"],
    ),
    "a function as learning rate": (
        lambda: dt.optimizers.SGD(lambda: 0.1),
        ["dt.optimizers.schedules", "dt.callbacks.LearningRateScheduler"],
    ),
    "an argument that a loss does not keep": (
        lambda: used(loss=Forgetful(factor=2.0)).save("never.safetensors"),
        ["Forgetful: its argument factor", "self.factor = factor", "get_config"],
    ),
    "add after fit": (lambda: used().add(LAYERS.Dense(1)), ["Sequential([*model.layers, layer])"]),
    "no batch": (
        lambda: dt.Sequential([LAYERS.Dense(1, input_shape=(3,))]).predict(
            dt.data.Dataset.from_tensor_slices(X)
        ),
        [".batch(n)"],
    ),
}


@every_row("name", list(MISTAKES))
def test_a_message_says_what_to_write(name):
    act, words = MISTAKES[name]
    with pytest.raises(DtrainError) as caught:
        act()
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, str(caught.value)


ABSENT = {
    "gradients": (dt, "dt.GradientTape"),
    "layer": (dt, "layers"),
    "Densee": (dt.layers, "Dense"),
    "TPUStrategy": (dt.distribute, "there are CPUs alone"),
}


@every_row("name", list(ABSENT))
def test_an_absent_name_is_answered_with_what_to_use(name):
    module, word = ABSENT[name]
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    assert str(caught.value).startswith("module 'dtrain")
    assert word in str(caught.value).partition(name)[2]


def test_a_model_of_a_trained_one_s_layers_and_another_keeps_their_values():
    model = used()
    more = dt.Sequential([*model.layers, LAYERS.Dense(1)])
    np.testing.assert_array_equal(more.get_weights()[0], model.get_weights()[0])
    fitted(more)


def test_a_loss_of_logits_behind_a_softmax_takes_its_logits_with_a_warning_once_as_in_keras():
    model = dt.Sequential(
        [LAYERS.Dense(3, kernel_initializer="zeros", activation="softmax", input_shape=(3,))]
    )
    model.compile("sgd", dt.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.warns(UserWarning, match=r"from_logits=True and an output layer with softmax") as told:
        loss = model.fit(X, np.zeros(4, int), epochs=2, verbose=0).history["loss"][0]
    assert (len(told), loss) == (1, pytest.approx(np.log(3))), "equal logits give each of 3 classes a third"


def test_rows_and_ids_of_unequal_number_are_refused():
    with pytest.raises(DtrainError, match="expected 3 rows, one an id, found 4"):
        dt.SparseRows(np.arange(3), np.ones((4, 2)))


ARGUMENTS = {
    "lr": (lambda: dt.optimizers.Adam(lr=0.1), "write learning_rate"),
    "decay": (lambda: dt.optimizers.SGD(decay=0.1), "dt.optimizers.legacy"),
    "dtype": (lambda: LAYERS.Flatten(dtype="float32"), "float32"),
    "stateful": (lambda: LAYERS.LSTM(3, stateful=True), "dt.from_torch"),
    "input_dim": (lambda: LAYERS.Dense(3, input_dim=8), "input_shape=(n,)"),
}


@every_row("name", list(ARGUMENTS))
def test_an_argument_that_is_absent_is_answered_with_what_to_write(name):
    act, word = ARGUMENTS[name]
    with pytest.raises(DtrainError, match=f": has no argument {name}; ") as caught:
        act()
    assert word in str(caught.value)


def test_an_argument_of_no_library_stays_python_s_error_and_one_s_own_is_taken():
    class Own(LAYERS.Dense):
        def __init__(self, units, dtype, **more):
            super().__init__(units, **more)
            self.dtype = dtype

    assert Own(3, dtype="float16", use_bias=False).copy().dtype == "float16"
    with pytest.raises(TypeError, match="unexpected keyword argument 'unit'"):
        LAYERS.Dense(unit=3)


def test_what_changes_nothing_is_taken(tmp_path):
    model = dt.Sequential(
        [LAYERS.LSTM(2, unroll=True, input_shape=(3, 1)), LAYERS.Dense(1, bias_initializer=None)]
    )
    assert model.build() is None
    model.compile(dt.optimizers.Adam(jit_compile=False), "mse")
    model.fit(X[..., np.newaxis], Y, workers=2, use_multiprocessing=False, verbose=0)
    model.save(tmp_path / "model", save_format="tf")
    loaded = dt.load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X[..., np.newaxis]), model.predict(X[..., np.newaxis]))


def test_nccl_is_a_name_alone():
    program = (
        "import dtrain as dt; o = dt.distribute; n = o.experimental.CommunicationImplementation.NCCL; "
        "print(dt.MirroredStrategy(['CPU:0', 'CPU:1'], o.NcclAllReduce()).num_replicas_in_sync, "
        "o.experimental.CommunicationOptions(implementation=n).implementation)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["2", "NCCL"], done.stderr


def test_build_without_a_shape_needs_the_first_layers():
    with pytest.raises(DtrainError, match="input_shape"):
        dt.Sequential([LAYERS.Dense(1)]).build()
