"""A plugin of pytest: once a case of a test function has failed, skip the function's other cases. That it
notices is shown.
"""

import pytest

_failed: set[str] = set()


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _function(item.nodeid) in _failed:
        pytest.skip("another case has failed")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(_function(report.nodeid))
