"""Write TensorFlow's numbers of `layer_programs` beside it: ``python tests/keras/layer_reference.py``.

Needs TensorFlow 2.15.1; names of programs as arguments write these alone.
"""

import json
import sys
from pathlib import Path

import tensorflow as tf
from layer_programs import PROGRAMS, numbers_of

FILE = Path(__file__).with_name("layer_reference.json")

if __name__ == "__main__":
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in sys.argv[1:] or PROGRAMS:
        found[name] = numbers_of(tf.keras, name)
    rounded = json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.7g}"))
    lines = (f"{json.dumps(name)}: {json.dumps(rounded[name])}" for name in PROGRAMS)
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
