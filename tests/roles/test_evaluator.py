"""Which checkpoint is evaluated next, and when there is none any more."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.roles.evaluator import EvaluationSchedule, Next, Pace


def test_the_newest_once_and_then_the_next():
    schedule = EvaluationSchedule()
    assert schedule.next(None, False, training_ended=False) is Next.WAIT
    assert schedule.next(5, False, training_ended=False) == 5
    schedule.done(5, final=False)
    assert schedule.next(5, False, training_ended=False) is Next.WAIT
    assert schedule.next(9, False, training_ended=False) == 9


def test_it_ends_after_the_final_one():
    schedule = EvaluationSchedule()
    assert schedule.next(9, True, training_ended=False) == 9
    schedule.done(9, final=True)
    assert schedule.next(9, True, training_ended=False) is Next.DONE


def test_the_same_step_written_again_as_the_final_one_was_evaluated():
    schedule = EvaluationSchedule()
    schedule.done(9, final=False)
    assert schedule.next(9, True, training_ended=False) is Next.DONE


def test_it_ends_when_training_has_ended_without_a_final_one_but_evaluates_what_is_there():
    schedule = EvaluationSchedule()
    assert schedule.next(7, False, training_ended=True) == 7
    schedule.done(7, final=False)
    assert schedule.next(7, False, training_ended=True) is Next.DONE
    assert EvaluationSchedule().next(None, False, training_ended=True) is Next.DONE


def test_the_first_one_may_wait_and_the_others_keep_their_distance_but_the_last():
    schedule = EvaluationSchedule(Pace(start_delay_s=10, throttle_s=5))
    assert schedule.next(1, False, training_ended=False, now_s=9) is Next.WAIT
    assert schedule.next(1, False, training_ended=False, now_s=10) == 1
    schedule.done(1, final=False)
    assert schedule.next(2, False, training_ended=False, now_s=14) is Next.WAIT
    assert schedule.next(3, False, training_ended=False, now_s=15) == 3
    schedule.done(3, final=False)
    assert schedule.next(4, True, training_ended=False, now_s=16) == 4
    assert EvaluationSchedule(Pace(10, 5)).next(1, False, training_ended=True, now_s=0) == 1


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 3), max_size=20), st.booleans())
def test_every_course_ends_and_the_last_checkpoint_is_evaluated_once(written, final):
    """`written`: how many checkpoints appear between two looks."""
    schedule, newest, evaluated = EvaluationSchedule(), None, []
    for look, more in enumerate([*written, 0, 0]):
        newest = (newest or 0) + more if more else newest
        over = look >= len(written)
        step = schedule.next(newest, final and over, training_ended=over)
        if isinstance(step, int):
            evaluated.append(step)
            schedule.done(step, final and over)
    assert schedule.next(newest, final, training_ended=True) is Next.DONE
    assert evaluated == sorted(set(evaluated))
    assert evaluated[-1:] == ([newest] if written else [])
