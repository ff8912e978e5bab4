"""Which reads of input are told."""

from dtrain.messages.membership import TaskStatus
from dtrain_cli.launch.policies.patience import InputWatch


def told(watch, now_s, silent_s=0.0, **since_s):
    statuses = {
        f"{name[:-1]}:{name[-1]}": TaskStatus(
            name, 1, "here", monotonic_s=now_s - silent_s, reading_monotonic_s=since
        )
        for name, since in since_s.items()
    }
    return watch.poll(statuses, now_s)


def test_a_read_that_lasts_is_named_within_five_seconds_and_at_growing_distances():
    watch = InputWatch()
    lines = [told(watch, 10.0 + at_s, worker0=10.0, chief0=None) for at_s in (0.1, 2.9, 3.0, 5.9, 6.1, 9.0)]
    assert lines == [
        *(None, None, "worker:0 reads its next batch for 3.0 s"),
        *(None, "worker:0 reads its next batch for 6.1 s", None),
    ]


def test_each_task_is_named_and_no_usual_read_again():
    watch = InputWatch()
    assert told(watch, 3.5, worker0=0.0, worker1=0.1) == "worker:0 reads its next batch for 3.5 s"
    assert told(watch, 3.5, worker0=0.0, worker1=0.1) == "worker:1 reads its next batch for 3.4 s"
    assert told(watch, 9.0, worker0=5.0, worker1=5.0) is None


def test_of_a_task_that_is_lost_or_stopped_in_a_short_read_nothing_is_told():
    watch = InputWatch()
    for silent_s in (3.0, 5.0, 60.0):
        assert told(watch, 100.0, silent_s, worker0=99.99 - silent_s) is None
    assert told(watch, 100.0, 10.0, worker0=80.0) is None
    assert told(watch, 100.0, 4.0, worker0=94.0) == "worker:0 reads its next batch for 6.0 s"
