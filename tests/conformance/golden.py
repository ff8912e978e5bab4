"""The numbers that TensorFlow computed: read from tests/golden, or from any folder of the same form
(DTRAIN_GOLDEN=DIR).
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

OWN = Path(__file__).parent.parent / "golden"


def golden_dir() -> Path:
    """Where the golden files lie."""
    return Path(os.environ.get("DTRAIN_GOLDEN") or OWN)


def golden_file(name: str) -> Path:
    """A golden file; that of tests/golden where the folder does not have it."""
    return next(path for folder in (golden_dir(), OWN) if (path := folder / name).exists() or folder == OWN)


def load_json(name: str) -> Any:
    """A golden JSON file, for example ``load_json("l_tf_config.json")``."""
    return json.loads(golden_file(name).read_text())


def at_single_precision(value: Any) -> Any:
    """Return JSON data with every float rounded to float32, which is what the files promise of their
    floats.
    """
    if isinstance(value, dict):
        return {key: at_single_precision(item) for key, item in value.items()}
    if isinstance(value, list):
        return [at_single_precision(item) for item in value]
    return float(np.float32(value)) if isinstance(value, float) else value


def load_npz(name: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a golden npz file."""
    with np.load(golden_file(name), allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}
