"""Write losses_reference.json: TensorFlow 2.15.1's numbers of losses and metrics; `python losses_reference.py`."""

import json
from pathlib import Path

import numpy as np

CASES = {
    "BinaryFocalCrossentropy": [
        {},
        {"apply_class_balancing": True, "alpha": 0.3, "gamma": 1.5},
        {"from_logits": True, "label_smoothing": 0.1},
    ],
    "CategoricalHinge": [{}],
}
FUNCTIONS = (
    *("mse", "mae", "MAPE", "msle", "kld", "cosine_similarity", "poisson", "hinge", "squared_hinge", "huber"),
    *("binary_crossentropy", "categorical_crossentropy", "log_cosh", "binary_focal_crossentropy"),
)


def data(logits: bool):
    rng = np.random.default_rng(7)
    y = np.eye(4, dtype=np.float32)[[0, 2, 1]]
    p = rng.uniform(0.05, 1, (3, 4)).astype(np.float32)
    return y, (np.log(p) * 2).astype(np.float32) if logits else p / p.sum(axis=-1, keepdims=True)


def main() -> None:
    import tensorflow as tf

    found = {"losses": [], "functions": {}, "vectors": {}}
    for name, cases in CASES.items():
        for arguments in cases:
            y, p = data(arguments.get("from_logits", False))
            with tf.GradientTape() as tape:
                x = tf.constant(p)
                tape.watch(x)
                value = getattr(tf.keras.losses, name)(**arguments)(y, x)
            gradient = tape.gradient(value, x).numpy().tolist()
            found["losses"].append([name, arguments, float(value), gradient])
    y, p = data(False)
    for name in FUNCTIONS:
        function = getattr(tf.keras.losses, name)
        found["functions"][name] = function(y, p).numpy().tolist()
        found["vectors"][name] = float(function(y[0], p[0]))
    Path(__file__).with_suffix(".json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
