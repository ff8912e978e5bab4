"""Whole trainings: file j."""

import numpy as np
import tensorflow as tf
from conformance.perturbing.distribution import mirrored
from conformance.perturbing.values import plain

EXAMPLES, FEATURES, OUTPUTS, STEPS = 5, 3, 2, 8
HIDDEN, CLASSES, ROWS = 4, 5, 19
LEFT_OUT = "tf.compat.v1"
"""Runs of this driver are left out: it is a graph of a program that is not kept."""


def trainings(golden, draw):
    """Other data, shapes, weights, rates and batch sizes; replicas and orders of the data stay."""
    for what in ("", "eval_"):
        golden[f"{what}features"] = plain(draw.normal(EXAMPLES, FEATURES))
        golden[f"{what}labels"] = plain(draw.normal(EXAMPLES, OUTPUTS))
    golden["initial_kernel"], golden["initial_bias"] = (
        plain(draw.normal(FEATURES, OUTPUTS)),
        plain(draw.normal(OUTPUTS)),
    )
    golden["steps"] = STEPS
    golden["runs"] = [run for run in golden["runs"] if LEFT_OUT not in run["driver"]]
    for run in golden["runs"]:
        run["optimizer"] = draw.nudged(run["optimizer"])
        run["global_batch"] = 2 * run["replicas"] if "repeat_then" in run["data"] else run["global_batch"] + 1
        for key in [key for key in run if key.startswith("eval_loss") or "per_replica" in key]:
            del run[key]
        if "average_loss" in run["driver"]:
            run["driver"] = (
                f"custom loop, tf.nn.compute_average_loss(global_batch_size={run['global_batch']})"
            )
        (_by_fit if run["driver"] == "Model.fit" else _by_hand)(golden, run)
    arrays = {}
    x, y = draw.normal(ROWS, FEATURES), draw.integers(CLASSES, ROWS)
    weights = [
        draw.normal(FEATURES, HIDDEN),
        draw.normal(HIDDEN),
        draw.normal(HIDDEN, CLASSES),
        draw.normal(CLASSES),
    ]
    for case in golden["classifiers"]:
        case["optimizer"] = draw.nudged(case["optimizer"])
        case.update(
            global_batch=7,
            examples=ROWS,
            steps=STEPS,
            architecture=case["architecture"].replace("dense6 relu", f"dense{HIDDEN} tanh"),
        )
        arrays |= {
            f"{case['name']}/{what}": value for what, value in _classifier(case, x, y, weights).items()
        }
    return golden, arrays


def _optimizer(case):
    name, arguments = case["optimizer"]
    return getattr(tf.keras.optimizers, name.rsplit(".", 1)[-1])(**arguments)


def _strategy(case):
    return mirrored(case["replicas"]) if case["replicas"] > 1 else tf.distribute.get_strategy()


def _data(golden, run):
    data = tf.data.Dataset.from_tensor_slices(
        tuple(np.array(golden[what], "f4") for what in ("features", "labels"))
    )
    if run["data"] == "repeat_then_batch":
        return data.repeat().batch(run["global_batch"])
    return data.batch(run["global_batch"], drop_remainder="drop" in run["data"]).repeat()


def _tutorial(golden):
    model = tf.keras.Sequential([tf.keras.layers.Dense(OUTPUTS, input_shape=(FEATURES,))])
    model.set_weights([np.array(golden["initial_kernel"], "f4"), np.array(golden["initial_bias"], "f4")])
    return model


def _note(run, walked):
    run["kernel"] = [plain(kernel.ravel()) for kernel, _ in walked]
    run["bias"] = [plain(bias) for _, bias in walked]


def _by_fit(golden, run):
    with _strategy(run).scope():
        model = _tutorial(golden)
        model.compile(optimizer=_optimizer(run), loss="mse")
    walked = [model.get_weights()]
    note = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: walked.append(model.get_weights())
    )
    # An epoch a step, so that the loss of each step is reported alone.
    history = model.fit(_data(golden, run), epochs=STEPS, steps_per_epoch=1, verbose=0, callbacks=[note])
    _note(run, walked)
    run["reported_loss"] = plain(history.history["loss"])
    features, labels = (np.array(golden[f"eval_{what}"], "f4") for what in ("features", "labels"))
    alone = _tutorial(golden)
    alone.set_weights(model.get_weights())
    alone.compile(loss="mse")
    run["eval_loss"] = plain(alone.evaluate(features, labels, batch_size=1, verbose=0))
    run["eval_loss_batch_of_3"] = plain(alone.evaluate(features, labels, batch_size=3, verbose=0))
    run["predictions"] = plain(alone.predict(features, verbose=0).ravel())


def _by_hand(golden, run):
    """A loop of one's own; or the mean of the replicas' gradients, each a mean over its own examples."""
    average = "average_loss" in run["driver"]
    strategy = _strategy(run)
    with strategy.scope():
        model, optimizer = _tutorial(golden), _optimizer(run)
        optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            each = tf.reduce_mean((model(x) - y) ** 2, axis=-1)
            if average:
                loss = tf.nn.compute_average_loss(each, global_batch_size=run["global_batch"])
            else:
                loss = tf.reduce_mean(each) / run["replicas"]
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    walked, losses = [model.get_weights()], []
    batches = iter(strategy.experimental_distribute_dataset(_data(golden, run)))
    for _ in range(STEPS):
        losses.append(strategy.reduce("SUM", strategy.run(tf.function(step), next(batches)), axis=None))
        walked.append(model.get_weights())
    _note(run, walked)
    if average:
        run["loss_sum_over_replicas"] = plain(losses)
    x, y = (np.array(golden[f"eval_{what}"], "f4") for what in ("features", "labels"))
    kernel, bias = model.get_weights()
    run["eval_loss_mean"] = plain(np.mean((x @ kernel + bias - y) ** 2))


def _classifier(case, x, y, weights):
    strategy = _strategy(case)
    with strategy.scope():
        layers = [
            tf.keras.layers.Dense(HIDDEN, "tanh", input_shape=(FEATURES,)),
            tf.keras.layers.Dense(CLASSES),
        ]
        if "batchnorm" in case["architecture"]:
            layers.insert(1, tf.keras.layers.BatchNormalization())
        model, optimizer = tf.keras.Sequential(layers), _optimizer(case)
        for layer, values in zip((layers[0], layers[-1]), (weights[:2], weights[2:]), strict=True):
            layer.set_weights(values)
        optimizer.build(model.trainable_variables)
        correct = tf.keras.metrics.SparseCategoricalAccuracy()

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            each = tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
            loss = tf.nn.compute_average_loss(each, global_batch_size=case["global_batch"])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        correct.update_state(y, logits)
        return loss

    batches = iter(
        strategy.experimental_distribute_dataset(
            tf.data.Dataset.from_tensor_slices((x, y)).batch(case["global_batch"]).repeat()
        )
    )
    walked, losses, traced = [_by_name(case, model)], [], tf.function(step)
    for _ in range(STEPS):
        losses.append(strategy.reduce("SUM", strategy.run(traced, next(batches)), axis=None).numpy())
        walked.append(_by_name(case, model))
    case["accuracy_over_all_steps"] = plain(correct.result())
    kept = {f"weights/{name}": np.array([values[name] for values in walked]) for name in case["weights"]}
    return {
        **kept,
        "x": x,
        "y": y,
        "loss": np.array(losses),
        "final_logits_inference": model(x, training=False).numpy(),
    }


def _by_name(case, model):
    """Every weight in the order of the layers, as the file has them."""
    values = [value for layer in model.layers for value in layer.get_weights()]
    return dict(zip(case["weights"], values, strict=True))
