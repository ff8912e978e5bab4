import os
from pathlib import Path

import pytest


@pytest.fixture
def tensorflow() -> str:
    """The Python of an environment with TensorFlow."""
    return _python_of("DTRAIN_TF_PYTHON", "requirements-tf.txt")


@pytest.fixture
def torch() -> str:
    """The Python of an environment with PyTorch."""
    return _python_of("DTRAIN_TORCH_PYTHON", "requirements-torch.txt")


def _python_of(variable: str, requirements: str) -> str:
    python = os.environ.get(variable)
    if python is None:
        pytest.skip(f"{variable} names no Python of an environment with tests/peers/{requirements}")
    assert Path(python).is_file(), f"{variable}={python}: there is no such Python"
    return python
