"""Every wrong input is one clear message with the promised exit code, and leaves nothing."""

import contextlib
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli.wrong.commands import OF_COMMANDS
from cli.wrong.specs import SPECS, TF_CONFIGS
from cli.wrong.table import Wrong

import dtrain as dt
from dtrain.cluster import TaskId
from dtrain.runs.files import RunFiles, RunRecord, TaskRecord, write_record
from dtrain.strategies.single import SingleStrategy

WRONG = [*SPECS, *TF_CONFIGS, *OF_COMMANDS]
LINES_MAX = 5
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the files that many inputs name."""
    folder = tmp_path_factory.mktemp("shelf")
    with SingleStrategy().scope():
        model = dt.Sequential([dt.layers.Dense(2, "softmax", input_shape=(3,))])
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.save(folder / "m.safetensors")
    whole = (folder / "m.safetensors").read_bytes()
    (folder / "half.safetensors").write_bytes(whole[: len(whole) * 2 // 3])
    (folder / "other.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    y = (X[:, 0] > 0).astype(np.int64)
    np.savez(folder / "good.npz", x=X, y=y)
    np.savez(folder / "wide.npz", x=np.zeros((40, 5), np.float32), y=y)
    np.savez(folder / "named.npz", pixels=X, digits=y)
    np.savez(folder / "uneven.npz", x=X, y=y[1:])
    np.savez(folder / "pickled.npz", x=np.array([{}, []], object))
    np.save(folder / "pickled.npy", np.array([{}, []], object), allow_pickle=True)
    np.save(folder / "x.npy", X)
    (folder / "p.py").write_text("import dtrain\n")
    (folder / "loop.py").symlink_to("loop.py")
    return folder


@pytest.fixture
def folder(shelf: Path, tmp_path: Path) -> Path:
    """Give an input a folder of its own with those files."""
    return shutil.copytree(shelf, tmp_path / "here", symlinks=True)


def _lay(wrong: Wrong, folder: Path) -> None:
    """Write the files of an input; a run where it wants one."""
    if any(name.startswith("runs/r1") for name in wrong.files):
        files = RunFiles(folder / "runs" / "r1")
        tasks = [TaskRecord(name, "succeeded") for name in ("chief:0", "worker:0", "worker:1", "ps:0")]
        for task in tasks:
            files.attempt(TaskId.parse(task.task), 0).mkdir(parents=True)
            files.log(TaskId.parse(task.task), 0).write_text("a line\n")
        files.directory.chmod(0o700)
        write_record(
            files.run,
            RunRecord("r1", "digits", "succeeded", started="2026-11-21T10:00:00+00:00", tasks=tasks),
        )
    for name, content in wrong.files.items():
        path = folder / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(0o700 if content[:2] == "#!" else 0o600)


@pytest.mark.parametrize("wrong", WRONG, ids=[wrong.name.replace(" ", "_") for wrong in WRONG])
def test_wrong_inputs(wrong: Wrong, folder: Path, tmp_path: Path, launcher) -> None:
    _lay(wrong, folder)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    launcher.folder = folder
    environment = {"TMPDIR": str(temporary), "NO_COLOR": "1", **wrong.environment}
    with open(wrong.stdout, "w") if wrong.stdout else contextlib.nullcontext(subprocess.PIPE) as stdout:
        command = launcher.dtrain(*shlex.split(wrong.line), environment=environment, stdout=stdout)
    code = command.end()
    assert [word for word in wrong.said if word not in command.err] == [], command.err
    assert code == wrong.code, command.err
    assert "\x1b" not in command.err
    assert "dtrain/" not in command.err.replace("dtrain/runs", ""), "lines of dtrain's own"
    assert len(command.err.splitlines()) <= LINES_MAX, command.err
    assert command.pids() == []
    assert list(temporary.iterdir()) == []
    assert not [each for each in Path("/dev/shm").iterdir() if "dtrain" in each.name]
    assert {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()} == before
