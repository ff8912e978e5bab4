"""An Estimator of which every replica's batch is the same, so that any number of them makes the same steps."""

import dtrain.compat.v1 as tf1


def input_fn():
    return tf1.data.Dataset.from_tensors(([[1.0, 1.5]], [[0.3]])).repeat()


def eval_input_fn():
    return tf1.data.Dataset.from_tensors(([[4.0, 4.5]], [[0.8]]))


def model_fn(features, labels, mode):
    predictions = tf1.layers.dense(features, 1, kernel_initializer=tf1.constant_initializer(0.1))
    loss = tf1.losses.mean_squared_error(labels, predictions)
    train_op = tf1.train.AdagradOptimizer(0.05).minimize(loss, tf1.train.get_global_step())
    metrics = {"off": tf1.metrics.mean_absolute_error(labels, predictions)}
    return tf1.estimator.EstimatorSpec(mode, predictions, loss, train_op, metrics)


estimator = tf1.estimator.Estimator(model_fn)
train_spec = tf1.estimator.TrainSpec(input_fn, max_steps=8)
results, exports = tf1.estimator.train_and_evaluate(
    estimator, train_spec, tf1.estimator.EvalSpec(eval_input_fn, start_delay_secs=0)
)
if results is not None:
    print([round(float(results[name]), 5) for name in ("loss", "off", "global_step")])
