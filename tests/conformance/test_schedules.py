"""Learning rate schedules give TensorFlow's rates: golden file f (schedules)."""

import math

import pytest
from conformance.golden import load_json
from row_by_row import every_row

from dtrain.learning.optimizers import schedules

GOLDEN = load_json("f_schedules.json")


@every_row("case", GOLDEN["cases"], ids=lambda case: f"{case['schedule']}-{case['args']}")
def test_rates_agree_with_tensorflow(case):
    schedule = getattr(schedules, case["schedule"])(**case["args"])
    for step, expected in zip(case["steps"], case["values"], strict=True):
        relative = 1e-3 if step >= 10_000 else 1e-4
        if math.isnan(float(expected)):  # dtrain says so instead
            with pytest.raises(ValueError, match=case["schedule"]):
                schedule(step)
            continue
        assert schedule(step) == pytest.approx(float(expected), rel=relative, abs=1e-7), f"step {step}"


@pytest.mark.parametrize("case", GOLDEN["errors"], ids=lambda case: f"{case['schedule']}-{case['args']}")
def test_what_tensorflow_refuses_is_refused(case):
    """Also where TensorFlow goes on with NaN, a division by zero steps."""
    assert "error" in case or math.isnan(float(case["value_at_3"]))
    with pytest.raises(ValueError, match=case["schedule"]):
        getattr(schedules, case["schedule"])(**case["args"])
