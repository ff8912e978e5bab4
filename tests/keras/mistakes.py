"""What Keras's users write wrongly, and words of the one sentence that they get: where, and what to do.

Each function is a use that is refused; the class of the error stands before the words.
"""

from pathlib import Path

import numpy as np

import dtrain as tf
import dtrain.compat.v1 as tf1
from dtrain import keras
from dtrain.errors import (
    CheckpointDamagedError,
    CheckpointError,
    ContextError,
    InputError,
    NotBatchedError,
    ProgramError,
    SpecError,
)

L = keras.layers
_rng = np.random.default_rng(0)
X = _rng.standard_normal((64, 8)).astype("float32")
Y = _rng.integers(0, 3, 64)
B = (X[:, :1] > 0).astype("float32")
MISTAKES = []


def wrong(error, *words):
    return lambda use: MISTAKES.append((use, error, words)) or use


def one_example():
    return tf.data.Dataset.from_tensor_slices(([[1.0]], [[1.0]])).batch(1)


def classifier(n=3, loss="sparse_categorical_crossentropy", compiled=True, optimizer="sgd", **more):
    hidden = L.Dense(4, activation="relu", input_shape=(8,))
    model = keras.Sequential([hidden, L.Dense(n, activation="softmax")])
    if compiled:
        model.compile(optimizer, loss, **more)
    return model


def regressor(loss="mse", **more):
    model = keras.Sequential([L.Dense(1, input_shape=(8,))])
    model.compile("sgd", loss, **more)
    return model


@wrong(InputError, "dense (Dense)", "shape (batch, 8)", "(32, 5)")
def wrong_input_width():
    classifier().fit(X[:, :5], Y, verbose=0)


@wrong(InputError, "call compile")
def fit_without_compile():
    classifier(compiled=False).fit(X, Y, verbose=0)


@wrong(InputError, "CategoricalCrossentropy", "shape (32, 3)")
def int_labels_categorical():
    classifier(loss="categorical_crossentropy").fit(X, Y, verbose=0)


@wrong(InputError, "expected class numbers", "found (32, 3)")
def onehot_labels_sparse():
    classifier().fit(X, np.eye(3)[Y], verbose=0)


@wrong(InputError, "expected targets")
def no_labels():
    classifier().fit(X, verbose=0)


@wrong(SpecError, "'adem'", "do you mean Adam?")
def wrong_optimizer_name():
    classifier(optimizer="adem")


@wrong(SpecError, "'crossentropy'", "do you mean")
def wrong_loss_name():
    classifier(loss="crossentropy")


@wrong(SpecError, "'acuracy'", "do you mean accuracy?")
def wrong_metric_name():
    classifier(metrics=["acuracy"])


@wrong(SpecError, "'rellu'", "do you mean relu?")
def wrong_activation():
    L.Dense(3, activation="rellu")


@wrong(InputError, "as many examples", "(50,)")
def lengths():
    classifier().fit(X, Y[:50], verbose=0)


@wrong(InputError, "[0, 2)", "found 2")
def label_too_large():
    classifier(2).fit(X, Y, verbose=0)


@wrong(InputError, "whole class numbers")
def labels_string():
    classifier().fit(X, np.array(["a", "b", "c", "a"] * 16), verbose=0)


@wrong(InputError, "(batch, 28, 28)", ".batch(n)")
def one_image():
    k = keras.Sequential([L.Flatten(input_shape=(28, 28)), L.Dense(3)])
    k.compile("sgd", "mse")
    k.predict(np.zeros((28, 28), "float32"), verbose=0)


@wrong(InputError, "conv2d", "windows (5, 5)")
def kernel_larger_than_image():
    keras.Sequential([L.Conv2D(4, 5, input_shape=(4, 4, 1)), L.Flatten(), L.Dense(1)]).build((None, 4, 4, 1))


@wrong(CheckpointError, "w.weights.h5", "missing: dense_1/kernel", "by_name=True")
def other_weights():
    a = keras.Sequential([L.Dense(5, input_shape=(8,))])
    a.save_weights("w.weights.h5")
    classifier().load_weights("w.weights.h5")


@wrong(InputError, "expected 4 arrays, found 1")
def set_weights_wrong_count():
    classifier().set_weights([np.zeros((8, 4))])


@wrong(CheckpointError, "none_such_model")
def load_missing_model():
    keras.models.load_model("none_such_model")


@wrong(InputError, "path of a file, found None", "latest_checkpoint")
def load_weights_none():
    classifier().load_weights(tf.train.latest_checkpoint("nowhere"))


@wrong(InputError, "path of a file, found None")
def load_model_none():
    keras.models.load_model(None)


@wrong(InputError, "save", "found None")
def save_weights_none():
    classifier().save_weights(None)


@wrong(InputError, "expected instances", "EarlyStopping")
def callback_class():
    classifier().fit(X, Y, callbacks=[keras.callbacks.EarlyStopping], verbose=0)


@wrong(SpecError, "names 'val_loss'", "there are epoch, loss")
def checkpoint_bad_format():
    classifier().fit(X, Y, callbacks=[keras.callbacks.ModelCheckpoint("kw/{val_loss:.2f}")], verbose=0)


@wrong(InputError, "expected a layer such as", "Dense")
def layer_not_instance():
    keras.Sequential([L.Dense])


@wrong(SpecError, "units", "positive integer", "'10'")
def units_string():
    L.Dense("10")


@wrong(SpecError, "Adam", "write learning_rate")
def lr_legacy():
    keras.optimizers.Adam(lr=0.1)


@wrong(InputError, "whole numbers", "epochs 2.5")
def epochs_float():
    classifier().fit(X, Y, epochs=2.5, verbose=0)


@wrong(InputError, "whole number >= 1")
def batch_zero():
    classifier().fit(X, Y, batch_size=0, verbose=0)


@wrong(InputError, "brings its own targets")
def dataset_and_y():
    classifier().fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(8), Y, verbose=0)


@wrong(NotBatchedError, "call .batch(n)")
def dataset_unbatched():
    classifier().fit(tf.data.Dataset.from_tensor_slices((X, Y)), verbose=0)


@wrong(InputError, "expected steps_per_epoch")
def dataset_infinite():
    classifier().fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat(), verbose=0)


@wrong(InputError, "evaluate", "expected steps")
def dataset_infinite_evaluate():
    classifier().evaluate(tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat(), verbose=0)


@wrong(InputError, "from_generator")
def generator_function():
    def g():
        while True:
            yield X[:8], Y[:8]

    classifier().fit(g, steps_per_epoch=2, verbose=0)


@wrong(InputError, "class_weight", "class 2")
def class_weight_missing():
    classifier().fit(X, Y, class_weight={0: 1.0, 1: 2.0}, verbose=0)


@wrong(InputError, "sample_weight", "(10,)")
def sample_weight_length():
    classifier().fit(X, Y, sample_weight=np.ones(10), verbose=0)


@wrong(InputError, "validation_split", "1.5")
def validation_split_large():
    classifier().fit(X, Y, validation_split=1.5, verbose=0)


@wrong(InputError, "outputs a, b", "found c")
def loss_wrong_key():
    i = keras.Input((8,))
    k = keras.Model(i, [L.Dense(1, name="a")(i), L.Dense(1, name="b")(i)])
    k.compile("sgd", {"a": "mse", "c": "mse"})
    k.fit(X, [B, B], verbose=0)


@wrong(InputError, "expected numbers")
def predict_strings():
    classifier().predict(np.array([["a"] * 8]), verbose=0)


@wrong(InputError, "from 0 to 9, found 12")
def embedding_out_of_range():
    k = keras.Sequential([L.Embedding(10, 4), L.Flatten(), L.Dense(1)])
    k.compile("sgd", "mse")
    k.fit(np.full((8, 5), 12), np.zeros((8, 1)), verbose=0)


@wrong(InputError, "batch, time, features")
def lstm_2d():
    k = keras.Sequential([L.LSTM(4), L.Dense(1)])
    k.compile("sgd", "mse")
    k.fit(X, B, verbose=0)


@wrong(AttributeError, "do you mean Dense?")
def typo_layer():
    L.Densee(3)


@wrong(AttributeError, "do you mean layers?")
def typo_module():
    keras.layer


@wrong(SpecError, "2 inputs, but 1")
def disconnected():
    i, j = keras.Input((4,)), keras.Input((4,))
    keras.Model(j, L.Dense(2)(i))


@wrong(SpecError, "unique", "['a']")
def same_names():
    i = keras.Input((4,))
    keras.Model(i, L.Dense(2, name="a")(L.Dense(2, name="a")(i)))


@wrong(ProgramError, "np.mean", "no numbers before the model runs", "dt.reduce_mean")
def numpy_mean_of_symbol():
    np.mean(keras.Input((4,)))


@wrong(ProgramError, "`if`", "Layer with a `call`")
def if_symbol():
    if keras.Input((4,)) > 0:
        pass


@wrong(ProgramError, "a loop over it")
def for_symbol():
    for each in keras.Input((4,)):
        pass


@wrong(ProgramError, "numpy()", "no numbers before the model runs")
def numpy_method_symbol():
    keras.Input((4,)).numpy()


@wrong(InputError, "add (Add)", "[(4,), (3,)]")
def symbol_shapes():
    keras.Input((4,)) + keras.Input((3,))


@wrong(InputError, "differ along the axis only")
def concat_shapes():
    tf.concat([keras.Input((4, 2)), keras.Input((3, 3))], axis=-1)


@wrong(ProgramError, "lambda (Lambda)", "found None")
def lambda_none():
    k = keras.Sequential([L.Lambda(lambda x: None, input_shape=(8,)), L.Dense(1)])
    k.compile("sgd", "mse")
    k.fit(X, B, verbose=0)


@wrong(ProgramError, "persistent=True")
def tape_twice():
    v = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        y = v * v
    tape.gradient(y, v)
    tape.gradient(y, v)


@wrong(ProgramError, "GradientTape.watch", "arrays or variables", "3")
def tape_not_watched():
    with tf.GradientTape() as tape:
        tape.watch(3)


@wrong(InputError, "expected a gradient, found None", "dense/kernel")
def apply_none():
    m = regressor()
    keras.optimizers.SGD().apply_gradients([(None, v) for v in m.trainable_variables])


@wrong(InputError, "zip(gradients, variables)")
def apply_unzipped():
    m = regressor()
    keras.optimizers.SGD().apply_gradients([np.zeros(3)])


@wrong(ProgramError, "Own", "expected `call`")
def layer_without_call():
    class Own(L.Layer):
        pass

    k = keras.Sequential([Own(input_shape=(8,)), L.Dense(1)])
    k.compile("sgd", "mse")
    k.fit(X, B, verbose=0)


@wrong(ProgramError, "own (Own)", "found None")
def layer_returns_none():
    class Own(L.Layer):
        def call(self, x):
            x * 2

    k = keras.Sequential([Own(), L.Dense(1)])
    k.compile("sgd", "mse")
    k.fit(X, B, verbose=0)


@wrong(AttributeError, "add_loss", "activity_regularizer")
def layer_add_loss():
    class Own(L.Layer):
        def call(self, x):
            self.add_loss(tf.reduce_sum(x))
            return x

    k = keras.Sequential([Own(), L.Dense(1)])
    k.compile("sgd", "mse")
    k.fit(X, B, verbose=0)


@wrong(InputError, "add_weight", "(None, 3)")
def layer_add_weight_shape():
    class Own(L.Layer):
        def build(self, s):
            self.w = self.add_weight("w", (None, 3))

        def call(self, x):
            return x @ self.w

    keras.Sequential([Own(), L.Dense(1)]).build((None, 8))


@wrong(InputError, "own (Own)", "shape (batch, 8)")
def layer_wrong_shape():
    class Own(L.Layer):
        def build(self, s):
            self.w = self.add_weight("w", (5, 3))

        def call(self, x):
            return tf.matmul(x, self.w)

    k = keras.Sequential([Own(), L.Dense(1)])
    k.compile("sgd", "mse")
    k.fit(X, B, verbose=0)


@wrong(InputError, "compose them in Sequential")
def model_without_call():
    class Own(keras.Model):
        pass

    m = Own()
    m.compile("sgd", "mse")
    m.fit(X, B, verbose=0)


@wrong(ProgramError, "super().__init__()")
def model_no_super():
    class Own(keras.Model):
        def __init__(self):
            self.d = L.Dense(1)

        def call(self, x):
            return self.d(x)

    m = Own()
    m.compile("sgd", "mse")
    m.fit(X, B, verbose=0)


@wrong(InputError, "build(input_shape)")
def model_summary_unbuilt():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.d = L.Dense(1)

        def call(self, x):
            return self.d(x)

    Own().summary()


@wrong(ProgramError, "train_step", "{'loss': loss}", "NoneType")
def train_step_returns_none():
    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data

    m = Own([L.Dense(1, input_shape=(8,))])
    m.compile("sgd", "mse")
    m.fit(X, B, verbose=0)


@wrong(ProgramError, "call(self, y_true, y_pred)")
def loss_without_call():
    class Own(keras.losses.Loss):
        pass

    regressor(Own()).fit(X, B, verbose=0)


@wrong(ProgramError, "a loss for each example, found None")
def loss_function_none():
    regressor(lambda t, p: None).fit(X, B, verbose=0)


@wrong(ProgramError, "np.median", "functions of dt")
def loss_function_numpy():
    regressor(lambda t, p: np.median(t - p)).fit(X, B, verbose=0)


@wrong(SpecError, "found the class MeanSquaredError", "write MeanSquaredError(")
def loss_class():
    regressor(keras.losses.MeanSquaredError).fit(X, B, verbose=0)


@wrong(SpecError, "found the class MeanAbsoluteError")
def metric_class():
    regressor(metrics=[keras.metrics.MeanAbsoluteError]).fit(X, B, verbose=0)


@wrong(NotImplementedError, "Own", "result()")
def metric_no_result():
    class Own(keras.metrics.Metric):
        def update_state(self, t, p, sample_weight=None):
            pass

    regressor(metrics=[Own()]).fit(X, B, verbose=0)


@wrong(ProgramError, "super().__init__()")
def metric_no_super():
    class Own(keras.metrics.Metric):
        def __init__(self):
            self.n = self.add_weight(name="n")

    Own()


@wrong(SpecError, "learning_rate", "LearningRateSchedule")
def schedule_lambda():
    keras.optimizers.SGD(lambda: 0.1)


@wrong(NotImplementedError, "__call__(self, step)")
def schedule_no_call():
    class Own(keras.optimizers.schedules.LearningRateSchedule):
        pass

    m = keras.Sequential([L.Dense(1, input_shape=(8,))])
    m.compile(keras.optimizers.SGD(Own()), "mse")
    m.fit(X, B, verbose=0)


@wrong(SpecError, "found the class SGD", "write SGD(")
def optimizer_class():
    m = keras.Sequential([L.Dense(1, input_shape=(8,))])
    m.compile(keras.optimizers.SGD, "mse")
    m.fit(X, B, verbose=0)


@wrong(SpecError, "LayerNormalization", "use a regularizer")
def constraint_argument():
    L.LayerNormalization(gamma_constraint="non_neg", kernel_constraint="non_neg")


@wrong(InputError, "mask", "(2, 4)", "(2, 3)")
def mask_length():
    L.LSTM(3)(np.ones((2, 4, 3), "float32"), mask=np.ones((2, 3), bool))


@wrong(InputError, "initial_state", "expected 2 tensors")
def initial_state_count():
    s = keras.Input((4, 3))
    L.LSTM(3)(s, initial_state=[keras.Input((3,))])


@wrong(InputError, "initial_state", "found 1 of the lengths [5]")
def initial_state_shape():
    s = keras.Input((4, 3))
    L.GRU(3)(s, initial_state=[keras.Input((5,))])


@wrong(SpecError, "expected a recurrent layer", "Dense")
def bidirectional_of_dense():
    L.Bidirectional(L.Dense(3))


@wrong(SpecError, "found the class Dense")
def timedistributed_of_class():
    L.TimeDistributed(L.Dense)


@wrong(InputError, "dot (Dot)", "length 5")
def dot_axes():
    L.Dot(axes=1)([keras.Input((4,)), keras.Input((5,))])


@wrong(SpecError, "LSTM", "longer sequences")
def stateful():
    L.LSTM(3, stateful=True)


@wrong(AttributeError, "three axes", "dt.from_torch")
def conv3d():
    L.Conv3D


@wrong(SpecError, "Dense", "models compute in float32")
def dtype16():
    L.Dense(3, dtype="float16")


@wrong(InputError, "no layer conv", "dense, dense_1")
def get_layer_missing():
    classifier().get_layer("conv")


@wrong(ProgramError, "expected an array or a symbol")
def layer_on_text():
    L.Dense(3)("text")


@wrong(SpecError, "expected JSON of Model.to_json")
def model_from_json_text():
    keras.models.model_from_json("nonsense")


@wrong(InputError, "expected a model, found Dense")
def clone_not_model():
    keras.models.clone_model(L.Dense(3))


@wrong(CheckpointDamagedError, "t.keras", "b'hello'")
def read_text_as_keras():
    Path("t.keras").write_text("hello")
    keras.models.load_model("t.keras")


@wrong(CheckpointDamagedError, "t.weights.h5", "b'hello'")
def read_weights_h5_text():
    Path("t.weights.h5").write_text("hello")
    classifier().load_weights("t.weights.h5")


@wrong(InputError, "class numbers", "found -1")
def to_categorical_negative():
    keras.utils.to_categorical([-1, 2])


@wrong(SpecError, "whole number", "1.5")
def seed_float():
    keras.utils.set_random_seed(1.5)


@wrong(SpecError, "no vocabulary", "adapt(data)")
def not_adapted():
    L.StringLookup()(np.array(["a"]))


@wrong(InputError, "nothing is downloaded", "nowhere.npz")
def mnist_missing():
    keras.datasets.mnist.load_data(path="nowhere.npz")


@wrong(AttributeError, "nothing is traced")
def tf_function():
    tf.function(lambda x: x)


@wrong(AttributeError, "there are no sessions")
def tf_session():
    tf1.Session()


@wrong(InputError, "expected an EstimatorSpec")
def model_fn_no_spec():
    est = tf.estimator.Estimator(lambda features, labels, mode: None, model_dir="e1")
    est.train(one_example, max_steps=1)


@wrong(InputError, "arguments of features, labels, mode", "found x")
def model_fn_args():
    est = tf.estimator.Estimator(lambda x, y: None, model_dir="e2")
    est.train(one_example, max_steps=1)


@wrong(InputError, "loss", "tf1.losses")
def model_fn_no_loss():
    def model_fn(features, labels, mode):
        return tf.estimator.EstimatorSpec(mode, predictions=tf1.layers.dense(features, 1))

    est = tf.estimator.Estimator(model_fn, model_dir="e3")
    est.train(one_example, max_steps=1)


@wrong(InputError, "train_op", "minimize")
def model_fn_no_train_op():
    def model_fn(features, labels, mode):
        p = tf1.layers.dense(features, 1)
        return tf.estimator.EstimatorSpec(mode, predictions=p, loss=tf1.losses.mean_squared_error(labels, p))

    est = tf.estimator.Estimator(model_fn, model_dir="e4")
    est.train(one_example, max_steps=1)


@wrong(AttributeError, "CPUs alone")
def strategy_tpu():
    tf.distribute.TPUStrategy()


@wrong(SpecError, "'CPU:0'", "'GPU:0'")
def gpu_device():
    tf.distribute.MirroredStrategy(["GPU:0"])


@wrong(ContextError, "merge_call")
def run_inside():
    s = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    s.run(lambda: s.run(lambda: 1))


@wrong(InputError, "ReduceOp.SUM", "'MAX'")
def reduce_op():
    s = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    s.reduce("MAX", 1.0, axis=None)


@wrong(InputError, "(4,)")
def input_int():
    keras.Input(4)


@wrong(InputError, "pre or post", "'left'")
def pad_mode():
    keras.utils.pad_sequences([[1], [1, 2]], padding="left")


@wrong(InputError, "expected one input, found 2")
def dense_on_list_symbol():
    L.Dense(3)([keras.Input((3,)), keras.Input((3,))])


@wrong(SpecError, "valid, same", "'full'")
def conv_padding():
    L.Conv2D(3, 3, padding="full")


@wrong(InputError, "found None")
def predict_none():
    classifier().predict(None)
