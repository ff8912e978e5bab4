"""`--strategy multi_worker_mirrored`: chiefs and workers that share memory train like parameter servers, to the bit,
whoever is killed, and nothing is left of them.
"""

import json
import os
import re
import signal
import textwrap
from pathlib import Path

import numpy as np
import pytest
from clusters.hand import HandCluster
from clusters.watching import report_of, saved_steps, step_of, succeeded, tasks_of

TOLD = str(Path(__file__).parent / "told_line.py")
REPLICAS = ("--strategy", "multi_worker_mirrored", "--no-evaluator")
BITS = ("--set", "training.deterministic=true")
QUICK = (word for role in ("chief", "worker") for word in ("--set", f"restart.{role}.backoff_s=0.1"))
QUICKLY = tuple(QUICK)
STEPS = 24


def told(launch, what, tasks=("chief:0", "worker:0", "worker:1")):
    """The lines of all tasks that begin so: one text, the same in all, or a set of several."""
    found = {
        task: re.findall(rf"^{what} (.*)$", launch.log(task) + launch.log(task, 1), re.MULTILINE)
        for task in tasks
    }
    assert len({tuple(lines) for lines in found.values()}) == 1, found
    return found[tasks[0]]


def nothing_is_shared(launch):
    """No memory is left under a name, and no process of the launch."""
    launch.wait_gone()
    assert not [each for each in Path("/dev/shm").iterdir() if "dtrain" in each.name]


def test_the_bits_are_those_of_parameter_servers_also_where_a_worker_and_the_leader_die(launcher):
    servers = ("--strategy", "parameter_server", "--updates", "sync", "--ps", "2", "--no-evaluator")
    reference = launcher.start("--workers", "2", *servers, *BITS, TOLD)
    killed = launcher.start(
        "--workers", "2", *REPLICAS, *BITS, *QUICKLY, TOLD, "--wait_for", "go", "--after", "4"
    )
    killed.wait_for(lambda: step_of(killed, "worker:1") >= 4, "4 steps")
    os.kill(killed.pid("worker:1"), signal.SIGKILL)
    killed.wait_for(lambda: killed.task("worker:1")["attempt"] == 1, "a restart")
    os.kill(killed.pid("chief:0"), signal.SIGKILL)
    killed.wait_for(lambda: killed.task("chief:0")["attempt"] == 1, "a restart of the leader")
    (launcher.folder / "go").touch()
    for launch in (reference, killed):
        succeeded(launch)
        assert report_of(launch.run_dir)["global_step"] == STEPS
    expected = [told(reference, what) for what in ("history", "weights")]
    # One that is started again while the others end may come too late to be told.
    back = [
        task for task in ("chief:0", "worker:1") if re.search("^weights ", killed.log(task, 1), re.MULTILINE)
    ]
    assert [told(killed, what, ("worker:0", *back)) for what in ("history", "weights")] == expected
    assert saved_steps(killed.run_dir)[-1] == STEPS
    nothing_is_shared(killed)


def test_changes_in_the_midst_of_an_epoch_hold_as_in_one_process_and_a_second_fit_goes_on(launcher):
    """Also where `BatchNormalization(synchronized=True)` sums over the replicas, of which two have no example of
    the last batch, and where the leader begins a step again.
    """
    words = (TOLD, "--synchronized", "--rows", "97", "--assign_at", "3", "--stop_at", "13", "--fits", "2")
    alone = launcher.start(
        "--strategy", "mirrored", "--no-evaluator", "--set", "training.replicas=3", *BITS, *words
    )
    replicas = launcher.start("--workers", "2", *REPLICAS, *BITS, *words)
    for launch in (alone, replicas):
        succeeded(launch)
    for what in ("history", "weights"):
        assert told(replicas, what) == told(alone, what, ("chief:0",))
    assert tasks_of(report_of(replicas.run_dir))["worker:1"]["step"] == 13 + 27


def test_a_checkpoint_goes_on_under_servers_and_on_other_numbers_of_replicas(launcher):
    servers = ("--strategy", "parameter_server", "--updates", "sync", "--ps", "1", "--no-evaluator")
    first = launcher.start("--workers", "2", *REPLICAS, TOLD, "--epochs", "1")
    succeeded(first)
    for epochs, words in ((2, ("--workers", "1", *servers)), (3, ("--workers", "3", "--ps", "0", *REPLICAS))):
        more = launcher.start("--resume", *words, TOLD, "--epochs", epochs, run_dir=first.run_dir)
        succeeded(more)
        assert f"goes on from step {8 * (epochs - 1)} of {8 * epochs}" in more.err + more.out
    assert report_of(first.run_dir)["global_step"] == STEPS


def test_without_a_chief_the_first_worker_leads_and_the_evaluator_follows(launcher):
    launch = launcher.start(
        *("--strategy", "multi_worker_mirrored", "--set", "cluster.chief=0", "--workers", "2"), TOLD
    )
    succeeded(launch)
    report = report_of(launch.run_dir)
    assert report["evaluation"]["global_step"] == STEPS
    assert set(tasks_of(report)) == {"worker:0", "worker:1", "evaluator:0"}
    assert len(told(launch, "weights", ("worker:0", "worker:1"))) == 1


def test_a_step_of_train_on_batch_is_of_the_leaders_examples_alone(launcher):
    program = """
    import json, os
    import numpy as np, dtrain as dt
    strategy = dt.get_strategy()
    factor = 1 if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief" else 5
    x = factor * np.arange(12, dtype="float32").reshape(6, 2)
    with strategy.scope():
        model = dt.Sequential([dt.layers.Dense(1, kernel_initializer="zeros", input_shape=(2,))])
        model.compile("sgd", "mse")
    for _ in range(2):
        model.train_on_batch(x, x.sum(1, keepdims=True))
    print("weights", model.get_weights()[0].ravel().tolist())
    """
    (launcher.folder / "program.py").write_text(textwrap.dedent(program))
    launch = launcher.start("--workers", "1", *REPLICAS, "program.py")
    succeeded(launch)
    (found,) = told(launch, "weights", ["chief:0", "worker:0"])
    ignored = "worker:0 | train_on_batch: the leader's batch is trained; those of other tasks are not used"
    assert launch.out.count("train_on_batch:") == launch.out.count(ignored) == 1, (
        "once, in a task that does not lead"
    )
    x, weights, bias = np.arange(12.0).reshape(6, 2), np.zeros(2), 0.0
    for _ in range(2):  # as the rule says: the mean of the squares, and a rate of 0.01
        slopes = 2 * (x @ weights + bias - x.sum(1)) / 6
        weights, bias = weights - 0.01 * slopes @ x, bias - 0.01 * slopes.sum()
    assert json.loads(found) == pytest.approx(weights.tolist(), rel=1e-5)


def test_a_worker_joins_a_run_that_trains_and_has_its_whole_history(launcher):
    words = (TOLD, "--wait_for", "go", "--after", "4")
    launch = launcher.start("--workers", "2", *REPLICAS, *BITS, *words)
    launch.wait_for(lambda: step_of(launch, "worker:1") >= 4, "4 steps")
    joined = launcher.dtrain("worker", "--join", launch.run_dir, *words)
    launch.wait_for((launch.run_dir / "tasks" / "worker-2" / "status.json").exists, "one more")
    (launcher.folder / "go").touch()
    succeeded(launch)
    assert joined.end() == 0, joined.err
    assert len(told(launch, "history", ("chief:0", "worker:0", "worker:1", "worker:2"))) == 1


def test_by_hand_with_tf_config_alone(launcher):
    cluster = HandCluster(launcher, worker=2)
    home = {"XDG_STATE_HOME": str(launcher.folder)}
    for task in cluster.tasks:
        environment = {"TF_CONFIG": cluster.tf_config(task), **home}
        cluster.start_python(task, TOLD, "--made_by", "MultiWorkerMirroredStrategy", environment=environment)
    ended = {task: (command.end(), command.out, command.err) for task, command in cluster.commands.items()}
    assert {code for code, _, _ in ended.values()} == {0}, ended
    told_by = {
        line for _, out, _ in ended.values() for line in out.splitlines() if line.startswith("weights")
    }
    assert len(told_by) == 1
    assert "serves at 127.0.0.1:" in ended["worker:1"][2]


def test_a_chief_that_only_leads_computes_nothing_and_is_followed_by_a_worker_that_trains(launcher):
    """Bits are those of as many replicas as there are workers, also where the chief dies and comes back."""
    words = ("--no-evaluator", *BITS, TOLD)
    alone = launcher.start("--strategy", "mirrored", "--set", "training.replicas=2", *words)
    leads = ("--strategy", "multi_worker_mirrored", "--workers", "2", "--set", "training.chief_trains=false")
    calm = launcher.start(*leads, *words)
    killed = launcher.start(*leads, *words, "--pace_s", "0.05")
    killed.wait_for(lambda: step_of(killed, "worker:0") >= 3, "3 steps")
    os.kill(killed.pid("chief:0"), signal.SIGKILL)
    for launch in (alone, calm, killed):
        succeeded(launch)
    for what in ("history", "weights"):
        expected = told(alone, what, ("chief:0",))
        assert told(calm, what) == told(killed, what, ("worker:0", "worker:1")) == expected
    assert tasks_of(report_of(calm.run_dir))["chief:0"]["state"] == "succeeded"
    computed = {each.parts[-3] for each in (calm.run_dir / "tasks").rglob("seconds-*")}
    assert {"worker-0", "worker-1"} == computed
