"""The migration guide's program for several workers, with the Estimator; only the imports are another's."""

import tempfile

import dtrain as tf
import dtrain.compat.v1 as tf1

features = [[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]]
labels = [[0.3], [0.5], [0.7]]
eval_features = [[4.0, 4.5], [5.0, 5.5], [6.0, 6.5]]
eval_labels = [[0.8], [0.9], [1.0]]


def _input_fn():
    return tf1.data.Dataset.from_tensor_slices((features, labels)).batch(1)


def _eval_input_fn():
    return tf1.data.Dataset.from_tensor_slices((eval_features, eval_labels)).batch(1)


def _model_fn(features, labels, mode):
    first = tf1.constant_initializer([[0.1], [0.2]])
    logits = tf1.layers.Dense(1, kernel_initializer=first)(features)
    if mode == tf1.estimator.ModeKeys.PREDICT:
        return tf1.estimator.EstimatorSpec(mode, predictions={"price": logits})
    loss = tf1.losses.mean_squared_error(labels=labels, predictions=logits)
    optimizer = tf1.train.AdagradOptimizer(0.05)
    train_op = optimizer.minimize(loss, global_step=tf1.train.get_or_create_global_step())
    return tf1.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


config = tf1.estimator.RunConfig(model_dir=tempfile.mkdtemp(), save_checkpoints_steps=2)
estimator = tf1.estimator.Estimator(model_fn=_model_fn, config=config)
train_spec = tf1.estimator.TrainSpec(input_fn=_input_fn)
eval_spec = tf1.estimator.EvalSpec(input_fn=_eval_input_fn)
print(tf1.estimator.train_and_evaluate(estimator, train_spec, eval_spec))
print([float(each["price"][0]) for each in estimator.predict(_eval_input_fn)])

# The folder is gone on from, here as in another process.
again = tf1.estimator.Estimator(_model_fn, model_dir=estimator.model_dir)
print(again.evaluate(_eval_input_fn)["global_step"])
again.train(_input_fn, steps=2)
print(again.evaluate(_eval_input_fn, steps=2))
again.train(_input_fn, max_steps=7)
print(again.evaluate(_eval_input_fn))
again.train(_input_fn, max_steps=7)
print(again.evaluate(_eval_input_fn)["global_step"])
print(tf.train.latest_checkpoint(again.model_dir) is not None)
