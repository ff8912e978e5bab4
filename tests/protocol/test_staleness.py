"""What follows from a gradient's age."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.messages import Verdict
from dtrain.protocol.async_updates import StalenessRule
from dtrain.runs.reporting import mean_staleness


@every_row(
    "rule, staleness, expected",
    [
        (StalenessRule("apply"), 1000, (Verdict.ACCEPTED, 1.0)),
        (StalenessRule("drop", 3), 3, (Verdict.ACCEPTED, 1.0)),
        (StalenessRule("drop", 3), 4, (Verdict.STALE, 0.0)),
        (StalenessRule("drop", 0), 0, (Verdict.ACCEPTED, 1.0)),
        (StalenessRule("scale"), 0, (Verdict.ACCEPTED, 1.0)),
        (StalenessRule("scale"), 1, (Verdict.ACCEPTED, 1.0)),
        (StalenessRule("scale"), 2, (Verdict.ACCEPTED, 0.5)),
        (StalenessRule("scale"), 5, (Verdict.ACCEPTED, 0.2)),
        (StalenessRule("scale", 4), 5, (Verdict.STALE, 0.0)),
    ],
)
def test_a_verdict_and_a_factor_on_the_learning_rate(rule, staleness, expected):
    assert rule.judge(staleness) == expected


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 9)))
def test_the_mean_of_counted_pushes_is_the_mean(values):
    assert mean_staleness(Counter(values)) == (pytest.approx(sum(values) / len(values)) if values else None)
