"""Programs that write layers, models, losses and steps of their own, the same for TensorFlow and dtrain.

`python written_programs.py`, where TensorFlow 2.15.1 is installed, writes written_reference.json beside this
file: the numbers that each program returns. `tf` is TensorFlow or dtrain, `k` is tf.keras or dtrain.
"""

import json
from pathlib import Path

import numpy as np

REFERENCE = Path(__file__).with_name("written_reference.json")
X = np.cos(np.arange(96, dtype=np.float32)).reshape(24, 4)
Y = X[:, :1] * 2 - X[:, 1:2] + 0.5
FIT = {"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0}


def shaken(model):
    """Build a model and give it values that follow from their shapes alone; vectors, as variances are, above 0."""
    if not model.built:
        model.build((None, 4))
    shapes = [np.shape(value) for value in model.get_weights()]
    waves = [0.4 * np.sin(1 + np.arange(np.prod(shape))).reshape(shape) for shape in shapes]
    model.set_weights([wave + 0.5 * (wave.ndim == 1) for wave in waves])
    return model


def numbers(model, history):
    found = {name: [float(each) for each in values] for name, values in history.history.items()}
    return {**found, "sums": [float(np.abs(value).sum()) for value in model.get_weights()]}


def linear_of(tf, k):
    class Linear(k.layers.Layer):
        def __init__(self, units=4, **kwargs):
            super().__init__(**kwargs)
            self.units = units

        def build(self, input_shape):
            self.w = self.add_weight(
                name="w", shape=(input_shape[-1], self.units), initializer="glorot_uniform", trainable=True
            )
            self.b = self.add_weight(name="b", shape=(self.units,), initializer="zeros", trainable=True)

        def call(self, inputs):
            return tf.matmul(inputs, self.w) + self.b

        def get_config(self):
            return {**super().get_config(), "units": self.units}

    return Linear


def block_of(tf, k):
    class Block(k.layers.Layer):
        def __init__(self, units, **kwargs):
            super().__init__(**kwargs)
            self.units = units
            self.ffn = k.Sequential([k.layers.Dense(units * 2, activation="tanh"), k.layers.Dense(units)])
            self.norm = k.layers.LayerNormalization()
            self.drop = k.layers.Dropout(0.0)

        def call(self, inputs, training=False):
            inner = self.drop(self.ffn(inputs), training=training)
            return self.norm(inputs + inner)

        def get_config(self):
            return {**super().get_config(), "units": self.units}

    return Block


def own_layers(tf, k):
    linear, block = linear_of(tf, k), block_of(tf, k)
    model = k.Sequential([k.Input((4,)), linear(6), block(6, name="block"), linear(1, name="last")])
    model.compile(k.optimizers.SGD(0.05), "mse")
    return numbers(shaken(model), model.fit(X, Y, **FIT))


def functional_with_operators(tf, k):
    x = k.Input((4,))
    h = k.layers.Dense(4, activation="tanh")(x)
    h = 0.5 * h + x * x - tf.nn.softmax(x) / 3.0
    h = tf.concat([h, tf.reduce_mean(h, axis=1, keepdims=True), x[:, 1:3]], 1)
    h = k.layers.Lambda(lambda t: tf.math.log(1.0 + tf.exp(t)))(h)
    model = k.Model(x, k.layers.Dense(1)(h))
    model.compile(k.optimizers.SGD(0.05, momentum=0.9), "mse")
    return numbers(shaken(model), model.fit(X, Y, **FIT))


def subclassed(tf, k):
    class Net(k.Model):
        def __init__(self):
            super().__init__()
            self.first = k.layers.Dense(5, activation="relu")
            self.norm = k.layers.BatchNormalization()
            self.drop = k.layers.Dropout(0.0)
            self.head = k.Sequential([k.layers.Dense(3, activation="tanh"), k.layers.Dense(1)])

        def call(self, inputs, training=None):
            h = self.norm(self.first(inputs), training=training)
            if training:
                h = self.drop(h, training=training)
            return self.head(tf.concat([h, tf.square(inputs)], axis=-1))

    model = Net()
    model.compile(k.optimizers.SGD(0.05), "mse", metrics=["mae"])
    found = numbers(shaken(model), model.fit(X, Y, **FIT))
    predicted = float(np.sum(model.predict(X, verbose=0)))
    return {**found, "predicted": predicted, "evaluated": model.evaluate(X, Y, verbose=0)}


def own_losses(tf, k):
    class Weighed(k.losses.Loss):
        def __init__(self, factor=0.1, name="weighed"):
            super().__init__(name=name)
            self.factor = factor

        def call(self, y_true, y_pred):
            mse = tf.reduce_mean(tf.math.square(y_true - y_pred), axis=-1)
            return mse + self.factor * tf.reduce_mean(tf.abs(0.5 - y_pred), axis=-1)

    def of_all(y_true, y_pred):
        return tf.reduce_mean(tf.math.log(1.0 + (y_true - y_pred) ** 2))

    def of_each(y_true, y_pred):
        return tf.reduce_sum(tf.abs(y_true - y_pred) ** 1.5, axis=-1)

    found = {}
    weights = np.linspace(0.5, 1.5, len(X)).astype(np.float32)
    for name, loss in {"class": Weighed(), "of all": of_all, "of each": of_each}.items():
        for weighed in (False, True):
            model = k.Sequential([k.Input((4,)), k.layers.Dense(3, activation="tanh"), k.layers.Dense(1)])
            model.compile(k.optimizers.SGD(0.05), loss)
            how = {"sample_weight": weights} if weighed else {}
            found[f"{name} {weighed}"] = numbers(shaken(model), model.fit(X, Y[:, 0], **FIT, **how))
    return found


def own_train_step(tf, k):
    class Stepping(k.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred)
            variables = self.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            self.compiled_metrics.update_state(y, y_pred)
            return {metric.name: metric.result() for metric in self.metrics}

    x = k.Input((4,))
    h = k.layers.Dense(6, activation="tanh", kernel_regularizer=k.regularizers.L2(0.01))(x)
    model = Stepping(x, k.layers.Dense(1)(h))
    model.compile(k.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return numbers(shaken(model), model.fit(X, Y, **FIT))


def distillation(tf, k):
    class Distiller(k.Model):
        def __init__(self, teacher, student):
            super().__init__()
            self.teacher = teacher
            self.student = student
            self.tracker = k.metrics.Mean(name="distance")

        @property
        def metrics(self):
            return [self.tracker]

        def call(self, inputs):
            return self.student(inputs)

        def train_step(self, data):
            x, y = data
            soft = self.teacher(x, training=False)
            with tf.GradientTape() as tape:
                out = self.student(x, training=True)
                loss = tf.reduce_mean(tf.square(out - y)) + 0.5 * tf.reduce_mean(tf.abs(out - soft))
            variables = self.student.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            self.tracker.update_state(loss)
            return {"loss": loss, "distance": self.tracker.result()}

    teacher = shaken(k.Sequential([k.Input((4,)), k.layers.Dense(8, activation="tanh"), k.layers.Dense(1)]))
    student = k.Sequential([k.Input((4,)), k.layers.Dense(2, activation="tanh"), k.layers.Dense(1)])
    model = Distiller(teacher, student)
    model.compile(k.optimizers.SGD(0.05))
    shaken(student)
    found = model.fit(X, Y, **{**FIT, "batch_size": 24}).history
    return {name: [float(each) for each in values] for name, values in found.items()}


def loop(tf, k):
    model = shaken(k.Sequential([k.Input((4,)), k.layers.Dense(6, activation="tanh"), k.layers.Dense(3)]))
    optimizer = k.optimizers.Adam(0.02)
    loss_fn = k.losses.SparseCategoricalCrossentropy(from_logits=True)
    labels = np.arange(24) % 3
    losses = []
    for _ in range(2):
        for start in range(0, 24, 8):
            with tf.GradientTape() as tape:
                logits = model(X[start : start + 8], training=True)
                loss = loss_fn(labels[start : start + 8], logits)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            losses.append(float(loss))
    return {"losses": losses, "sums": [float(np.abs(value).sum()) for value in model.get_weights()]}


def gan(tf, k):
    make = shaken(k.Sequential([k.Input((4,)), k.layers.Dense(6, activation="relu"), k.layers.Dense(4)]))
    judge = shaken(k.Sequential([k.Input((4,)), k.layers.Dense(5, activation="tanh"), k.layers.Dense(1)]))
    entropy = k.losses.BinaryCrossentropy(from_logits=True)
    making, judging = k.optimizers.Adam(0.01), k.optimizers.Adam(0.01)
    found = []
    for step in range(3):
        noise = tf.constant(np.sin(np.arange(24) + step).reshape(6, 4), tf.float32)
        with tf.GradientTape() as of_maker, tf.GradientTape() as of_judge:
            fake = make(noise, training=True)
            real, false = judge(X[:6], training=True), judge(fake, training=True)
            maker_loss = entropy(tf.ones_like(false), false)
            judge_loss = entropy(tf.ones_like(real), real) + entropy(tf.zeros_like(false), false)
        by_maker = of_maker.gradient(maker_loss, make.trainable_variables)
        by_judge = of_judge.gradient(judge_loss, judge.trainable_variables)
        making.apply_gradients(zip(by_maker, make.trainable_variables, strict=True))
        judging.apply_gradients(zip(by_judge, judge.trainable_variables, strict=True))
        found += [float(maker_loss), float(judge_loss)]
    return {"losses": found, "sums": [float(np.abs(v).sum()) for m in (make, judge) for v in m.get_weights()]}


def gradients(tf, k):
    x = tf.Variable([[0.5, -1.0], [2.0, 0.25]])
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = tf.reduce_sum(x**3 + tf.exp(x))
        first = inner.gradient(y, x)
        norm = tf.sqrt(tf.reduce_sum(first * first))
    second = outer.gradient(norm, x)
    model = shaken(k.Sequential([k.Input((4,)), k.layers.Dense(3, activation="tanh")]))
    with tf.GradientTape(persistent=True) as tape:
        given = tf.constant(X[:2])
        tape.watch(given)
        out = model(given)
        one, two = out[:, 0], tf.reduce_sum(out[:, 1:])
    by_input, again = tape.gradient(one, given), tape.gradient(two, model.trainable_variables)
    lone = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        unused = 3.0 * x
    nothing = tape.gradient(unused, [lone, x])
    return [np.asarray(each).tolist() for each in (first, second, by_input, *again, nothing[1])] + [
        nothing[0]
    ]


def own_schedule_and_metric(tf, k):
    class WarmUp(k.optimizers.schedules.LearningRateSchedule):
        def __init__(self, width=16.0, warm=4.0):
            self.width = width
            self.warm = warm

        def __call__(self, step):
            step = tf.cast(step, tf.float32)
            return self.width**-0.5 * tf.math.minimum(tf.math.rsqrt(step + 1.0), step * self.warm**-1.5)

    class Hits(k.metrics.Metric):
        def __init__(self, name="hits", **kwargs):
            super().__init__(name=name, **kwargs)
            self.hits = self.add_weight(name="hits", initializer="zeros")
            self.seen = self.add_weight(name="seen", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            near = tf.cast(tf.abs(tf.cast(y_true, tf.float32) - y_pred) < 0.5, tf.float32)
            self.hits.assign_add(tf.reduce_sum(near))
            self.seen.assign_add(tf.cast(tf.shape(y_true)[0], tf.float32))

        def result(self):
            return self.hits / self.seen

        def reset_state(self):
            self.hits.assign(0.0)
            self.seen.assign(0.0)

    model = k.Sequential([k.Input((4,)), k.layers.Dense(3, activation="tanh"), k.layers.Dense(1)])
    model.compile(k.optimizers.SGD(WarmUp()), "mse", metrics=[Hits()])
    found = numbers(shaken(model), model.fit(X, Y, **FIT))
    return {**found, "evaluated": model.evaluate(X, Y, verbose=0), "rate": float(WarmUp()(3))}


def layers_of_sequences(tf, k):
    class Attending(k.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.attention = k.layers.MultiHeadAttention(num_heads=2, key_dim=3)
            self.ffn = k.Sequential([k.layers.Dense(7, activation="relu"), k.layers.Dense(4)])
            self.first = k.layers.LayerNormalization()
            self.second = k.layers.LayerNormalization()
            self.activation = k.activations.get("gelu")

        def build(self, input_shape):
            self.total = self.add_weight(name="total", shape=(), initializer="zeros", trainable=False)
            self.built = True

        def call(self, inputs):
            inner = self.first(inputs + self.attention(inputs, inputs))
            self.total.assign_add(tf.reduce_sum(inner))
            return self.second(inner + self.activation(self.ffn(inner)))

    class Recurring(k.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.encoder = k.layers.LSTM(3, return_state=True, return_sequences=True)
            self.decoder = k.layers.LSTM(3)
            self.both = k.layers.Bidirectional(k.layers.GRU(2))

        def call(self, inputs):
            encoded, *state = self.encoder(inputs)
            return tf.concat([self.decoder(encoded, initial_state=state), self.both(inputs)], axis=-1)

    class MaskedMean(k.layers.Layer):
        def call(self, inputs, mask=None):
            seen = tf.cast(mask, tf.float32)
            return tf.reduce_sum(inputs * seen[..., None], 1) / tf.reduce_sum(seen, 1, keepdims=True)

    x = X.reshape(6, 4, 4)
    floats, numbers_of_words = k.Input((4, 4)), k.Input((4,), dtype="int32")
    cases = {
        "attending": (floats, k.layers.Flatten()(Attending()(floats)), x),
        "recurring": (floats, Recurring()(floats), x),
        "masked": (
            numbers_of_words,
            MaskedMean()(k.layers.Embedding(9, 4, mask_zero=True)(numbers_of_words)),
            np.arange(1, 25).reshape(6, 4) % 9,
        ),
    }
    found = {}
    for name, (inputs, hidden, given) in cases.items():
        model = k.Model(inputs, k.layers.Dense(1)(hidden))
        model.compile(k.optimizers.SGD(0.02), "mse")
        history = shaken(model).fit(given, Y[:6], **{**FIT, "batch_size": 3})
        found[name] = numbers(model, history)
    return found


PROGRAMS = {
    each.__name__: each
    for each in (
        *(own_layers, functional_with_operators, subclassed, own_losses, own_train_step, distillation),
        *(loop, gan, gradients, own_schedule_and_metric, layers_of_sequences),
    )
}

if __name__ == "__main__":
    import tensorflow

    found = {name: program(tensorflow, tensorflow.keras) for name, program in PROGRAMS.items()}
    REFERENCE.write_text(json.dumps(found) + "\n")
