from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from launching import Launcher

# A test that passed passes again, also on a busy machine; `pytest --hypothesis-profile searching` draws other examples each time.
settings.register_profile("repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("searching", deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Launches real clusters below a folder of the test's own; kills whatever a failing test leaves."""
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()
