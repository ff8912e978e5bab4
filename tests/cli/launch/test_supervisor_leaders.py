"""Runs whose leader dies, of replicas that reduce among themselves: another one leads, and the run succeeds
with it.
"""

import signal
from itertools import pairwise

import pytest
from cli.launch.fake_launch import SPEC, FakeTarget, TaskScript, Unheard, lost, perform, state
from msgspec.structs import replace

from dtrain.cluster import TaskId
from dtrain.config import ClusterSection, RestartSection, training_section
from dtrain.config.choices import On
from dtrain.messages.membership import TaskStatus
from dtrain.runs.files import KillRequest, RunFiles, read_record, write_record
from dtrain_cli.launch.policies.patience import LaunchLimits

MULTI = replace(
    SPEC,
    cluster=ClusterSection(chief=1, worker=2, ps=1, evaluator=1),
    training=training_section(strategy="multi_worker_mirrored"),
)
CRASH = TaskScript(1, status=1, leads=True, record=(0.9, "ValueError: bad batch", "exception"))


def test_the_run_goes_on_without_its_leader_and_names_it_at_the_end(tmp_path):
    target = FakeTarget({"chief:0": CRASH, "worker:0": TaskScript(9, leads=True), "worker:1": TaskScript(9)})
    supervisor, outcome = perform(tmp_path, target, MULTI)
    assert (outcome.state, outcome.exit_code) == ("succeeded", 0)
    assert target.said[0] == "chief:0 has failed: ValueError: bad batch; training continues without it"
    assert lost(supervisor) == "chief:0 failed at step 9: ValueError: bad batch (log: its.log)"
    assert (state(supervisor, "chief:0"), state(supervisor, "worker:0")) == ("failed", "succeeded")


def test_what_is_wrong_with_the_spec_ends_the_run_at_once_with_its_own_exit_code(tmp_path):
    """Another replica that took the lead would find the same."""
    record = (0.9, "SpecError: too many replicas", "exception")
    wrong = replace(CRASH, status=2, record=record, error_type="SpecError")
    target = FakeTarget({"chief:0": wrong})
    supervisor, outcome = perform(tmp_path, target, MULTI)
    assert (outcome.state, outcome.exit_code, outcome.failure.task) == ("failed", 2, "chief:0")
    assert target.said[-1] == "chief:0 failed: SpecError: too many replicas; stopping the others"
    assert {state(supervisor, f"worker:{index}") for index in range(2)} == {"stopped"}
    assert target.now_s < 1010


def test_a_replica_lost_before_the_loop_that_the_others_begin_ends_the_run(tmp_path):
    """They would wait for it."""
    waits = TaskScript(loops=True, waits=True)
    target = FakeTarget({"chief:0": replace(CRASH, lasts_s=0.1), "worker:0": waits, "worker:1": waits})
    _, outcome = perform(tmp_path, target, MULTI)
    assert (outcome.state, outcome.exit_code, outcome.failure.task) == ("failed", 1, "chief:0")
    assert target.said[-1] == (
        "chief:0 failed: ValueError: bad batch; stopping the others, as a loop of the program's own needs every replica"
    )
    assert target.now_s < 1010


def test_a_replica_killed_before_the_loop_is_started_again_for_it(tmp_path):
    loops = TaskScript(9, loops=True)
    target = FakeTarget({"worker:1": TaskScript(0.1, status=-9), "chief:0": loops, "worker:0": loops})
    target.later["worker:1"] = loops
    _, outcome = perform(tmp_path, target, MULTI)
    assert outcome.state == "succeeded"


def test_a_loop_has_no_heirs(tmp_path):
    """A replica that ends early has left the others, however well it ended."""
    missed = (1.9, "PeerLostError: worker:0 has ended", "peer_lost")
    chief = TaskScript(2, status=1, loops=True, leads=True, record=missed)
    target = FakeTarget(
        {"chief:0": chief, **dict.fromkeys(["worker:0", "worker:1"], TaskScript(1, loops=True))}
    )
    _, outcome = perform(tmp_path, target, MULTI)
    assert (outcome.state, outcome.exit_code, outcome.failure.task) == ("failed", 1, "chief:0")


@pytest.mark.parametrize("on", [On.LOCAL, On.SSH])
def test_a_leader_lost_before_anyone_trains_has_an_heir_where_that_can_hear_of_it(tmp_path, on):
    """On other hosts nobody would know that it will not come."""
    waits = TaskScript(5, waits=True)
    target = FakeTarget({"chief:0": replace(CRASH, waits=True), "worker:0": waits, "worker:1": waits})
    _, outcome = perform(tmp_path, target, replace(MULTI, on=on))
    what = {On.LOCAL: "training continues without it", On.SSH: "stopping the others"}[on]
    assert what in target.said[0]
    assert outcome.state == {On.LOCAL: "succeeded", On.SSH: "failed"}[on]


def test_on_parameter_servers_the_leader_still_ends_the_run(tmp_path):
    target = FakeTarget({"chief:0": CRASH, "worker:0": TaskScript(9, leads=True)})
    _, outcome = perform(tmp_path, target)
    assert (outcome.state, outcome.failure.message) == ("failed", "ValueError: bad batch")


def test_the_last_replica_s_failure_ends_the_run_with_the_first_cause(tmp_path):
    later = replace(CRASH, lasts_s=2, record=(1.9, "ValueError: and another", "exception"))
    target = FakeTarget({"chief:0": CRASH, "worker:0": later, "worker:1": replace(later, lasts_s=3)})
    _, outcome = perform(tmp_path, target, MULTI)
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    assert outcome.failure.message == "ValueError: bad batch"


def test_a_leader_that_is_killed_comes_back_as_a_member(tmp_path):
    """Its end is then not the run's."""
    target = FakeTarget(
        {
            "chief:0": TaskScript(1, status=-signal.SIGKILL, leads=True),
            "worker:0": TaskScript(20, leads=True, fits=(1, 1)),
            "worker:1": TaskScript(20, fits=(1, 1)),
        },
        later={"chief:0": TaskScript(5, fits=(1, 1))},
    )
    spec = replace(MULTI, restart={"chief": RestartSection(backoff_s=1)})
    supervisor, outcome = perform(tmp_path, target, spec)
    assert outcome.state == "succeeded"
    assert supervisor.lives[TaskId.parse("chief:0")].restarts == 1
    assert lost(supervisor) == ""
    assert target.now_s > 1020, "the run has ended with its leader, not with the chief"


def test_a_leader_that_ends_well_is_not_waited_for_by_others_for_long(tmp_path):
    """The chief is a member there, and is told to leave like the workers."""
    target = FakeTarget(
        {
            "chief:0": TaskScript(1, status=-signal.SIGKILL, leads=True),
            "worker:0": TaskScript(20, leads=True),
        },
        later={"chief:0": TaskScript()},
    )
    supervisor, outcome = perform(tmp_path, target, MULTI)
    assert (outcome.state, state(supervisor, "chief:0")) == ("succeeded", "succeeded")
    assert {name for _, name, number in target.sent if number == signal.SIGTERM} >= {"chief:0", "worker:1"}


@pytest.mark.parametrize("name", ["worker:1", "chief:0", "evaluator:0"])
def test_any_task_is_killed_that_others_have_ordered_to_be(tmp_path, name):
    task = TaskId.parse(name)
    later = {name: TaskScript(9, leads=name == "chief:0")}
    target = Unheard({"chief:0": TaskScript(9, leads=True)}, later=later)
    request = KillRequest("worker:0 has waited 300 s for it", attempt=0)
    target.request = task, request, RunFiles(tmp_path)
    supervisor, outcome = perform(tmp_path, target, MULTI)
    assert outcome.state == "succeeded"
    assert (name, signal.SIGKILL) in [(each, number) for _, each, number in target.sent]
    assert f"{name} is killed: worker:0 has waited 300 s for it" in target.said
    assert supervisor.lives[task].restarts == 1


class Waits(FakeTarget):
    """One whose worker:1 waits for worker:0 from the third second on."""

    def events(self, until_s):
        heard = super().events(until_s)
        path = self.files.status(TaskId.parse("worker:1"))
        said = read_record(path, TaskStatus) if path.exists() else None
        if said is not None and self.now_s >= 1003:
            said.waiting_for = "worker:0, gradient of step 311"
            said.waiting_monotonic_s = 1003.0
            write_record(path, said)
        return heard


@pytest.mark.parametrize(("spec", "said"), [(MULTI, True), (SPEC, False)])
def test_a_replica_that_others_wait_for_is_named_from_the_second_second(tmp_path, spec, said):
    target = Waits({"chief:0": TaskScript(16, leads=True)})
    target.files = RunFiles(tmp_path)
    perform(tmp_path, target, spec, limits=LaunchLimits(None, 60, 300, 10))
    lines = [text for text in target.said if text.startswith("waiting for worker:0, gradient of step 311, ")]
    assert bool(lines) is said
    if said:
        waited_s = [float(text.split()[-2]) for text in lines]
        assert 2 <= waited_s[0] <= 3
        assert [round(later / before) for before, later in pairwise(waited_s)] == [
            2,
            2,
        ]


def test_a_run_whose_last_leader_has_ended_well_does_not_wait_for_the_host_of_the_first_one(tmp_path):
    target = FakeTarget(
        {
            "chief:0": TaskScript(leads=True),
            "worker:0": TaskScript(20, leads=True),
            "worker:1": TaskScript(20),
            "evaluator:0": TaskScript(20),
        },
        lost=((5.0, ("chief:0",), {}),),
    )
    _, outcome = perform(tmp_path, target, MULTI)
    assert outcome.state == "succeeded"
