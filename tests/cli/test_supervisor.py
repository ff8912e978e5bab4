"""The supervisor's loop on histories: scripted processes and a clock that jumps from event to event."""

import signal
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import ClusterSection, RestartSection, RunSpec, training_section
from dtrain.process.start_protocol import Exited, Refused, Started
from dtrain.runs.files import (
    FailureRecord,
    KillRequest,
    RunFiles,
    RunRecord,
    TaskStatus,
    write_record,
)
from dtrain.runs.states import FailureKind
from dtrain_cli.launch.policies.patience import Limits
from dtrain_cli.launch.supervisor import Supervisor
from dtrain_cli.plan.run_plan import Machine, RunIdentity, Workload, build_plan
from dtrain_cli.runs.lost_tasks import lost_on_the_way
from dtrain_cli.runs.report import ENDED
from dtrain_cli.targets.local import SignalArrived

SPEC = RunSpec(cluster=ClusterSection(chief=1, worker=2, ps=1, evaluator=1))
NAMES = ["chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0"]
FOR_EVER = float("inf")


@dataclass
class Part:
    """What a task does in every attempt: ends by itself after some seconds, and leaves so long after SIGTERM.

    Attributes:
        fits: how many calls of `fit` it says to have begun and ended.
        unsaved: why its last checkpoint could not be written, as it says.
        saved_step: of the last one that it has written.
        record: why it failed, as it has written down itself, so many seconds after its start.
    """

    lasts_s: float = FOR_EVER
    status: int = 0
    leaves_s: float = 0.1
    fits: tuple[int, int] = (0, 0)
    unsaved: str | None = None
    saved_step: int | None = None
    record: tuple[float, str, str] | None = None


@dataclass
class Stage:
    """Processes, journal and console of a supervisor, all pretended.

    Attributes:
        parts: by task; those that are absent run until they are told to stop.
        later: by task, of attempts after the first, where these differ.
    """

    parts: dict[str, Part]
    later: dict[str, Part] = field(default_factory=dict)
    signals_to_launcher: list[tuple[float, int]] = field(default_factory=list)
    refused: tuple[str, ...] = ()
    now_s: float = 1000.0
    record: RunRecord = field(default_factory=lambda: RunRecord("id", "name"))
    alive: dict[str, int] = field(default_factory=dict)
    sent: list[tuple[float, str, int]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    reported: set[str] = field(default_factory=set)
    _coming: list[tuple[float, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._coming = [
            (self.now_s + at_s, SignalArrived(number)) for at_s, number in self.signals_to_launcher
        ]

    def _part(self, name: str, attempt: int) -> Part:
        part = self.parts.get(name, Part())
        return self.later.get(name, part) if attempt else part

    def start(self, launch) -> None:
        name = str(launch.task)
        part = self._part(name, launch.attempt)
        if name in self.refused:
            self._coming.append((self.now_s + 0.01, Refused(name, launch.attempt, "no process today")))
            return
        assert name not in self.alive, "an attempt is started while the one before it runs"
        self.alive[name] = launch.attempt
        status = TaskStatus(name, 1, "here", launch.attempt, "running", self.now_s, self.now_s)
        status.step, (status.fits_begun, status.fits_ended) = 9, part.fits
        status.unsaved, status.saved_step = part.unsaved, part.saved_step
        if part.record is not None:
            at_s, message, kind = part.record
            why = FailureRecord(
                name,
                message,
                FailureKind(kind),
                monotonic_s=self.now_s + at_s,
                exit_code=part.status,
                log="its.log",
            )
            failure = RunFiles(launch.run_dir).failure(launch.task, launch.attempt)
            failure.parent.mkdir(parents=True, exist_ok=True)
            write_record(failure, why)
        path = RunFiles(launch.run_dir).status(launch.task)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, status)
        self._coming.append((self.now_s + 0.01, Started(name, launch.attempt, 42)))
        if part.lasts_s != FOR_EVER:
            self._coming.append(
                (self.now_s + 0.02 + part.lasts_s, Exited(name, launch.attempt, part.status, 0))
            )

    def signal(self, task: TaskId, number: int) -> None:
        name = str(task)
        if name not in self.alive or number in (signal.SIGCONT, signal.SIGUSR1):
            return
        self.sent.append((self.now_s, name, number))
        delay_s = 0.0 if number == signal.SIGKILL else self._part(name, self.alive[name]).leaves_s
        if delay_s != FOR_EVER:
            self._coming.append((self.now_s + delay_s, Exited(name, self.alive[name], -number, 0)))

    def wait(self, until_s: float) -> list[object]:
        self._coming.sort(key=lambda entry: entry[0])
        self.now_s = min([until_s, *(at_s for at_s, _ in self._coming[:1])])
        assert self.now_s < 3000, "the run never ends"
        due = [event for at_s, event in self._coming if at_s <= self.now_s]
        self._coming = [entry for entry in self._coming if entry[0] > self.now_s]
        heard = []
        for event in due:
            if isinstance(event, Exited):
                if self.alive.get(event.task) != event.attempt:
                    continue
                del self.alive[event.task]
            if isinstance(event, Started):
                self.reported.add(event.task)
            heard.append(event)
        return heard

    def close(self) -> None:
        """Kills what is left: allowed for what has been ordered and has not yet reported that it is there."""
        assert not self.alive.keys() & self.reported
        self.alive.clear()

    def say(self, text: str) -> None:
        self.said.append(text)

    def event(self, kind: str, **facts) -> None:
        pass

    follow = save = pump = leave_out_stacks = lambda self, *_: None


def perform(
    folder: Path, stage: Stage, spec: RunSpec = SPEC, limits: Limits | None = None, program: bool = True
):
    cluster = ClusterSpec.from_lists(chief=["a:1"], worker=["a:2", "a:3"], ps=["a:4"])
    workload = Workload(Path("x.py") if program else None, () if program else ("x",), folder)
    plan = build_plan(spec, cluster, RunIdentity("id", folder), workload, Machine("python", 2, {}))
    supervisor = Supervisor(
        plan, stage, stage, stage, limits or Limits(None, 60, 300, 10), clock=lambda: stage.now_s
    )
    outcome = supervisor.run()
    return supervisor, outcome


def test_the_evaluator_has_sixty_seconds_and_the_servers_outlive_it(tmp_path):
    stage = Stage({"chief:0": Part(5), "worker:0": Part(5.1), "worker:1": Part(5.2)})
    supervisor, outcome = perform(tmp_path, stage)
    assert (outcome.state, outcome.exit_code) == ("succeeded", 0)
    assert [(round(at_s - 1000), name) for at_s, name, _ in stage.sent] == [(65, "evaluator:0"), (65, "ps:0")]
    late = (
        "evaluator:0 is being stopped: it has not ended 60 s after the leader; its last evaluation may "
        "be missing"
    )
    assert late in stage.said
    assert {life.state for life in supervisor.lives.values()} == {"succeeded"}


@pytest.mark.parametrize("saved_step", [None, 12])
def test_that_nothing_is_saved_any_more_is_said_once_until_a_checkpoint_is_written(tmp_path, saved_step):
    """A leader that has been started again has not written one yet."""
    stage = Stage(
        {"chief:0": Part(5, status=-9, unsaved="no room")}, later={"chief:0": Part(5, saved_step=saved_step)}
    )
    perform(tmp_path, stage)
    expected = ["nothing is saved any more: no room"]
    expected += ["checkpoints are saved again: the last one is of step 12"] if saved_step else []
    assert [text for text in stage.said if "saved" in text] == expected


def evaluator_restarts(backoff_s: float) -> RunSpec:
    return replace(SPEC, restart={"evaluator": RestartSection(backoff_s=backoff_s)})


def test_an_evaluator_that_waits_for_its_restart_still_makes_the_final_evaluation(tmp_path):
    """The evaluator is stopped after its final evaluation, and a death by signal is followed by
    another attempt.
    """
    first, second = Part(4, status=-9), Part(10)
    stage = Stage({"chief:0": Part(5), "evaluator:0": first}, later={"evaluator:0": second})
    supervisor, outcome = perform(tmp_path, stage, evaluator_restarts(backoff_s=3))
    evaluator = supervisor.lives[TaskId.parse("evaluator:0")]
    assert (outcome.state, evaluator.state, evaluator.restarts, lost(supervisor)) == (
        "succeeded",
        "succeeded",
        1,
        "",
    )
    told = {name: round(at_s - 1000) for at_s, name, _ in stage.sent}
    assert "evaluator:0" not in told
    assert told["ps:0"] == 17, "servers outlive the evaluator"


def test_an_evaluator_that_dies_in_its_final_evaluation_is_started_again(tmp_path):
    stage = Stage({"chief:0": Part(5), "evaluator:0": Part(7, status=-9)}, later={"evaluator:0": Part(10)})
    supervisor, outcome = perform(tmp_path, stage)
    assert (outcome.state, supervisor.lives[TaskId.parse("evaluator:0")].restarts, lost(supervisor)) == (
        "succeeded",
        1,
        "",
    )
    assert round(stage.now_s - 1000) == 18


@pytest.mark.parametrize("dies_s", [4, 50])
def test_an_evaluator_that_would_be_started_again_too_late_has_failed(tmp_path, dies_s):
    """Its 60 s run from the leader's success, not from its own restart."""
    stage = Stage({"chief:0": Part(5), "evaluator:0": Part(dies_s, status=-9)})
    supervisor, outcome = perform(tmp_path, stage, evaluator_restarts(backoff_s=100))
    assert (outcome.state, state(supervisor, "evaluator:0")) == ("succeeded", "failed")
    assert "evaluator:0 failed at step 9" in lost(supervisor)
    assert stage.now_s < 1000 + dies_s + 20


def test_a_signal_while_the_evaluator_waits_for_its_restart_after_success_stops_it(tmp_path):
    stage = Stage(
        {"chief:0": Part(5), "evaluator:0": Part(4, status=-9)}, signals_to_launcher=[(7, signal.SIGINT)]
    )
    supervisor, outcome = perform(tmp_path, stage, evaluator_restarts(backoff_s=30))
    assert (outcome.state, outcome.exit_code, state(supervisor, "evaluator:0")) == ("stopped", 130, "stopped")
    assert stage.now_s < 1020


def test_a_worker_that_waits_for_its_restart_is_not_started_after_the_leaders_success(tmp_path):
    stage = Stage({"chief:0": Part(5), "worker:0": Part(4.8, status=-9), "evaluator:0": Part(9)})
    supervisor, outcome = perform(tmp_path, stage)
    assert (outcome.state, supervisor.lives[TaskId.parse("worker:0")].restarts) == ("succeeded", 0)


def test_a_start_that_is_refused_ends_the_run_and_starts_nobody_else(tmp_path):
    stage = Stage({}, refused=("ps:0",))
    _, outcome = perform(tmp_path, stage)
    assert outcome.exit_code == 127
    assert outcome.failure.message == "no process today"


def test_the_evaluator_is_never_the_cause(tmp_path):
    record = RunFiles(tmp_path).failure(TaskId(Role.EVALUATOR, 0), 0)
    record.parent.mkdir(parents=True)
    write_record(record, FailureRecord("evaluator:0", "exited with code 1", monotonic_s=1.0))
    parts = {name: Part(lasts_s=0.5, status=1) for name in ("chief:0", "worker:0", "evaluator:0")}
    _, outcome = perform(tmp_path, Stage(parts))
    assert outcome.failure.task == "chief:0"
    assert outcome.failure.likewise == ["worker:0", "evaluator:0"]


def test_a_task_that_is_refused_during_the_stop_changes_nothing(tmp_path):
    stage = Stage({}, signals_to_launcher=[(0.005, signal.SIGINT)], refused=("worker:1",))
    _, outcome = perform(tmp_path, stage)
    assert (outcome.state, outcome.exit_code) == ("stopped", 130)


def test_a_signal_after_success_stops_and_is_the_exit_code(tmp_path):
    stage = Stage({"chief:0": Part(1)}, signals_to_launcher=[(10, signal.SIGTERM)])
    _, outcome = perform(tmp_path, stage)
    assert (outcome.state, outcome.exit_code) == ("stopped", 143)


def test_a_second_signal_kills_those_who_linger(tmp_path):
    stage = Stage(
        {"worker:0": Part(leaves_s=FOR_EVER)}, signals_to_launcher=[(5, signal.SIGINT), (6, signal.SIGINT)]
    )
    _, outcome = perform(tmp_path, stage, limits=Limits(None, 60, 300, grace_s=100))
    assert outcome.exit_code == 130
    assert stage.now_s < 1007.5


def test_a_program_that_stays_away_too_long_is_124(tmp_path):
    _, outcome = perform(
        tmp_path, Stage({}), limits=Limits(timeout_s=30, start_timeout_s=60, stall_timeout_s=300, grace_s=1)
    )
    assert (outcome.state, outcome.exit_code, outcome.failure.kind) == ("failed", 124, "timeout")


@pytest.mark.parametrize(("updates", "state"), [("sync", "failed"), ("async", "succeeded")])
def test_whether_a_run_survives_without_a_worker_follows_what_the_program_wished(tmp_path, updates, state):
    wished = replace(SPEC, training=training_section(updates=updates))
    write_record(RunFiles(tmp_path).spec, wished)  # as the leader does when its program has spoken
    _, outcome = perform(tmp_path, Stage({"worker:0": Part(1, status=2), "chief:0": Part(20)}))
    assert outcome.state == state


def test_a_damaged_spec_in_the_run_directory_changes_nothing(tmp_path):
    RunFiles(tmp_path).spec.write_text("{")
    _, outcome = perform(tmp_path, Stage({"worker:0": Part(1, status=2), "chief:0": Part(20)}))
    assert outcome.state == "succeeded"


def lost(supervisor) -> str:
    return lost_on_the_way((life.state, life.lost) for life in supervisor.lives.values() if life.lost)


def state(supervisor, task: str) -> str:
    return supervisor.lives[TaskId.parse(task)].state


def test_a_worker_that_was_lost_on_the_way_is_named_at_the_end(tmp_path):
    crash = Part(1, status=1, record=(0.9, "ValueError: bad batch\nof many", "exception"))
    supervisor, outcome = perform(
        tmp_path, Stage({"worker:1": crash, "chief:0": Part(5), "worker:0": Part(5)})
    )
    assert outcome.state == "succeeded"
    assert lost(supervisor) == "worker:1 failed at step 9: ValueError: bad batch (log: its.log)"
    messages = {record.task: record.message for record in supervisor._journal.record.tasks}
    assert messages.pop("worker:1") == "ValueError: bad batch\nof many"
    assert set(messages.values()) == {None}


def test_those_that_were_lost_for_the_same_reason_are_named_together(tmp_path):
    crash = Part(1, status=1, record=(0.9, "ValueError: bad batch", "exception"))
    supervisor, _ = perform(
        tmp_path, Stage({"worker:0": crash, "worker:1": crash, "evaluator:0": crash, "chief:0": Part(5)})
    )
    assert lost(supervisor) == (
        "worker:0 failed at step 9: ValueError: bad batch (log: its.log), likewise worker:1, evaluator:0"
    )


def test_a_worker_that_leaves_in_the_midst_of_a_fit_has_failed_whatever_its_exit_code(tmp_path):
    stage = Stage(
        {"worker:1": Part(1, fits=(1, 0)), "worker:0": Part(5, fits=(1, 1)), "chief:0": Part(5, fits=(1, 1))}
    )
    supervisor, outcome = perform(tmp_path, stage)
    assert (outcome.state, state(supervisor, "worker:0"), state(supervisor, "worker:1")) == (
        "succeeded",
        "succeeded",
        "failed",
    )
    assert stage.said[0] == (
        "worker:1 has failed: left before the last step, with exit code 0; training goes on without it"
    )
    assert "worker:1 failed at step 9: left before the last step, with exit code 0" in lost(supervisor)


def test_a_worker_that_leaves_before_the_others_next_fit_has_failed(tmp_path):
    stage = Stage(
        {"worker:1": Part(1, fits=(1, 1)), "worker:0": Part(5, fits=(2, 2)), "chief:0": Part(5, fits=(2, 2))}
    )
    supervisor, _ = perform(tmp_path, stage)
    assert [state(supervisor, f"worker:{index}") for index in (0, 1)] == ["succeeded", "failed"]
    assert "left before call 2 of fit, which others have begun, with exit code 0" in lost(supervisor)


def test_a_worker_that_never_trained_has_failed_when_the_others_do(tmp_path):
    stage = Stage({"worker:1": Part(1), "worker:0": Part(5, fits=(1, 1)), "chief:0": Part(5, fits=(1, 1))})
    supervisor, _ = perform(tmp_path, stage)
    assert "worker:1 failed at step 9: left without having trained, with exit code 0" in lost(supervisor)


def test_where_every_replica_is_needed_the_run_ends_at_once_when_one_leaves(tmp_path):
    spec = replace(SPEC, training=training_section(updates="sync"))
    stage = Stage(
        {"worker:1": Part(1, fits=(1, 0)), "worker:0": Part(fits=(1, 0)), "chief:0": Part(fits=(1, 0))}
    )
    _, outcome = perform(tmp_path, stage, spec)
    assert (outcome.state, outcome.exit_code, outcome.failure.task) == ("failed", 1, "worker:1")
    assert stage.now_s < 1005


def test_a_leader_that_leaves_in_the_midst_of_a_fit_has_failed(tmp_path):
    _, outcome = perform(tmp_path, Stage({"chief:0": Part(1, fits=(1, 0))}))
    assert (outcome.state, outcome.exit_code, outcome.failure.task) == ("failed", 1, "chief:0")


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (
            Part(4, status=1, record=(1, "ValueError: x", "exception")),
            "failed",
        ),  # it crashed long before it was gone
        (
            Part(3.5, status=1, record=(3.4, "KeyError: 'val_loss'", "exception")),
            "failed",
        ),  # after the leader, by itself
        (Part(3.5, status=-11), "failed"),
        (Part(), "succeeded"),  # it is told to stop, and does
        (Part(3.5), "succeeded"),
    ],
)
def test_a_task_that_crashed_is_never_recorded_as_succeeded(tmp_path, end, found):
    supervisor, outcome = perform(tmp_path, Stage({"chief:0": Part(3), "worker:0": Part(3), "worker:1": end}))
    assert outcome.state == "succeeded"
    assert state(supervisor, "worker:1") == found
    assert ("worker:1 failed" in lost(supervisor)) == (found == "failed")


def test_a_worker_that_somebody_else_told_to_stop_is_stopped_and_not_started_again(tmp_path):
    told = Part(1, status=143, record=(0.9, "asked to stop (SIGTERM)", "signal"))
    supervisor, outcome = perform(
        tmp_path, Stage({"worker:1": told, "worker:0": Part(9), "chief:0": Part(9)})
    )
    life = supervisor.lives[TaskId.parse("worker:1")]
    assert (outcome.state, life.state, life.restarts) == ("succeeded", "stopped", 0)
    assert lost(supervisor) == "worker:1 was stopped at step 9: asked to stop (SIGTERM) (log: its.log)"


def test_the_timeout_holds_while_the_evaluator_works_after_the_leaders_end(tmp_path):
    stage = Stage({"chief:0": Part(5), "worker:0": Part(5), "worker:1": Part(5)})
    limits = Limits(timeout_s=30, start_timeout_s=60, stall_timeout_s=300, grace_s=1)
    _, outcome = perform(tmp_path, stage, limits=limits)
    assert (outcome.state, outcome.exit_code, outcome.failure.kind) == ("failed", 124, "timeout")
    assert stage.now_s < 1033
    assert {line.split()[0]: line.split()[1] for line in outcome.failure.standing} == {
        "chief:0": "succeeded",
        "worker:0": "succeeded",
        "worker:1": "succeeded",
        "ps:0": "running",
        "evaluator:0": "running",
    }


def test_the_end_by_timeout_repeats_the_stall(tmp_path):
    limits = Limits(timeout_s=30, start_timeout_s=60, stall_timeout_s=10, grace_s=1)
    _, outcome = perform(tmp_path, Stage({}), limits=limits)
    assert outcome.failure.message == "not finished within 30 s (--timeout); stalled at step 9"


def test_backoff_doubles_and_is_forgotten_after_a_healthy_minute(tmp_path):
    stage = Stage({"worker:0": Part(61, status=-9), "worker:1": Part(1, status=-9), "chief:0": Part(200)})
    perform(tmp_path, stage)
    waits = {
        name: [text.split("; ")[1] for text in stage.said if text.startswith(name)]
        for name in ("worker:0", "worker:1")
    }
    assert waits["worker:0"] == ["restarting in 1 s (1 of 3)"] * 3
    assert waits["worker:1"][:3] == [
        f"restarting in {wait} s ({count} of 3)" for wait, count in ((1, 1), (2, 2), (4, 3))
    ]


def test_a_server_that_the_chief_no_longer_hears_is_killed_and_started_again(tmp_path):
    stage, files, ps = Stage({"chief:0": Part(20)}), RunFiles(tmp_path), TaskId(Role.PS, 0)
    files.attempt(ps, 0).mkdir(parents=True)
    write_record(files.kill(ps, 0), KillRequest("chief:0 has not heard of it for 5 s"))
    supervisor, outcome = perform(tmp_path, stage)
    assert outcome.state == "succeeded"
    assert next(number for _, name, number in stage.sent if name == "ps:0") == signal.SIGKILL
    assert supervisor.lives[ps].restarts == 1, "an order is for one attempt"
    assert stage.said[0] == "ps:0 is killed: chief:0 has not heard of it for 5 s"


parts = st.builds(
    Part,
    lasts_s=st.sampled_from([0.0, 0.5, 3.0, 70.0, FOR_EVER]),
    status=st.sampled_from([0, 0, 1, 5, 134, -9, -11]),
    leaves_s=st.sampled_from([0.0, 0.1, 5.0, FOR_EVER]),
)


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    cast=st.fixed_dictionaries(dict.fromkeys(NAMES, parts)),
    signals=st.lists(
        st.tuples(st.floats(0, 100), st.sampled_from([signal.SIGINT, signal.SIGTERM])), max_size=2
    ),
    refused=st.lists(st.sampled_from(NAMES), max_size=1),
    program=st.booleans(),
)
def test_every_history_ends_with_nobody_left_and_an_honest_exit_code(
    tmp_path, cast, signals, refused, program
):
    stage = Stage(cast, signals_to_launcher=signals, refused=tuple(refused))
    limits = Limits(timeout_s=300, start_timeout_s=60, stall_timeout_s=1e9, grace_s=10)
    supervisor, outcome = perform(tmp_path, stage, limits=limits, program=program)
    assert not stage.alive
    assert all(life.state in ENDED for life in supervisor.lives.values())
    assert stage.record.state == outcome.state
    match outcome.state:
        case "succeeded":
            assert outcome.exit_code == 0
            assert cast["chief:0"].status == 0
        case "stopped":
            assert outcome.exit_code in {128 + number for _, number in signals}
        case "failed":
            assert 0 < outcome.exit_code < 256
            assert outcome.failure is not None
            assert outcome.failure.task != "launcher" or outcome.exit_code == 124


@pytest.mark.parametrize("role", list(Role))
def test_whose_failure_for_good_ends_a_program(tmp_path, role):
    stage = Stage({f"{role}:0": Part(1, status=3), "chief:0": Part(2, status=3 if role is Role.CHIEF else 0)})
    _, outcome = perform(tmp_path, stage)
    assert outcome.exit_code == (0 if role in (Role.WORKER, Role.EVALUATOR) else 3)
