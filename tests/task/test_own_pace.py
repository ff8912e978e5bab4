"""How long a step takes and how much of it is computing: measured by the ends of steps."""

from dtrain.runs.reporting import WINDOW_S, OwnPace


def test_a_step_is_measured_from_end_to_end_without_the_rests_of_a_task_made_slow():
    """A step computes 1 ms of 25; made 8 times slower it rests for 7 ms more, and the first comes late."""
    pace, now_s = OwnPace(), 500.0
    for rest_s in (0.0, 0.007):
        for _ in range(50):
            now_s += 0.025 + rest_s
            pace.computed(0.001, rest_s)
            pace.stepped(now_s)
        assert round(1000 * pace.computing_s, 6) == 1.0
        assert round(1000 * pace.step_s, 6) == 25.0


def test_a_long_step_is_measured_whole_and_nothing_is_told_before_a_second_one():
    pace = OwnPace()
    assert (pace.computing_s, pace.step_s) == (None, None)
    for end_s in (100.0, 103.0):
        assert pace.step_s is None
        pace.computed(2.0, 0.0)
        pace.stepped(end_s)
    assert (pace.computing_s, pace.step_s) == (2.0, 3.0)
    pace.stepped(103.0 + WINDOW_S)
    assert pace.step_s == 3.0, "a window without a computation tells nothing"


def test_parts_that_are_computed_side_by_side_count_as_one():
    pace = OwnPace()
    for end_s in (0.0, 1.5, 3.0):
        for _ in range(2):
            pace.computed(0.25, 0.5)
        pace.stepped(end_s)
    assert (pace.computing_s, pace.step_s) == (0.25, 1.0)
