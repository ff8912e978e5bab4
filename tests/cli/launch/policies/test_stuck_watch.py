"""Which replicas are stuck: by what all tasks report, and by nothing else."""

import pytest

from dtrain.config import AsyncSection, MultiWorkerMirroredSection, RunSpec, SyncSection
from dtrain.config.sections import WaitSection
from dtrain.messages.membership import TaskPhase, TaskStatus
from dtrain_cli.launch.policies.patience import StuckWatch, silence_limit_s

NOW_S = 1000.0
STALL_S, SILENCE_S = 20.0, 30.0


def said(task, *, heard=1.0, active=1.0, reading=None, waiting=None, fits=(1, 0), **fields):
    """What a task has said, and done, so many seconds ago; `waiting`: for how long, and for whom."""
    waited_s, whom = waiting or (0.0, None)
    return TaskStatus(
        task,
        1,
        "here",
        **{"phase": TaskPhase.RUNNING, "step": 7} | fields,
        monotonic_s=NOW_S - heard,
        active_monotonic_s=NOW_S - active,
        reading_monotonic_s=None if reading is None else NOW_S - reading,
        waiting_for=whom,
        waiting_monotonic_s=NOW_S - waited_s if whom else None,
        fits_begun=fits[0],
        fits_ended=fits[1],
    )


def stuck(*statuses):
    """What is found by a launcher that has looked all the time."""
    watch, found = StuckWatch(STALL_S, SILENCE_S), {}
    for before_s in range(900, -1, -4):
        found = watch.poll({each.task: each for each in statuses}, NOW_S - before_s)
    return found


def awaited(one, whom="worker:0 (at ps:0)", waited_s=21.5):
    """What is found if another replica has waited for this one."""
    return stuck(one, said("worker:1", waiting=(waited_s, whom)), said("ps:0", active=900))


@pytest.mark.parametrize(
    ("status", "place"),
    [
        (said("worker:0", reading=21, active=21), "in its input at step 7"),
        (said("worker:0", reading=20, active=900, fits=(1, 1)), None),  # its batch takes long, and comes yet
        (said("worker:0", active=21), "in its computation at step 7"),
        (said("worker:0", active=20), None),
        (said("worker:0", active=25, heard=9), None),  # what it did since is not known
        (said("worker:0", active=900, busy_with="validation"), None),
        (said("worker:0", active=900, busy_with="Halve"), None),
        (said("worker:0", active=900, waiting=(900, "chief:0 (at ps:0)")), None),
        (said("worker:0", active=900, fits=(1, 1)), None),  # between two calls of fit its time is its own
        (said("worker:0", active=900, fits=(0, 0), in_loop=True), None),  # so it is in a loop of its own
        (said("worker:0", reading=21, fits=(0, 0), in_loop=True), "in its input at step 7"),
        (said("worker:0", heard=31, active=31), "at step 7, where its process stood still"),
        (said("worker:0", heard=31, busy_with="validation"), "at step 7, where its process stood still"),
        (said("worker:0", heard=31, waiting=(40, "chief:0")), "at step 7, where its process stood still"),
        (said("worker:0", heard=31, fits=(0, 0)), "at step 7, where its process stood still"),
        (said("worker:0", heard=900, active=900, phase=TaskPhase.STARTING), None),
        (said("worker:0", heard=900, active=900, phase=TaskPhase.FINISHED), None),
    ],
)
def test_a_replica_that_others_wait_for_is_stuck_if_it_does_nothing(status, place):
    assert {task: found.place for task, found in awaited(status).items()} == (
        {"worker:0": place} if place else {}
    )


@pytest.mark.parametrize(
    "whom", ["worker:0, gradient of step 311", "worker:0", "chief:0, worker:0 (at ps:1)"]
)
def test_it_is_said_who_has_waited_for_whom_and_what_the_replica_did(whom):
    found = awaited(said("worker:0", reading=22, active=22), whom)
    assert list(found) == ["worker:0"], "of others that are named nothing is known"
    assert (
        found["worker:0"].reason
        == f"worker:1 has waited 20 s for {whom}, and it has read its next batch for 21 s"
    )
    assert found["worker:0"].since_s == NOW_S - 22


@pytest.mark.parametrize("reading", [None, 900])
def test_nobody_is_stuck_for_whom_no_other_has_waited_so_long(reading):
    """In asynchronous training the others go on to the end of an epoch; a callback before it may be slow."""
    status = said("worker:0", active=900, reading=reading)
    assert not awaited(status, waited_s=20.5)
    assert not stuck(status, said("worker:1"), said("ps:0"))
    stopped = said("worker:1", heard=11, waiting=(900, "worker:0 (at ps:0)"))
    assert not stuck(status, stopped, said("ps:0")), "who is stopped himself waits for nobody"


@pytest.mark.parametrize("task", ["chief:0", "worker:0"])
def test_a_replica_that_does_not_report_is_stuck_although_no_other_waits_for_it(task):
    assert stuck(said(task, heard=31), said("ps:0"))[task].reason == "it has not reported for 31 s"
    assert not stuck(said(task, heard=29), said("ps:0"))


@pytest.mark.parametrize("task", ["ps:0", "evaluator:0"])
def test_servers_and_evaluators_have_rules_of_their_own(task):
    others = (said("worker:1", waiting=(900, task)), said("chief:0"))
    assert not stuck(said(task, heard=900, active=900), *others)


def test_where_no_task_reports_the_disk_is_at_fault():
    assert not stuck(said("chief:0", heard=900), said("worker:0", heard=900), said("ps:0", heard=900))


def test_a_task_that_was_not_seen_is_judged_by_what_is_seen_afterwards():
    """It was on a host that was not heard, or has been started again."""
    watch = StuckWatch(STALL_S, SILENCE_S)
    statuses = {"worker:0": said("worker:0", heard=40), "ps:0": said("ps:0", heard=-40)}
    for at_s in range(-40, 0, 4):
        watch.poll({"ps:0": statuses["ps:0"]}, NOW_S + at_s)
    for at_s in range(0, 30, 4):
        assert not watch.poll(statuses, NOW_S + at_s)
    assert watch.poll(statuses, NOW_S + 30)["worker:0"].reason == "it has not reported for 30 s"


def test_a_launcher_that_was_stopped_itself_judges_by_what_it_sees_afterwards():
    watch = StuckWatch(STALL_S, SILENCE_S)
    statuses = {"worker:0": said("worker:0", heard=40), "ps:0": said("ps:0", heard=-40)}
    for at_s in (NOW_S - 41, NOW_S, NOW_S + 4):
        assert not watch.poll(statuses, at_s)
    for at_s in range(4, 30, 4):
        assert not watch.poll(statuses, NOW_S + at_s)
    assert watch.poll(statuses, NOW_S + 30)["worker:0"].reason == "it has not reported for 30 s"


@pytest.mark.parametrize(
    ("training", "stall_s", "limit_s"),
    [
        (SyncSection(), 300, 30),  # before the step is given up, after 60 s
        (AsyncSection(), 300, 30),
        (SyncSection(), 12, 12),
        (SyncSection(), 2, 10),  # a quiet task reports every four seconds at most
        (SyncSection(too_few_timeout_s=40), 300, 20),
        (MultiWorkerMirroredSection(), 300, 300),
    ],
)
def test_a_silent_replica_is_started_again_before_the_servers_give_up(training, stall_s, limit_s):
    assert silence_limit_s(RunSpec(training=training), stall_s) == limit_s


def test_a_leader_that_is_awaited_for_a_shorter_time_is_started_again_sooner():
    spec = RunSpec(training=SyncSection(), wait=WaitSection(leader_s=30))
    assert silence_limit_s(spec, 300) == 15
