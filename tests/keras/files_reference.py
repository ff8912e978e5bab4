"""Write tests/keras/data: small models as TensorFlow 2.15.1 saves them; `python files_reference.py`.

`chain` has a layer of each kind with weights, `graph` two inputs and a layer that is used twice. The numbers of
`outputs.json` are what they predict for `inputs`.
"""

import json
from pathlib import Path

import numpy as np

DATA = Path(__file__).with_name("data")


def inputs(shape: tuple[int, ...]) -> np.ndarray:
    return np.linspace(-1, 1, 2 * int(np.prod(shape))).reshape(2, *shape).astype(np.float32)


def models(keras):
    layers = keras.layers
    chain = keras.Sequential(
        [
            layers.Conv2D(3, 2, activation="relu", input_shape=(4, 4, 2)),
            layers.BatchNormalization(),
            layers.MaxPooling2D(2, strides=1),
            layers.Reshape((4, 3)),
            layers.LSTM(3, return_sequences=True),
            layers.GRU(2),
            layers.Dropout(0.5),
            layers.Dense(2, activation="softmax", kernel_regularizer=keras.regularizers.L2(0.01)),
        ]
    )
    first, second = keras.Input((3,), name="first"), keras.Input((3,), name="second")
    shared = layers.Dense(2, activation="tanh", name="shared")
    both = layers.Concatenate()([shared(first), shared(second)])
    graph = keras.Model([first, second], layers.Dense(1, name="last")(both))
    return {"chain": chain, "graph": graph}


def main() -> None:
    import tensorflow as tf

    DATA.mkdir(exist_ok=True)
    tf.keras.utils.set_random_seed(1)
    outputs = {}
    for name, model in models(tf.keras).items():
        model.compile("adam", "mse", metrics=["mae"])
        shapes = [shape[1:] for shape in (model.input_shape if name == "graph" else [model.input_shape])]
        x = [inputs(shape) for shape in shapes]
        x = x if name == "graph" else x[0]
        model.fit(x, np.ones((2, model.output_shape[-1])), epochs=2, verbose=0)
        outputs[name] = model.predict(x, verbose=0).tolist()
        model.save(DATA / f"{name}.keras")
        model.save(DATA / f"{name}.h5")
        model.save_weights(DATA / f"{name}.weights.h5")
    (DATA / "outputs.json").write_text(json.dumps(outputs) + "\n")


if __name__ == "__main__":
    main()
