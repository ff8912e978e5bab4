"""A plugin of pytest: once a case of a test function or a row of a table has failed, leave out the others. That
it notices is shown.
"""

import pytest
from row_by_row import stop_at_the_first

_failed: set[str] = set()


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def pytest_configure() -> None:
    stop_at_the_first()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _function(item.nodeid) in _failed:
        pytest.skip("another case has failed")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(_function(report.nodeid))
