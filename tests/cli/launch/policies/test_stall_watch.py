import pytest

from dtrain.messages.membership import TaskStatus
from dtrain_cli.launch.policies.patience import SILENT_S, StallWatch, awaited_in_the_end


def running(
    progress_s: float, step: int = 412, now_s: float = 0.0, phase: str = "running", **waiting: str
) -> dict[str, TaskStatus]:
    """What worker:0 and others say."""
    tasks = {"worker0": None, **waiting}
    names = {name[:-1] + ":" + name[-1]: whom for name, whom in tasks.items()}
    return {
        name: TaskStatus(
            name,
            1,
            "here",
            phase=phase,
            monotonic_s=now_s,
            progress_monotonic_s=progress_s,
            step=step,
            waiting_for=whom,
        )
        for name, whom in names.items()
    }


def test_a_stall_is_told_once_and_again_after_progress():
    watch = StallWatch(timeout_s=10.0)
    assert watch.poll({**running(100.0), **running(95.0, worker1="x")}, 104.9) is None
    waiting = running(100.0, now_s=110.0, worker0="ps:0")
    assert "stalled at step 412, waiting for ps:0" in str(watch.poll(waiting, 110.0))
    assert watch.poll(running(100.0), 120.0) is None
    assert watch.poll(running(121.0), 122.0) is None
    assert watch.poll(running(121.0), 131.0) is not None


def test_the_step_is_the_one_that_the_servers_have_made():
    statuses = {**running(100.0, step=5), "ps:0": running(100.0, step=8)["worker:0"]}
    statuses["ps:0"].task = "ps:0"
    statuses["ps:0"].hosts_control = True
    assert StallWatch(timeout_s=10.0).poll(statuses, 110.0).startswith("stalled at step 8:")


def test_nobody_stalls_before_the_first_step_or_after_the_last():
    watch = StallWatch(timeout_s=10.0)
    assert watch.poll({}, 1000.0) is None
    assert watch.poll({**running(0.0), **running(5.0, phase="finished", worker1="x")}, 1000.0) is None


@pytest.mark.parametrize(
    ("waiting", "whom"),
    [
        ({"chief0": "worker:1 (at ps:0)", "worker0": "worker:1 (at ps:0)", "worker1": None}, ["worker:1"]),
        (
            {
                "chief0": "worker:0, worker:1 (at ps:0)",
                "worker0": "chief:0, worker:1 (at ps:1)",
                "worker1": None,
            },
            ["worker:1"],
        ),
        ({"chief0": "worker:0 (at ps:0)", "worker0": "ps:1", "ps1": None}, ["ps:1"]),
        (
            {
                "worker0": "ps:0",
                "worker1": "ps:0",
                "ps0": "chief:0 to initialise the variables",
                "chief0": None,
            },
            ["chief:0"],
        ),
        ({"chief0": "worker:0 (at ps:1)", "worker0": "chief:0 (at ps:1)"}, ["ps:1"]),
        ({"chief0": "worker:0", "worker0": "chief:0"}, ["chief:0", "worker:0"]),
        ({"chief0": "worker:7 (at ps:0)"}, ["worker:7"]),
        ({"worker0": None}, []),
    ],
)
def test_who_is_waited_for_in_the_end_is_found_along_the_waits(waiting, whom):
    assert awaited_in_the_end(running(0.0, **waiting), 1.0) == whom


def test_one_who_has_been_silent_for_long_stands_still_itself():
    statuses = running(0.0, now_s=100.0, chief0="worker:0 (at ps:0)")
    statuses["worker:0"] = running(0.0, now_s=100.0 - SILENT_S, worker0="chief:0 (at ps:0)")["worker:0"]
    assert awaited_in_the_end(statuses, 100.0) == ["worker:0"]
