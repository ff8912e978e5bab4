"""Which checkpoint is evaluated next, and when there is none any more."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain import checkpoints
from dtrain.checkpoints import Pace
from dtrain.roles.evaluator.driver import follow_checkpoints
from dtrain.roles.evaluator.machine import EvaluationSchedule, Next
from dtrain.runs.files import RunFiles


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


def test_an_older_one_that_is_left_over_is_not_evaluated_again():
    schedule = EvaluationSchedule()
    schedule.done(14, False)
    assert schedule.next(0, False, training_ended=False) is Next.WAIT
    assert schedule.next(0, False, training_ended=True) is Next.DONE, (
        "the next fit has written its first one in the place of 14"
    )


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


def test_each_fit_has_its_own_checkpoints(tmp_path):
    """Those of earlier fits are left alone; those of later ones end it, after the last that is there of its
    own.
    """
    folder, said = RunFiles(tmp_path).checkpoints, []
    reporter = SimpleNamespace(waiting=said.append, warn=said.append)

    def save(step, fit, final=False):
        checkpoints.save(folder, step, {"w": np.array([step])}, {"generation": fit}, final=final, now=0.0)

    def follow(fit, later=()):
        """Steps that are evaluated; what is to be saved later is saved when there is nothing to do."""
        later = list(later)
        clock = SimpleNamespace(now=lambda: 0.0, sleep=lambda _: save(*later.pop(0)))
        found = follow_checkpoints(
            lambda ended: tmp_path, lambda: False, lambda step: step >= 5, reporter, Pace(), fit, clock
        )
        steps = [(each.global_step, each.final) for each in found]
        assert later == []
        return steps

    save(0, 1)
    assert follow(1, [(3, 1), (5, 1, True)]) == [(0, False), (3, False), (5, True)]
    assert follow(2, [(5, 2), (9, 2, True)]) == [(5, False), (9, True)], (
        "the last one of the first fit is none of its own"
    )
    assert follow(1) == [(3, False)], (
        "an evaluator that comes late: the final one has become the beginning of the next"
    )
    save(10, 3)
    assert follow(2) == [(9, True)]
    assert follow(1) == [(3, False)]


def test_the_final_one_of_a_fit_is_evaluated_when_the_next_fit_has_begun(tmp_path):
    folder = RunFiles(tmp_path).checkpoints
    reporter = SimpleNamespace(waiting=pytest.fail, warn=pytest.fail)
    for fit in (1, 2):
        checkpoints.save(folder, 5, {"w": np.array([fit])}, {"generation": fit}, final=fit == 1, now=0.0)
        checkpoints.keep_final(folder, fit)
    checkpoints.save(folder, 9, {"w": np.array([3])}, {"generation": 3}, now=0.0)
    reporter.waiting = lambda whom: None
    for fit in (1, 2):
        found = list(
            follow_checkpoints(lambda ended: tmp_path, lambda: True, lambda step: True, reporter, Pace(), fit)
        )
        assert [(each.global_step, each.weights["w"], each.final) for each in found] == [(5, fit, True)]


def test_an_evaluator_that_was_never_told_where_the_leader_saves_says_so_and_ends():
    said = []
    reporter = SimpleNamespace(waiting=pytest.fail, warn=said.append)
    assert not list(follow_checkpoints(lambda ended: None, lambda: True, lambda step: True, reporter, Pace()))
    assert len(said) == 1
    for words in ("nothing was evaluated", "no task is left that knows where", "the leader's output"):
        assert words in said[0]
    assert "None" not in said[0]


@pytest.mark.parametrize(("happens", "evaluated"), [("the next fit begins", [5]), ("and makes room", [])])
def test_what_happens_between_a_look_and_the_reading(tmp_path, monkeypatch, happens, evaluated):
    folder = RunFiles(tmp_path).checkpoints
    checkpoints.save(folder, 5, {"w": np.array([5])}, {"generation": 1}, final=True, now=0.0)
    look = checkpoints.list_checkpoints

    def look_and_change(directory):
        found = look(directory)
        if happens == "and makes room" and len(found) > 1:
            shutil.rmtree(found[0].path)
        checkpoints.save(folder, 6, {"w": np.array([6])}, {"generation": 2}, now=0.0)
        return found

    monkeypatch.setattr(checkpoints, "list_checkpoints", look_and_change)
    reporter = SimpleNamespace(waiting=lambda whom: None, warn=pytest.fail)
    found = follow_checkpoints(
        lambda ended: tmp_path, lambda: True, lambda step: step >= 5, reporter, Pace(), fit=1
    )
    assert [each.global_step for each in found] == evaluated
