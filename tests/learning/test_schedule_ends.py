"""A schedule whose periods have an end says so."""

import pytest

from dtrain.errors import SpecError
from dtrain.learning.optimizers.schedules import CosineDecayRestarts


def test_shrinking_periods_end():
    schedule = CosineDecayRestarts(0.1, first_decay_steps=8, t_mul=0.5)  # 8 + 4 + 2 + ... = 16
    assert 0 < schedule(15) <= 0.1
    with pytest.raises(SpecError, match=r"t_mul 0\.5 the last period ends at step 16, found step 16"):
        schedule(16)
