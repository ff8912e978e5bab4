"""An Estimator of two features and two labels: a sum of losses, metrics, params, dropout, each optimizer."""

import numpy as np

import dtrain.compat.v1 as tf1

rng = np.random.default_rng(0)
SIZE, RICH, AGE = (rng.normal(size=(12, 3)), rng.normal(size=(12, 2)), rng.normal(size=(12, 1)))
PRICE = SIZE.sum(axis=1, keepdims=True) + 0.5 * AGE
SOLD = (RICH.sum(axis=1, keepdims=True) > 0).astype(np.float32)


def input_fn(params):
    features = {"size": SIZE.astype(np.float32), "age": AGE.astype(np.float32)}
    labels = {"price": PRICE.astype(np.float32), "sold": SOLD}
    return tf1.data.Dataset.from_tensor_slices((features, labels)).batch(params["batch"])


def model_fn(features, labels, mode, params):
    training = mode == tf1.estimator.ModeKeys.TRAIN
    first = tf1.constant_initializer(0.1)
    size = tf1.layers.dense(features["size"], 4, kernel_initializer=first, name="hidden")
    size = tf1.layers.dropout(size, rate=0.0, training=training)
    price = tf1.layers.dense(size, 1, kernel_initializer=first, name="of_price")
    sold = tf1.layers.dense(features["age"], 1, kernel_initializer=first, name="of_sold")
    if mode == tf1.estimator.ModeKeys.PREDICT:
        return tf1.estimator.EstimatorSpec(mode, predictions={"price": price, "sold": sold})
    loss = tf1.losses.mean_squared_error(labels["price"], price)
    loss = loss + 0.5 * tf1.losses.sigmoid_cross_entropy(labels["sold"], sold)
    loss += tf1.losses.absolute_difference(labels["price"], price, weights=0.25)
    metrics = {
        "off": tf1.metrics.mean_absolute_error(labels["price"], price),
        "root": tf1.metrics.root_mean_squared_error(labels["sold"], sold),
    }
    with tf1.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        train_op = params["optimizer"]().minimize(loss, tf1.train.get_global_step())
    return tf1.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def decayed():
    step = tf1.train.get_or_create_global_step()
    return tf1.train.AdamOptimizer(tf1.train.exponential_decay(0.05, step, 2, 0.5, staircase=True))


for optimizer in (
    lambda: tf1.train.GradientDescentOptimizer(0.05),
    lambda: tf1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    lambda: tf1.train.AdagradOptimizer(0.1),
    decayed,
):
    estimator = tf1.estimator.Estimator(model_fn, params={"batch": 4, "optimizer": optimizer})
    results = estimator.train(input_fn).train(input_fn, max_steps=5).evaluate(input_fn)
    print([round(float(results[key]), 5) for key in ("loss", "off", "root", "global_step")])
    predicted = list(estimator.predict(input_fn))
    print(len(predicted), predicted[0]["price"], predicted[11]["sold"])
