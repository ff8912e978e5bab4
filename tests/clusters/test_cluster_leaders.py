"""The leader of replicas that reduce among themselves dies by kill -9: another one leads at once, and numbers,
callbacks, files and weights are those of a run to which nothing has happened, to the last bit.
"""

import json
from pathlib import Path

import pytest
from clusters.watching import report_of, tasks_of

from dtrain.errors import RunNotFoundError

PROGRAM = str(Path(__file__).parent / "leading_replicas.py")
WORDS = (
    *("--strategy", "multi_worker_mirrored", "--workers", "2", "--no-evaluator"),
    *("--set", "training.deterministic=true", "--set", "checkpoint.every_steps=5"),
    *(word for role in ("chief", "worker") for word in ("--set", f"restart.{role}.backoff_s=0.1")),
)
REPLICAS = ("chief:0", "worker:0", "worker:1")


def told_by(launch, attempts):
    """What the tasks have told at their end."""
    found = {}
    for task in REPLICAS:
        lines = launch.log(task, attempts.get(task, 0)).splitlines()
        found[task] = next((json.loads(line[5:]) for line in lines if line.startswith("TOLD ")), None)
    return found


def outcome(launcher, launch, attempts):
    """Weights, History, notes of the one that leads at the end, and the files of callbacks."""
    assert launch.end() == 0, launch.err
    launch.wait_gone()
    told = told_by(launch, attempts)
    there = [each for each in told.values() if each is not None]
    # One that was started again when all others had gone leads as well, and has nothing to note any more.
    noted = [each["noted"] for each in there if each["noted"]]
    assert len({each["weights"] for each in there}) == 1
    assert len({json.dumps(each["history"]) for each in there}) == 1
    files = {name: (launch.folder / name).read_bytes() for name in ("table.csv", "best.safetensors")}
    assert len(noted) <= 1
    return there[0]["weights"], there[0]["history"], noted, files


def told(launch, task, what):
    """What the run's status says of a task; None before it is there."""
    try:
        return tasks_of(report_of(launch.run_dir)).get(task, {}).get(what)
    except RunNotFoundError:
        return None


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    from launching import Launcher

    launcher = Launcher(tmp_path_factory.mktemp("calm"))
    yield outcome(launcher, launcher.start(*WORDS, PROGRAM), {})
    launcher.close()


@pytest.fixture(scope="module", autouse=True)
def standing_still(early):
    """A run in which a replica stands still, for longer than the stall timeout, and later its leader too."""
    words = (*WORDS, "--stall-timeout", "4", PROGRAM, "--stuck", "worker:1", "--stopped", "chief:0")
    return early.start(*words)


@pytest.mark.parametrize(
    "deaths",
    [
        [("chief:0", "validation", 5), ("worker:0", "step", 9)],
        [("chief:0", "end", 2), ("worker:0", "begin", 1)],
    ],
    ids=lambda deaths: "-".join(f"{task}-{moment}" for task, moment, _ in deaths).replace(":", ""),
)
def test_a_leader_that_dies_at_a_moment_of_its_own_changes_nothing(launcher, calm, deaths):
    words = [word for death in deaths for word in ("--die", *map(str, death))]
    launch = launcher.start(*WORDS, PROGRAM, *words)
    dead = {task for task, _, _ in deaths}
    found = outcome(launcher, launch, dict.fromkeys(dead, 1))
    assert found == calm
    tasks = tasks_of(report_of(launch.run_dir))
    assert {name for name, task in tasks.items() if task["restarts"]} == dead
    successor = min(set(REPLICAS) - dead)
    assert tasks[successor]["leads"]
    assert f"{successor} | dtrain: fit: the leader has died; this task leads" in launch.out


@pytest.mark.parametrize(
    ("too_few", "moment"),
    [("shrink", ("newcomer", "1")), ("wait", ("step", "23"))],
    ids=["as_it_comes_in", "in_the_same_epoch"],
)
def test_a_first_leader_that_has_come_back_and_leads_again_has_the_sums_of_the_epoch(
    launcher, calm, too_few, moment
):
    """The first leader comes back within an epoch. Then its successor dies, and the first leader, whose rank is
    lower than the others', leads again.
    """
    deaths = ("--die", "chief:0", "step", "20", "--die", "worker:0", *moment)
    launch = launcher.start(*WORDS, "--set", f"training.too_few={too_few}", PROGRAM, *deaths)
    assert outcome(launcher, launch, {"chief:0": 1, "worker:0": 1}) == calm
    assert "chief:0 | dtrain: fit: the leader has died; this task leads" in launch.out
    assert tasks_of(report_of(launch.run_dir))["worker:0"]["restarts"] == 1


def test_a_leader_that_is_lost_for_good_is_named_at_the_end(launcher, calm):
    """Its evaluator goes on too, and hears of the end from the one that leads then."""
    words = (*WORDS, "--evaluator", "--set", "restart.chief.policy=never")
    launch = launcher.start(*words, PROGRAM, "--die", "chief:0", "step", "9")
    assert outcome(launcher, launch, {}) == calm
    assert "chief:0 has failed: killed by SIGKILL (signal 9); training continues without it" in launch.err
    last = launch.err.splitlines()[-2]
    assert "succeeded after" in last
    assert "chief:0 failed at step" in last
    report = report_of(launch.run_dir)
    assert report["evaluation"]["global_step"] == report["global_step"] == 48
    tasks = tasks_of(report)
    assert (tasks["chief:0"]["state"], tasks["worker:0"]["state"]) == ("failed", "succeeded")
    assert "killed by SIGKILL" in tasks["chief:0"]["message"]
    assert tasks["evaluator:0"]["exit_code"] == 0


def test_a_leader_lost_for_good_before_the_first_step_a_death_there_a_pause_and_tls_change_nothing(
    launcher, calm
):
    faults = ("--set", "simulate.pause=[{task: worker:0, at_s: 0, for_s: 1}]")
    words = (*WORDS, *faults, "--set", "security.tls=required", "--set", "restart.chief.policy=never")
    deaths = [word for task in ("chief:0", "worker:1") for word in ("--die", task, "start", "1")]
    launch = launcher.start(*words, PROGRAM, *deaths)
    assert outcome(launcher, launch, {"worker:1": 1}) == calm, "the heir has all epochs"
    assert "chief:0 has failed: killed by SIGKILL (signal 9); training continues without it" in launch.err
    assert "the leader has died; this task leads call 1 of fit" in launch.out
    events = (launch.run_dir / "events.jsonl").read_text()
    assert '"signal": "SIGSTOP"' in events
    assert '"signal": "SIGCONT"' in events


def test_a_leader_that_comes_back_takes_part_as_a_member(launcher, calm):
    """The others stand still, at their thirtieth part, until it waits for the end of their step."""
    launch = launcher.start(*WORDS, PROGRAM, "--wait_for", "go", "--die", "chief:0", "step", "9")
    launch.wait_for(lambda: told(launch, "chief:0", "restarts") == 1, "the chief is started again")
    joins = "the members, the end of their step"
    launch.wait_for(lambda: told(launch, "chief:0", "waiting_for") == joins, "it comes back")
    assert (told(launch, "chief:0", "leads"), told(launch, "worker:0", "leads")) == (None, True)
    (launch.folder / "go").touch()
    assert outcome(launcher, launch, {"chief:0": 1}) == calm
    assert "another task leads meanwhile: this one takes part as a member" in launch.out
    assert told(launch, "chief:0", "leads") is None


def test_a_leader_that_dies_between_two_calls_of_fit_has_an_heir_that_begins_the_next(launcher):
    calm = launcher.start(*WORDS, PROGRAM, "--again", "--epochs", "1")
    expected = outcome(launcher, calm, {})[0]
    for restarts in ((), ("--set", "restart.chief.policy=never")):  # it leads again, if it comes in time
        launch = launcher.start(
            *WORDS, *restarts, PROGRAM, "--again", "--epochs", "1", "--die", "chief:0", "between", "1"
        )
        assert launch.end() == 0, launch.err
        found = told_by(launch, {task: told(launch, task, "restarts") for task in REPLICAS})
        living = {each["weights"] for task, each in found.items() if each or task != "chief:0"}
        assert living == {expected}, launch.err
    assert "worker:0 | dtrain: the leader has died; this task leads call 2 of fit" in launch.out


def test_a_replica_that_stands_still_is_named_and_killed_and_a_leader_that_is_stopped_whole_too(
    standing_still, early, calm
):
    """The replica lives and says so; the others wait for it, and have it killed after the stall timeout. Later
    the leader is stopped.
    """
    launch = standing_still
    assert outcome(early, launch, {"chief:0": 1, "worker:1": 1}) == calm
    assert "waiting for worker:1, gradient of part 2 of step 3, " in launch.err
    assert "worker:1 is killed: " in launch.err
    assert "for worker:1, gradient of part 2 of step 3, and it does nothing" in launch.err
    assert "chief:0 is killed: " in launch.err
