"""Write tensorflow_names.txt: the public names of TensorFlow 2.15.1; `python names_reference.py`.

A line has a module of dtrain and the names of the modules of TensorFlow that it stands for.
"""

from pathlib import Path

FILE = Path(__file__).with_name("tensorflow_names.txt")
HEAD = """# The public names of TensorFlow 2.15.1, by dir(): a module of dtrain, and the names of those of TensorFlow for which it stands.
"""


def main() -> None:
    import tensorflow as tf

    keras = tf.keras
    same = "layers losses metrics callbacks initializers regularizers activations utils models backend"
    modules = {"dtrain": (tf, keras), **{name: (getattr(keras, name),) for name in same.split()}}
    modules |= {
        "optimizers": (keras.optimizers,),
        "optimizers.schedules": (keras.optimizers.schedules,),
        "data": (tf.data,),
        "data.experimental": (tf.data.experimental,),
        "distribute": (tf.distribute,),
        "distribute.experimental": (tf.distribute.experimental,),
        "train": (tf.train,),
        "nn": (tf.nn,),
        "errors": (tf.errors,),
        "math": (tf.math,),
        "random": (tf.random,),
    }
    lines = []
    for name, theirs in modules.items():
        names = sorted({each for module in theirs for each in dir(module) if each[0] != "_"})
        lines.append(f"{name} {' '.join(names)}\n")
    FILE.write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    main()
