"""A cluster whose tasks are started by a cluster manager: `dtrain task` in the variables that it sets."""

import json

from clusters.hand import HandCluster
from clusters.watching import LINE
from launching import COMMAND

POOLS = {"chief": "workerpool0", "worker": "workerpool1", "ps": "workerpool2", "evaluator": "workerpool3"}


def test_replicas_of_vertex_find_their_places_and_train(launcher):
    cluster = HandCluster(launcher, ps=1, chief=1, worker=1)
    pools = {POOLS[role]: addresses for role, addresses in cluster.addresses.items()}
    pools["workerpool3"] = ["evaluator-0:2222"]  # the others never talk to it

    def start(task: str):
        role, _, index = task.partition(":")
        place = {"cluster": pools, "task": {"type": POOLS[role], "index": int(index)}, "environment": "cloud"}
        options = ["--run-dir", str(cluster.run_dir)] if task == cluster.leader else []
        words = (*COMMAND, "task", *options, LINE, "--max_steps", "50")
        return cluster.start_python(task, *words, environment={"CLUSTER_SPEC": json.dumps(place)})

    cluster.start_all(start)
    cluster.succeed()
    assert cluster.status()["global_step"] == 50


def test_a_program_that_no_manager_has_started_is_told_what_is_missing(launcher):
    command = launcher.dtrain("task", LINE)
    assert command.end() == 2
    assert (
        "expected one of TF_CONFIG, CLUSTER_SPEC (Vertex AI), OMPI_COMM_WORLD_RANK"
        in command.process.communicate()[1]
    )


def test_the_only_task_of_a_manager_trains_alone_and_keeps_what_it_is_told_to_keep(launcher):
    hosts = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}
    run_dir = launcher.folder / "run"
    words = ("task", "--run-dir", str(run_dir), LINE, "--max_steps", "50")
    command = launcher.dtrain(*words, environment=hosts)
    assert command.end() == 0, command.process.communicate()
    assert sorted(path.name for path in (run_dir / "checkpoints").glob("ckpt-*"))[-1] == "ckpt-50"
