"""What a program wishes of its strategy is checked as a spec is."""

import pytest

from dtrain.config import TrainingSection
from dtrain.errors import SpecError
from dtrain.strategies.choice import _with_wishes


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"backup": 1}, "there is no argument 'backup'; do you mean backup_workers?"),
        ({"updates": "snyc"}, "updates: expected sync or async, found 'snyc'"),
        ({"backup_workers": "1"}, "backup_workers: expected int, found '1'"),
        ({"seed": True}, "seed: expected int, found True"),
        ({"deterministic": 1}, "deterministic: expected bool, found 1"),
        ({"staleness_bound": 1.5}, "staleness_bound: expected int | None, found 1.5"),
        ({"compression": "bf32"}, "compression: expected "),
        ({"updates": "sync", "staleness_bound": 3}, "staleness_bound: a staleness bound belongs to updates: async"),
    ],
)
def test_a_wrong_wish_is_refused(wishes, message):
    with pytest.raises(SpecError) as error:
        _with_wishes(TrainingSection(), wishes)
    assert message in str(error.value)


def test_wishes_fill_in_what_the_spec_leaves_at_its_default():
    spec = TrainingSection(updates="sync")
    wishes = {"updates": "async", "too_few_timeout_s": 3, "compression": {"top_k": 0.1}, "partitioner": {"fixed_shards": 2}}
    wished = _with_wishes(spec, wishes)
    assert (wished.updates, wished.too_few_timeout_s) == ("sync", 3)
    assert wished.compression == {"top_k": 0.1}
