from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Launcher


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Launches real clusters below a folder of the test's own; kills whatever a failing test leaves."""
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()
