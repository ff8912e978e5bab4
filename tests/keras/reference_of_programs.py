"""What the programs of these folders print with TensorFlow 2.15.1: the numbers that dtrain's are compared with.

    python tests/keras/reference_of_programs.py [NAME ...]   # where TensorFlow is installed; writes printed.json

Each program runs in a process of its own, in an empty folder, with TensorFlow's modules in the place of
dtrain's, and nothing else of it changed.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDERS = [Path(__file__).parent / name for name in ("programs", "tutorials")]
INSTEAD = {
    "import dtrain.compat.v1 as tf1\n": "import tensorflow.compat.v1 as tf1\n",
    "import dtrain as tf\n": "import tensorflow as tf; tf.config.set_logical_device_configuration("
    'tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 5)\n',
    "from dtrain import keras\n": "from tensorflow import keras\n",
    "from dtrain.keras": "from tensorflow.keras",
}
"""As many devices as a program of dtrain may name; a processor of TensorFlow is one if nothing is said."""


def main() -> None:
    for folder in FOLDERS:
        written = folder / "printed.json"
        printed = json.loads(written.read_text()) if written.exists() else {}
        for program in sorted(folder.glob("*.py")):
            if not sys.argv[1:] or program.stem in sys.argv[1:]:
                printed[program.stem] = lines_of(program)
                written.write_text(json.dumps(printed, indent=1, sort_keys=True) + "\n")


def lines_of(program: Path) -> list[str]:
    text = program.read_text()
    for ours, theirs in INSTEAD.items():
        text = text.replace(ours, theirs)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, program.name)
        copy.write_text(text)
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        found = subprocess.run(
            [sys.executable, copy.name],
            cwd=folder,
            capture_output=True,
            text=True,
            env={**os.environ, **quiet},
        )
    assert found.returncode == 0, f"{program}:\n{found.stderr[-3000:]}"
    return found.stdout.splitlines()


if __name__ == "__main__":
    main()
