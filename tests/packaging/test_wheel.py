"""The wheel and the source archive: what is in them, and that a stranger can work with what they install."""

import functools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from launching import wait_until

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TYPED = """\
import numpy as np

import dtrain as dt

strategies: list[dt.Strategy] = [
    dt.distribute.MirroredStrategy(),
    dt.MirroredStrategy(["CPU:0", "CPU:1"]),
    dt.MultiWorkerMirroredStrategy(),
    dt.distribute.experimental.CentralStorageStrategy(),
    dt.ParameterServerStrategy(),
    dt.get_strategy(),
]
replicas: int = sum(strategy.num_replicas_in_sync for strategy in strategies)
with strategies[0].scope():
    model = dt.Sequential([dt.layers.Dense(4, activation="relu"), dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
x = np.zeros((8, 3), np.float32)
history = model.fit(x, x[:, :1], epochs=1, callbacks=[dt.callbacks.EarlyStopping()])
data = dt.data.Dataset.from_tensor_slices((x, x)).shuffle(8, seed=0).batch(4)
"""
"""A program that uses public names as pages do."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source archive of this tree."""
    pytest.importorskip("hatchling", reason="hatchling builds them")
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


@pytest.fixture(scope="module")
def unpacked(built, tmp_path_factory):
    """The wheel as a folder that Python imports from before any other."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(built[0]) as file:
        file.extractall(folder)
    return folder


def test_the_wheel_has_the_packages_the_examples_and_nothing_else(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    assert {name.split("/")[0] for name in names} == {"dtrain", "dtrain_cli", "dtrain-0.1.0.dist-info"}
    for package in ("runtime/dtrain", "cli/dtrain_cli"):
        top = ROOT / package
        there = {str(path.relative_to(top.parent)) for path in top.rglob("*.py")}
        assert there <= names, there - names
    assert "dtrain/py.typed" in names
    kept = ("examples", "examples/data", "examples/start", "cluster_specs")
    wanted = {
        f"dtrain_cli/shipped/{path.relative_to(ROOT)}"
        for folder in kept
        for path in (ROOT / folder).iterdir()
        if path.is_file()
    }
    assert {name for name in names if name.startswith("dtrain_cli/shipped/")} == wanted
    assert not [name for name in names if "__pycache__" in name]


def test_the_source_archive_has_what_the_wheel_is_built_from_and_the_tests(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "examples/data/digits.csv.gz",
        "cluster_specs/demo.yaml",
    ):
        assert name in names
    assert {"tests/packaging/test_wheel.py", "conftest.py", "docs/reference/commands.md"} <= names


def run_from(folder, *words, cwd):
    """Run `dtrain` of an unpacked wheel."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "DTRAIN_RUNS_DIR": str(cwd / "runs")}
    command = [sys.executable, "-P", "-m", "dtrain_cli.main", *words]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_what_the_demo_and_init_need_is_found_in_the_wheel(unpacked, tmp_path):
    program = (
        "from importlib.resources import files\n"
        "from dtrain_cli import shipped\n"
        "print(shipped.root())\n"
        "print(len(files('dtrain_cli').joinpath('shipped/examples/data/digits.csv.gz').read_bytes()))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    words = [sys.executable, "-P", "-c", program]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    root, size = done.stdout.split()
    assert Path(root) == unpacked / "dtrain_cli" / "shipped"
    assert int(size) == (ROOT / "examples" / "data" / "digits.csv.gz").stat().st_size
    run_from(unpacked, "init", "mine", cwd=tmp_path)
    run_from(unpacked, "check", "mine/cluster.yaml", cwd=tmp_path)
    run_from(unpacked, "examples", "campaign", cwd=tmp_path)
    run_from(unpacked, "check", str(Path(root) / "cluster_specs" / "demo.yaml"), cwd=tmp_path)
    assert (tmp_path / "examples" / "digits.py").exists()


def test_a_program_of_public_names_has_right_types(tmp_path):
    pytest.importorskip("mypy", reason="mypy comes with dtrain[dev]")
    (tmp_path / "typed.py").write_text(TYPED)
    words = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*words, tmp_path / "typed.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


# The whole walk, in environments of their own


@functools.cache
def interpreter(version):
    """The Python of a version on this machine, or None; a shim of pyenv that leads nowhere is none."""
    found = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for path in filter(None, found):
        words = [str(path), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() == version:
            return str(path)
    return None


@pytest.mark.night("it installs everything into a new environment, for each Python and each file")
@pytest.mark.long("it installs all dependencies, and runs the demo")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.parametrize("what", ["wheel", "archive", "folder"])
def test_who_has_installed_it_can_do_all_of_a_first_run(version, what, built, tmp_path):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    binaries = tmp_path / "venv" / "bin"
    source = {"wheel": built[0], "archive": built[1], "folder": ROOT}[what]
    words = [
        binaries / "pip",
        "install",
        "--quiet",
        source,
        *(["mypy", "pyright"] if what == "wheel" else []),
    ]
    subprocess.run(words, check=True)
    (work := tmp_path / "work").mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"DTRAIN_RUNS_DIR": str(work / "runs"), "PATH": f"{binaries}:{os.environ['PATH']}"}

    def run(*words):
        done = subprocess.run(
            list(map(str, words)),
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done

    told = run("dtrain", "demo").stderr
    assert "ps:1 is killed" in told
    assert re.search(r"epoch 10 of 10", told)
    run("dtrain", "init", ".")
    run("python", "train.py", "--epochs", "2")
    run("dtrain", "launch", "cluster.yaml", "train.py", "--epochs", "2")
    run("dtrain", "examples", "digits")
    launched = run("dtrain", "launch", "examples/digits.py", "--steps", "300")
    assert "held-out accuracy" in launched.stdout
    if what == "wheel":
        (work / "typed.py").write_text(TYPED)
        run("mypy", "--strict", "typed.py")
        run("pyright", "--pythonpath", binaries / "python", "typed.py")
    wait_until(lambda: not _left(work), "no process of it is left")


def _left(work):
    return [
        path
        for path in Path("/proc").glob("[0-9]*/environ")
        if os.access(path, os.R_OK) and f"DTRAIN_RUNS_DIR={work}".encode() in _read(path)
    ]


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
