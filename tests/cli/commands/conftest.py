"""Programs for commands."""

import pytest


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import dtrain\n")
    return path


@pytest.fixture
def beside_it(tmp_path):
    """What else a command line may name."""
    (tmp_path / "right.yaml").write_text("cluster: {chief: 1, ps: 1}\n")
    (tmp_path / "scheme.yaml").write_text("cluster: {chief: ['http://localhost:2222'], ps: 1}\n")
    (tmp_path / "broken.py").write_text("import dtrain\nx = (\n")
    (tmp_path / "nothing.py").write_bytes(b"x = 1\0")
    for name in ("script.sh", "notes.md"):
        (tmp_path / name).touch()
