"""Which waits of replicas for each other are told."""

from dtrain.messages.membership import TaskStatus
from dtrain_cli.launch.policies.patience import AwaitedWatch


def statuses(whom, since_s, **fields):
    waits = TaskStatus("chief:0", 1, "here", waiting_for=whom, waiting_monotonic_s=since_s)
    return {"chief:0": waits, "worker:0": TaskStatus("worker:0", 2, "here", **fields)}


def told(watch, whom, since_s, now_s, **fields):
    return watch.poll(statuses(whom, since_s, **fields), now_s)


def test_it_names_whom_and_what_at_growing_distances():
    watch = AwaitedWatch()
    whom = "worker:0, gradient of step 7"
    lines = [told(watch, whom, 10.0, 10.0 + at_s) for at_s in (0.5, 1.9, 2.1, 3.0, 4.3, 6.0, 8.7)]
    assert [line and line.split(", ")[-1] for line in lines] == [
        None,
        None,
        "2.1 s",
        None,
        "4.3 s",
        None,
        "8.7 s",
    ]
    assert lines[2] == "waiting for worker:0, gradient of step 7, 2.1 s"


def test_one_that_runs_a_callback_or_waits_itself_is_not_named():
    whom = "worker:0, gradient of step 7"
    assert told(AwaitedWatch(), whom, 0.0, 9.0, busy_with="validation") is None
    assert told(AwaitedWatch(), whom, 0.0, 9.0, waiting_for="worker:1, gradient of step 7") is None
    assert told(AwaitedWatch(), whom, 0.0, 9.0) is not None


def test_steps_that_are_all_slow_are_not_told_for_ever():
    watch = AwaitedWatch()
    lines = []
    for step in range(30):
        for at_s in (1.0, 2.0, 3.0):
            lines.append(told(watch, f"worker:0, gradient of step {step}", 10.0 * step, 10.0 * step + at_s))
        assert watch.poll({}, 10.0 * step + 5) is None
    assert sum(line is not None for line in lines) == 5
    assert told(watch, "worker:0, gradient of step 99", 1000.0, 1006.5) is not None
