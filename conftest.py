"""Fixtures of the tests and of the benchmarks."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from launching import Launcher

# A test that passed passes again, also on a busy machine; `pytest --hypothesis-profile searching` draws other
# examples each time.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("searching", deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def modules_are_compiled_once() -> Iterator[None]:
    """Give the interpreters that tests start a folder for bytecode where PYTHONDONTWRITEBYTECODE keeps the
    tree free of it.

    Without any, each of the hundreds of processes would compile dtrain anew: a third of what a small launch
    takes.
    """
    if not sys.dont_write_bytecode:
        yield
        return
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", folder)
        yield


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Yield a launcher for runs that a module begins first, and that wait during its other tests."""
    launcher = Launcher(tmp_path_factory.mktemp("early"))
    yield launcher
    launcher.close()


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Yield a launcher of real clusters in a folder of the test; it kills what a failing test leaves."""
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()
