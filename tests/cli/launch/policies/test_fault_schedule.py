import signal

import pytest

from dtrain.cluster import TaskId
from dtrain.config import ClusterSection, KillFault, PauseFault, RunSpec, SimulateSection
from dtrain.errors import SpecError
from dtrain_cli.runs.faults import FaultSchedule
from dtrain_cli.spec import read_spec


def test_each_fault_fires_once_at_its_step_or_second():
    schedule = FaultSchedule(
        SimulateSection(
            kill=(KillFault("worker:1", at_step=200),), pause=(PauseFault("ps:0", for_s=2.0, at_s=3.0),)
        )
    )
    seen = []
    for second in range(8):
        step = second * 50 if second else None
        seen += [(second, str(fault.task), fault.signal) for fault in schedule.due(float(second), step)]
    assert seen == [
        (3, "ps:0", signal.SIGSTOP),
        (4, "worker:1", signal.SIGKILL),
        (5, "ps:0", signal.SIGCONT),
    ]


def test_what_has_not_been_done_is_known_at_the_end():
    pause = PauseFault("ps:0", for_s=2.0, at_s=3.0)
    schedule = FaultSchedule(SimulateSection(kill=(KillFault("worker:1", at_step=200),), pause=(pause,)))
    assert schedule.missed() == ["worker:1 was not killed", "ps:0 was not paused"]
    schedule.due(1.0, 300)
    assert schedule.missed() == ["ps:0 was not paused"]


def test_who_is_just_being_started_is_struck_as_soon_as_it_is_there():
    schedule = FaultSchedule(SimulateSection(kill=(KillFault("worker:1", at_step=2),)))
    worker = TaskId.parse("worker:1")
    assert [
        schedule.due(0.0, step, there) for step, there in ((5, {TaskId.parse("ps:0")}), (1, {worker}))
    ] == [[], []]
    assert [fault.task for fault in schedule.due(0.0, 6, {worker})] == [worker]
    assert schedule.due(0.0, 7, {worker}) == []


def test_the_seed_draws_a_moment_of_the_two_that_are_given():
    def moments(seed):
        faults = [KillFault("worker:0", at_step=(10, 500)), KillFault("worker:1", at_s=(0.0, 3.0))]
        schedule = FaultSchedule(SimulateSection(seed=seed, kill=tuple(faults)))
        seen = [
            (index, str(fault.task)) for index in range(501) for fault in schedule.due(index / 100, index)
        ]
        assert [task for _, task in sorted(seen, key=lambda fault: fault[1])] == ["worker:0", "worker:1"]
        return seen

    assert moments(7) == moments(7)
    assert len({tuple(moments(seed)) for seed in range(5)}) == 5
    assert all(index >= 10 for seed in range(5) for index, task in moments(seed) if task == "worker:0")


@pytest.mark.parametrize("name", ["worker:1", "worker/1", "/job:worker/task:1"])
def test_a_task_may_be_written_as_tensorflow_writes_it(name):
    (spec, kill) = (f"simulate.slow.{name}=5", f"simulate.kill=[{{task: {name}, at_step: 3}}]")
    simulate = read_spec(None, [spec, kill]).simulate
    assert [simulate.slowness(TaskId.parse(task)) for task in ("worker:0", "worker:1", "ps:1")] == [
        1.0,
        5.0,
        1.0,
    ]
    assert [str(fault.task) for fault in FaultSchedule(simulate).due(0.0, 3)] == ["worker:1"]


@pytest.mark.parametrize(
    ("simulate", "path"),
    [
        (SimulateSection(slow={"worker:1": 2.0, "/job:worker/task:1": 3.0}), ("slow", "/job:worker/task:1")),
        (SimulateSection(slow={"worker:1": 0.5}), ("slow", "worker:1")),
        (SimulateSection(slow={"worker:7": 2.0}), ("slow", "worker:7")),
        (SimulateSection(kill=(KillFault("ps:0"),)), ("kill", 0)),
        (SimulateSection(kill=(KillFault("ps:0", at_step=1, at_s=1.0),)), ("kill", 0)),
        (SimulateSection(kill=(KillFault("ps:0", at_step=(5, 4)),)), ("kill", 0, "at_step")),
        (SimulateSection(kill=(KillFault("ps:0", at_s=-1.0),)), ("kill", 0, "at_s")),
        (SimulateSection(pause=(PauseFault("ps:0", for_s=0.0, at_s=(1.0, 2.0)),)), ("pause", 0, "for_s")),
    ],
)
def test_what_cannot_be_brought_about_is_refused(simulate, path):
    spec = RunSpec(cluster=ClusterSection(chief=1, worker=2, ps=1), simulate=simulate)
    assert [problem[0] for problem in spec.problems()] == [("simulate", *path)]


def test_a_foreign_command_can_be_killed_and_paused_by_the_second_only():
    assert read_spec(None, ["simulate.kill=[{task: ps:0, at_s: 1}]"], foreign=True).simulate.kill
    for given in (
        "slow.worker:0=2",
        "kill=[{task: ps:0, at_step: 1}]",
        "network=[{between: [ps:0, chief:0], latency_ms: 1}]",
    ):
        with pytest.raises(SpecError) as caught:
            read_spec(None, [f"simulate.{given}"], foreign=True)
        assert str(caught.value).startswith(f"--set simulate.{given}: ")
        assert str(caught.value).endswith(
            "this needs a PROGRAM.py; a command after -- can be killed and paused, by at_s"
        )
