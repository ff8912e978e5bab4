"""A cluster whose tasks are told to stop by whoever owns the machines: all at once, or a server alone."""

import signal

import pytest
from clusters.hand import HandCluster
from clusters.watching import PACED
from launching import wait_until

SLOW = (PACED, "--pace_s", "0.02")
NO_SCHEDULE = {"every_s": 3600}


def trains(cluster: HandCluster, updates: str) -> None:
    spec = cluster.spec(training={"updates": updates}, checkpoint=NO_SCHEDULE)
    cluster.start_all(
        lambda task: cluster.start(task, "--spec", spec, "--index", task.partition(":")[2], *SLOW)
    )
    wait_until(
        lambda: (cluster.run_dir / "run.json").exists() and (cluster.status()["global_step"] or 0) > 20,
        "20 steps",
    )


def saved_steps(cluster: HandCluster) -> list[int]:
    folder = cluster.run_dir / "checkpoints"
    return sorted(int(path.name.removeprefix("ckpt-")) for path in folder.glob("ckpt-*"))


@pytest.mark.parametrize(("updates", "servers_first"), [("async", True), ("sync", False)])
def test_all_tasks_are_told_at_once_and_no_step_is_lost(launcher, updates, servers_first):
    cluster = HandCluster(launcher, ps=2, chief=1, worker=2)
    trains(cluster, updates)
    for task in sorted(cluster.commands, reverse=servers_first):
        cluster.commands[task].process.terminate()
    assert cluster.end() == dict.fromkeys(cluster.commands, 143)
    status = cluster.status()
    assert (status["state"], status["exit_code"], status["failure"]) == ("stopped", 143, None)
    assert saved_steps(cluster) == [0, status["global_step"]]


def test_a_notice_to_any_task_is_a_checkpoint_and_a_server_that_is_told_alone_lets_its_leader_save_first(
    launcher,
):
    cluster = HandCluster(launcher, ps=2, chief=1, worker=1)
    trains(cluster, "async")
    before = cluster.status()["global_step"]
    for count, task in enumerate(("chief:0", "worker:0", "chief:0"), 1):
        cluster.commands[task].process.send_signal(signal.SIGUSR1)
        wait_until(lambda count=count: len(saved_steps(cluster)) == 1 + count, f"{count} checkpoints")
    assert saved_steps(cluster)[1] >= before
    wait_until(
        lambda: cluster.status()["global_step"] > saved_steps(cluster)[-1], "a step after the last notice"
    )
    before = cluster.status()["global_step"]
    server = cluster.commands["ps:1"].process
    server.terminate()
    assert server.wait(60) == 143
    assert len(saved_steps(cluster)) == 5, "the leader has saved once more"
    assert saved_steps(cluster)[-1] >= before
    for task, command in cluster.commands.items():
        if task != "ps:1":
            command.process.kill()
    cluster.end()
