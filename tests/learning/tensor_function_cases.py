"""Calls of tensor functions, the same for TensorFlow and dtrain.

`python tensor_function_cases.py`, where TensorFlow 2.15.1 is installed, writes tensor_function_reference.json
beside this file: of each case the value, and the gradients of its sum, weighed by cos(0), cos(1), ..., by x
and y.
"""

import json
from pathlib import Path

import numpy as np

REFERENCE = Path(__file__).with_name("tensor_function_reference.json")
X = np.array([[0.7, -1.2, 0.3, 2.1], [-0.4, 1.5, -2.2, 0.9], [1.1, 0.2, -0.6, -1.7]], np.float32)
Y = np.array([[0.5, 1.3, 0.8, 0.2], [1.9, 0.4, 0.6, 1.2], [0.3, 1.6, 0.9, 0.7]], np.float32)

CASES = {
    **{
        name: lambda tf, x, y, name=name: getattr(tf, name)(x)
        for name in (
            *("abs", "cos", "exp", "floor", "negative", "round", "sigmoid", "sign", "sin", "square"),
            *("tanh", "zeros_like", "ones_like", "transpose", "argmax", "argmin", "reduce_sum"),
        )
    },
    **{
        f"math.{name}": lambda tf, x, y, name=name: getattr(tf.math, name)(y)
        for name in ("log", "log1p", "sqrt", "rsqrt", "ceil", "cumsum", "softplus")
    },
    **{
        f"{name} of two": lambda tf, x, y, name=name: getattr(tf.math, name)(x, y)
        for name in (
            *("add", "subtract", "multiply", "divide", "maximum", "minimum", "squared_difference"),
            *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "divide_no_nan"),
        )
    },
    **{
        f"{name} along 1": lambda tf, x, y, name=name: getattr(tf, name)(x, axis=1, keepdims=True)
        for name in (
            "reduce_sum",
            "reduce_mean",
            "reduce_max",
            "reduce_min",
            "reduce_prod",
        )
    },
    **{
        f"nn.{name}": lambda tf, x, y, name=name: getattr(tf.nn, name)(x)
        for name in (
            *("relu", "relu6", "elu", "selu", "silu", "softsign", "gelu", "leaky_relu", "softmax"),
            *("log_softmax", "softplus", "sigmoid", "tanh"),
        )
    },
    "reduce_variance": lambda tf, x, y: tf.math.reduce_variance(x, [0, 1]),
    "reduce_any": lambda tf, x, y: tf.reduce_any(x > 2, 0),
    "reduce_all": lambda tf, x, y: tf.reduce_all(x > -2, 1),
    "pow": lambda tf, x, y: tf.pow(y, 3) + y**x,
    "operators": lambda tf, x, y: (2 * x - y / 3) * (1 - x) + -x,
    "activations": lambda tf, x, y: tf.keras.activations.get("swish")(x) * tf.keras.activations.tanh(y),
    "ties": lambda tf, x, y: tf.maximum(x, x) + tf.minimum(y, y) + tf.maximum(x, 0.7) + tf.nn.relu(x - x),
    "clip_by_value": lambda tf, x, y: tf.clip_by_value(x, -1.2, 0.9),
    "cumsum along 1": lambda tf, x, y: tf.cumsum(x, 1),
    "matmul": lambda tf, x, y: tf.matmul(x, y, transpose_b=True) @ x,
    "einsum": lambda tf, x, y: tf.einsum("ij,kj->ik", x, y),
    "concat": lambda tf, x, y: tf.concat([x, y, x], -1),
    "stack": lambda tf, x, y: tf.stack([x, y], 1),
    "split": lambda tf, x, y: tf.split(x * y, [1, 3], 1)[1],
    "halves": lambda tf, x, y: tf.split(x, 2, axis=1)[0],
    "tile": lambda tf, x, y: tf.tile(x, [2, 1]),
    "gather": lambda tf, x, y: tf.gather(x, [0, 2, 0]),
    "gather along 1": lambda tf, x, y: tf.gather(x, [3, 1], axis=1),
    "gather of each": lambda tf, x, y: tf.gather(x, [[0, 1], [3, 3], [2, 0]], batch_dims=1),
    "expand_dims, squeeze": lambda tf, x, y: tf.squeeze(tf.expand_dims(x, 1) * y[:, None], axis=[1]),
    "reshape": lambda tf, x, y: tf.reshape(x, [4, -1]),
    "indexing": lambda tf, x, y: x[:, 1:3] * y[0, -1] + x[..., :2],
    "where": lambda tf, x, y: tf.where(x > 0, x * y, 0.0),
    "cast": lambda tf, x, y: tf.cast(tf.cast(x > 0, tf.int32), tf.float32) * x,
    "one_hot": lambda tf, x, y: tf.one_hot([1, 0, 5], 3) + 0 * x[:, :3],
    "stop_gradient": lambda tf, x, y: tf.stop_gradient(x) * x,
    "constant": lambda tf, x, y: tf.constant([1, 2, 3, 4], tf.float32) + x * tf.constant(2.0),
    "range": lambda tf, x, y: tf.cast(tf.range(4), tf.float32) * x + tf.range(0.0, 2.0, 0.5),
    "zeros, ones": lambda tf, x, y: tf.zeros([3, 4]) + tf.ones((3, 1)) * x,
    "l2_normalize": lambda tf, x, y: tf.math.l2_normalize(x, axis=1),
    "sigmoid cross-entropy": lambda tf, x, y: tf.nn.sigmoid_cross_entropy_with_logits(labels=y / 2, logits=x),
    "softmax cross-entropy": lambda tf, x, y: tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(y), x),
    "sparse cross-entropy": lambda tf, x, y: tf.nn.sparse_softmax_cross_entropy_with_logits([1, 0, 3], x),
}


def weights(shape):
    return np.cos(np.arange(int(np.prod(shape)), dtype=np.float32)).reshape(shape)


def found(tf, case):
    x, y = tf.Variable(X), tf.Variable(Y)
    with tf.GradientTape() as tape:
        value = case(tf, x, y)
        total = tf.reduce_sum(value * weights(value.shape)) if value.dtype == tf.float32 else None
    gradients = [None, None] if total is None else tape.gradient(total, [x, y])
    gradients = [None if each is None else tf.convert_to_tensor(each) for each in gradients]
    return [None if each is None else np.asarray(each).tolist() for each in (value, *gradients)]


if __name__ == "__main__":
    import tensorflow

    REFERENCE.write_text(json.dumps({name: found(tensorflow, case) for name, case in CASES.items()}) + "\n")
