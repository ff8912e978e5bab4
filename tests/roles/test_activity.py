"""What a replica reports of its own work."""

from dtrain.messages import Verdict
from dtrain.runs.ledger import COMPUTE, Activity


def test_a_callback_of_any_length_is_work_and_ends_as_such():
    activity = Activity()
    begun_s = activity.at_s
    with activity.busy("validation"):
        with activity.busy("on_test_batch_end"):
            assert activity.busy_with == "on_test_batch_end"
        assert activity.busy_with == "validation"
        within_s = activity.at_s
    assert activity.busy_with is None
    assert activity.at_s > within_s > begun_s
    ended_s = activity.at_s
    assert activity.after(divmod)(7, 2) == (3, 1)
    assert activity.at_s > ended_s


def test_a_batch_that_is_read_and_a_part_that_has_its_verdict_are_work():
    activity = Activity()
    begun_s = activity.at_s
    assert activity.reading(divmod)(7, 2) == (3, 1)
    read_s = activity.at_s
    activity.sheets[0].to(COMPUTE)
    activity.sheets[0].judged(Verdict.ACCEPTED, 0, 1)
    assert activity.at_s > read_s > begun_s
