"""Who may read the variables of a stage between two of its steps."""

import threading

from dtrain.strategies.pipeline.flights import StepBoundary

TIMEOUT_S = 30.0


def test_another_thread_comes_in_between_two_steps_and_the_next_step_waits_for_it():
    boundary, inside, may_leave, told = StepBoundary(), threading.Event(), threading.Event(), []

    def read():
        with boundary:
            inside.set()
            assert may_leave.wait(TIMEOUT_S)
            told.append("read")

    boundary.begin_step()
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert not inside.wait(0), "a step is under way"
    boundary.end_step()
    assert inside.wait(TIMEOUT_S)

    def step():
        boundary.begin_step()
        told.append("step")
        boundary.end_step()

    trainer = threading.Thread(target=step, daemon=True)
    trainer.start()
    may_leave.set()
    reader.join(TIMEOUT_S)
    trainer.join(TIMEOUT_S)
    assert told == ["read", "step"]


def test_who_trains_may_read_between_its_own_steps():
    boundary = StepBoundary()
    boundary.begin_step()
    boundary.end_step()
    with boundary:
        pass
    boundary.begin_step()
