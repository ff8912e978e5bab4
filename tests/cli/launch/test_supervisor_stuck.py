"""Replicas that are stuck, in a launch without processes: the launcher kills them, and starts them again."""

import signal

import pytest
from cli.launch.fake_launch import FakeTarget, TaskScript, lost, perform, state

from dtrain.cluster import TaskId
from dtrain.config import ClusterSection, MultiWorkerMirroredSection, RunSpec
from dtrain.config.choices import TooFew
from dtrain_cli.launch.policies.patience import LaunchLimits
from dtrain_cli.targets.target import HostNews

MULTI = RunSpec(
    cluster=ClusterSection(chief=1, worker=2), training=MultiWorkerMirroredSection(too_few=TooFew.SHRINK)
)


def kills(target):
    """When which task was killed, in seconds since the start."""
    return [(at_s - 1000, name) for at_s, name, number in target.sent if number == signal.SIGKILL]


@pytest.mark.parametrize("name", ["chief:0", "worker:0"])
def test_a_replica_that_is_stopped_is_started_again_before_the_servers_give_it_up(tmp_path, name):
    ends = TaskScript(9) if name == "chief:0" else TaskScript()
    target = FakeTarget({"chief:0": TaskScript(50), name: TaskScript(silent=True)}, later={name: ends})
    supervisor, outcome = perform(tmp_path, target)
    assert (outcome.state, state(supervisor, name)) == ("succeeded", "succeeded")
    ((at_s, killed),) = kills(target)
    assert killed == name
    assert 30 <= at_s <= 32, "half of the minute after which the servers give it up"
    assert supervisor.lives[TaskId.parse(name)].restarts == 1
    assert f"{name} is killed: it has not reported for 31 s" in target.said
    again = "was stuck at step 9, where its process stood still, and was killed; restarting in 1 s (1 of "
    assert [text for text in target.said if text.startswith(f"{name} {again}")]


def test_one_that_is_stuck_after_every_start_is_given_up_and_it_is_said_how_often(tmp_path):
    """What it did not do while it was stuck is no healthy minute."""
    target = FakeTarget({"chief:0": TaskScript(900, leads=True), "worker:0": TaskScript(silent=True)})
    supervisor, outcome = perform(tmp_path, target, MULTI, limits=LaunchLimits(None, 60, 70, 10))
    assert outcome.state == "succeeded"
    assert len(kills(target)) == 4
    why = "was stuck 4 times, now at step 9, where its process stood still, and was killed"
    assert f"worker:0 failed at step 9: {why}" in lost(supervisor)
    assert f"worker:0 has failed: {why}; training continues without it" in target.said


def test_a_run_that_cannot_do_without_it_ends_and_says_why(tmp_path):
    target = FakeTarget({"chief:0": TaskScript(silent=True)})
    _, outcome = perform(tmp_path, target)
    assert (outcome.state, outcome.exit_code) == ("failed", 137)
    why = "was stuck 2 times, now at step 9, where its process stood still, and was killed"
    assert (outcome.failure.task, outcome.failure.message) == ("chief:0", why)


class CutOff(FakeTarget):
    """One of which the host of worker:1 is not heard from the fifth second to the 45th."""

    def __post_init__(self):
        super().__post_init__()
        self._coming.append((1005.0, HostNews("cut", "far", "far: the connection has ended")))

    def host_of(self, launch):
        return "far" if str(launch.task) == "worker:1" else "here"

    def _script(self, name, attempt):
        away = name == "worker:1" and 1005 <= self.now_s < 1045
        return TaskScript(silent=True) if away else super()._script(name, attempt)


@pytest.mark.parametrize("silent", [False, True])
def test_what_tasks_of_a_host_do_that_is_not_heard_is_not_known(tmp_path, silent):
    """Of a host that is heard it is."""
    target = CutOff({"chief:0": TaskScript(110), "worker:0": TaskScript(silent=silent)})
    _, outcome = perform(tmp_path, target)
    assert outcome.state == "succeeded"
    assert [name for _, name in kills(target)] == ["worker:0"] * 3 * silent


def test_a_task_that_leaves_by_itself_before_it_is_killed_says_why_it_has_left(tmp_path):
    record = (30.3, "ValueError: bad batch", "exception")
    target = FakeTarget({"chief:0": TaskScript(30.3, status=1, silent=True, record=record)})
    _, outcome = perform(tmp_path, target)
    assert outcome.failure.message == "ValueError: bad batch"
