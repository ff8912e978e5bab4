"""What a replica reports of its own work."""

from dtrain.runs.self_report import Activity


def test_a_callback_of_any_length_is_work_and_ends_as_such():
    activity = Activity()
    activity.at_s = 0.0
    with activity.busy("validation"):
        with activity.busy("on_test_batch_end"):
            assert activity.busy_with == "on_test_batch_end"
        assert activity.busy_with == "validation"
        activity.at_s = 0.0
    assert activity.busy_with is None
    assert activity.at_s > 0
    activity.at_s = 0.0
    assert activity.after(divmod)(7, 2) == (3, 1)
    assert activity.at_s > 0
