"""Programs import by TensorFlow's paths, and read and set values by `backend`."""

import subprocess
import sys

import numpy as np
import pytest
import threadpoolctl

import dtrain as dt
from dtrain.errors import SpecError
from dtrain.strategies.single import SingleStrategy

PATHS = """
import sys
import dtrain as tf
assert "numpy" not in sys.modules, "importing loads nothing"
from dtrain import keras
from dtrain.keras import Sequential, layers
from dtrain.keras.layers import Dense
from dtrain.keras.callbacks import EarlyStopping
from dtrain.keras.optimizers.schedules import ExponentialDecay
from dtrain.layers import Dense as Same
import dtrain.keras.backend as K
import dtrain.callbacks
import dtrain.learning.layers as private
assert tf.keras.layers is layers is private and keras is tf
assert Dense is Same is tf.layers.Dense and Sequential is tf.Sequential
assert EarlyStopping is tf.callbacks.EarlyStopping is dtrain.callbacks.EarlyStopping
assert ExponentialDecay is tf.optimizers.schedules.ExponentialDecay and K is tf.backend
assert layers.__spec__.name == layers.__name__ == "dtrain.learning.layers"
assert tf.config.list_physical_devices("GPU") == [] and len(tf.config.list_physical_devices()) == 1
for wrong in ("import dtrain.nonsense", "import dtrain.keras.nonsense", "from dtrain.layers import Nope"):
    try:
        exec(wrong)
    except ImportError:
        continue
    raise AssertionError(wrong)
"""


def test_modules_are_found_by_tensorflows_paths():
    subprocess.run([sys.executable, "-c", PATHS], check=True)


def test_backend_reads_and_sets_values():
    with SingleStrategy().scope():
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
        model.compile(dt.optimizers.SGD(0.5), "mse")
    assert dt.backend.get_value(model.optimizer.lr) == 0.5
    dt.backend.set_value(model.optimizer.lr, 0.25)
    dt.backend.set_value(model.layers[0].kernel, [[1.0], [2.0]])
    assert model.optimizer.learning_rate == 0.25
    assert dt.backend.get_value(model(np.ones((1, 2), np.float32))).tolist() == [[3.0]]
    assert (dt.backend.floatx(), dt.backend.image_data_format()) == ("float32", "channels_last")
    assert dt.backend.epsilon() == 1e-7
    dt.backend.clear_session()
    with pytest.raises(SpecError, match=r"expected a variable, such as layer\.kernel"):
        dt.backend.set_value(0.5, 1)


def test_the_number_of_threads_is_set():
    with threadpoolctl.threadpool_limits(2):
        dt.config.threading.set_intra_op_parallelism_threads(1)
        dt.config.threading.set_inter_op_parallelism_threads(1)
        assert {each["num_threads"] for each in threadpoolctl.threadpool_info()} == {1}
    with pytest.raises(SpecError, match="expected a whole number of at least 0"):
        dt.config.threading.set_intra_op_parallelism_threads(-1)
