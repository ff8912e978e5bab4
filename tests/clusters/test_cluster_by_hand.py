"""Clusters without a launcher: by a spec with addresses, by TF_CONFIG, by the classic flags. All tasks end by
themselves.
"""

import re
import socket
from itertools import chain

from clusters.hand import HandCluster
from clusters.watching import DIGITS, LARGE, LINE, PACED, saved_steps
from launching import free_port, wait_until

STEPS = 200


def test_five_commands_and_an_evaluator_with_a_spec(launcher):
    cluster = HandCluster(launcher, ps=2, chief=1, worker=2)
    spec = cluster.spec(evaluator=1, name="by-hand")
    words = (DIGITS, "--steps", str(STEPS))
    cluster.start_all(
        lambda task: cluster.start(task, "--spec", spec, "--index", task.partition(":")[2], *words),
        "evaluator:0",
    )
    cluster.succeed()
    assert "held-out accuracy 0.9" in cluster.commands["chief:0"].out
    assert f"evaluation at step {STEPS} - " in cluster.commands["evaluator:0"].out

    status = cluster.status()
    assert (status["name"], status["state"], status["exit_code"]) == ("by-hand", "succeeded", 0)
    assert (status["global_step"], status["max_steps"]) == (STEPS, STEPS)
    tasks = {task["task"]: task for task in status["tasks"]}
    assert set(tasks) == {*cluster.tasks, "evaluator:0"}
    assert {task["state"] for task in tasks.values()} == {"succeeded"}
    assert [tasks[task]["address"] for task in cluster.tasks] == [*chain(*cluster.addresses.values())]
    assert (saved_steps(cluster.run_dir)[0], saved_steps(cluster.run_dir)[-1]) == (0, STEPS)


TWO_FITS = """
import numpy as np
import dtrain as dt

x = np.ones((8, 1), np.float32)
with dt.ParameterServerStrategy().scope():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse")
for _ in range(2):
    model.fit(x, x, batch_size=8, epochs=1, steps_per_epoch=20, validation_data=(x, x), verbose=0)
print("weight", model.get_weights()[0], flush=True)
"""


def test_who_comes_when_the_chief_has_gone_learns_what_came_of_it(launcher):
    (launcher.folder / "two_fits.py").write_text(TWO_FITS)
    cluster = HandCluster(launcher, ps=1, chief=1, worker=2)
    spec = cluster.spec(evaluator=1)
    for task in ("ps:0", "worker:0", "chief:0"):
        cluster.start(task, "--spec", spec, "--index", task.partition(":")[2], "two_fits.py")
    assert [cluster.commands[task].end() for task in ("chief:0", "worker:0")] == [0, 0]
    for task in ("worker:1", "evaluator:0"):
        cluster.start(task, "--spec", spec, "--index", task.partition(":")[2], "two_fits.py")
    cluster.succeed()
    said = {
        re.search("^weight (.*)", cluster.commands[task].out, re.M)[1]
        for task in ("chief:0", "worker:0", "worker:1")
    }
    assert len(said) == 1
    assert cluster.commands["evaluator:0"].out.count("evaluation at step 40 - ") == 1


def test_tf_config_in_the_environment_is_enough(launcher):
    cluster = HandCluster(launcher, warm=False, ps=1, chief=1, worker=1)
    words = (DIGITS, "--steps", "50")
    cluster.start_all(
        lambda task: cluster.start(task, *words, environment={"TF_CONFIG": cluster.tf_config(task)})
    )
    cluster.succeed()
    status = cluster.status()
    assert status["global_step"] == 50
    assert {task["task"]: task["pid"] for task in status["tasks"]} == {
        task: command.process.pid for task, command in cluster.commands.items()
    }, "the commands became the tasks"


def test_plain_python_with_the_classic_flags(launcher):
    cluster = HandCluster(launcher, ps=1, worker=2)
    program = (LINE, "--learning_rate", "3e-3", "--max_steps", "200", "--print_every", "100")
    hosts = [f"--{role}_hosts={','.join(them)}" for role, them in cluster.addresses.items()]

    def start(task):
        job, _, index = task.partition(":")
        return cluster.start_python(task, *program, *hosts, f"--job_name={job}", f"--task_index={index}")

    cluster.start_all(start)
    cluster.succeed()
    assert "weight" in cluster.commands["worker:0"].out.splitlines()[-1], "worker 0 leads"
    assert cluster.commands["worker:1"].out == ""


def test_the_leader_keeps_account_of_all_tasks_while_they_train(launcher):
    cluster = HandCluster(launcher, ps=1, chief=1, worker=1)
    for task in cluster.tasks:
        cluster.start(task, PACED, "--steps", "1000000", environment={"TF_CONFIG": cluster.tf_config(task)})
    wait_until(lambda: (cluster.run_dir / "run.json").exists(), "the run directory")

    def all_running():
        return {task["state"] for task in cluster.status()["tasks"]} == {"running"}

    wait_until(all_running, "all tasks running, the server too")
    cluster.commands["chief:0"].process.terminate()
    assert cluster.end() == {"ps:0": 0, "chief:0": 143, "worker:0": 1}
    assert "Error: chief:0 has ended training at step" in cluster.commands["worker:0"].err
    status = cluster.status()
    assert (status["state"], status["exit_code"], status["failure"]) == ("stopped", 143, None)


def test_a_server_that_somebody_starts_again_is_restored(launcher):
    cluster = HandCluster(launcher, ps=2, chief=1, worker=1)
    training = {"updates": "sync", "partitioner": {"fixed_shards": 2}}
    spec = cluster.spec(training=training, checkpoint={"every_steps": 100})
    words = (PACED, *LARGE, "--steps", "75", "--wait_for", "go", "--after", "50", "--task", "chief:0")
    cluster.start_all(
        lambda task: cluster.start(task, "--spec", spec, "--index", task.partition(":")[2], *words)
    )
    wait_until(
        lambda: (cluster.run_dir / "run.json").exists() and cluster.status()["global_step"] == 50, "50 steps"
    )
    cluster.commands["ps:1"].process.kill()
    cluster.commands["ps:1"].process.wait()
    cluster.start("ps:1", "--spec", spec, "--index", "1")
    (launcher.folder / "go").touch()
    cluster.succeed()
    status = cluster.status()
    assert (status["state"], status["global_step"]) == ("succeeded", 75)
    assert (
        "chief:0: ps:1 had lost all variables: every server goes back from step 50 to "
        in cluster.commands["chief:0"].err
    )
    assert status["rolled_back_steps"] == 50


def test_a_server_that_is_started_again_at_another_address_is_found(launcher):
    cluster = HandCluster(launcher, ps=2, chief=1, worker=1)
    spec = cluster.spec(training={"updates": "sync", "transport": "grpc"}, checkpoint={"every_steps": 100})
    words = (PACED, "--steps", "100", "--wait_for", "go", "--after", "20")
    for task in cluster.tasks:
        cluster.start(task, "--spec", spec, "--index", task.partition(":")[2], *words)
    wait_until(
        lambda: (cluster.run_dir / "run.json").exists() and cluster.status()["global_step"] == 20, "20 steps"
    )
    cluster.commands["ps:1"].process.kill()
    cluster.commands["ps:1"].process.wait()
    elsewhere = f"127.0.0.1:{free_port()}"
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(cluster.addresses["ps"][1].rpartition(":")[2])))
        cluster.start("ps:1", "--spec", spec, "--index", "1", environment={"DTRAIN_MOVED_TO": elsewhere})
        (launcher.folder / "go").touch()
        cluster.succeed()
    assert cluster.status()["global_step"] == 100
