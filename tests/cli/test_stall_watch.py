from dtrain.run_files import TaskStatus
from dtrain_cli.stall_watch import StallWatch


def status(progress_s: float, step: int = 412, waiting_for: str | None = None, phase: str = "running") -> TaskStatus:
    return TaskStatus("worker:0", 1, "here", phase=phase, progress_monotonic_s=progress_s, step=step, waiting_for=waiting_for)


def test_a_stall_is_told_once_and_again_after_progress():
    watch = StallWatch(timeout_s=10.0)
    assert watch.look([status(100.0), status(95.0)], 109.9) is None
    assert "stalled at step 412, waiting for ps:0" in str(watch.look([status(100.0, waiting_for="ps:0")], 110.0))
    assert watch.look([status(100.0)], 120.0) is None
    assert watch.look([status(121.0)], 122.0) is None
    assert watch.look([status(121.0)], 131.0) is not None


def test_nobody_stalls_before_the_first_step_or_after_the_last():
    watch = StallWatch(timeout_s=10.0)
    assert watch.look([], 1000.0) is None
    assert watch.look([status(0.0), status(5.0, phase="finished")], 1000.0) is None
