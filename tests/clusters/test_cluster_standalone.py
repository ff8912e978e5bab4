"""What a task that was started by hand says: who it is, where it listens, for whom it waits and why, and that
it came too late.
"""

from pathlib import Path

import pytest
from clusters.hand import HandCluster
from clusters.watching import LINE, PACED
from launching import COMMAND, wait_until


class Heard:
    """A task whose stderr can be read while it lives."""

    def __init__(self, cluster: HandCluster, task: str, *words: str) -> None:
        self.path = Path(cluster.launcher.folder, f"{task}.err")
        options = ["--run-dir", str(cluster.run_dir)] if task == cluster.leader else []
        with self.path.open("w") as file:
            role = task.partition(":")[0]
            cluster.start_python(task, *COMMAND, role, *options, *words, stderr=file)

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: any(text in line for line in self.lines), text)


@pytest.fixture(scope="module", autouse=True)
def leaderless(early):
    """A cluster of which the leader is killed while it trains; the others give up when its lease is over, and
    a little more.
    """
    cluster = HandCluster(early, ps=1, chief=1, worker=1)
    spec = cluster.spec(wait={"leader_s": 0.5, "server_s": 0.7})
    cluster.start_all(lambda task: cluster.start(task, "--spec", spec, PACED, "--steps", "1000000"))
    wait_until(
        lambda: (cluster.run_dir / "run.json").exists() and (cluster.status()["global_step"] or 0) > 5,
        "no step",
    )
    cluster.commands["chief:0"].process.kill()
    return cluster


def test_tasks_by_hand_say_who_they_are_and_for_whom_they_wait(launcher):
    """Each comes only when all before it have said that they wait for it."""
    cluster = HandCluster(launcher, ps=1, chief=1, worker=1)
    spec, program, (address,) = cluster.spec(), (LINE, "--max_steps", "50"), cluster.addresses["ps"]
    whole = "1 chief, 1 worker, 1 ps"
    worker = Heard(cluster, "worker:0", "--spec", spec, *program)
    worker.wait_for(f"dtrain: worker:0: waits for ps:0 at {address}: refused: nothing listens there")
    server = Heard(cluster, "ps:0", "--spec", spec)
    server.wait_for("dtrain: ps:0: waits for chief:0 to initialise the variables")
    worker.wait_for("dtrain: worker:0: ps:0 is there")
    worker.wait_for("dtrain: worker:0: waits for chief:0")
    chief = Heard(cluster, "chief:0", "--spec", spec, *program)
    cluster.succeed()
    pids = {task: command.process.pid for task, command in cluster.commands.items()}
    assert f"process {pids['worker:0']} of run " in worker.lines[0]
    assert worker.lines[0].endswith(f"which is {whole}; connects to ps:0 at {address} and listens nowhere")
    assert f"process {pids['ps:0']} of run " in server.lines[0]
    assert server.lines[0].endswith(f"which is {whole}; listens at {address}")
    assert f"dtrain: chief:0: leads the run; its files are in {cluster.run_dir}" in chief.lines
    assert "dtrain: ps:0: chief:0 is there and training begins at step 0" in server.lines
    assert any(line.startswith("dtrain: chief:0: the run has succeeded after ") for line in chief.lines)
    assert chief.lines[-1].endswith(" at step 50")
    assert not any("had ended" in line for line in worker.lines)


def test_a_worker_that_comes_after_the_end_says_so_in_one_line(launcher):
    cluster = HandCluster(launcher, ps=1, chief=1, worker=2)
    spec = cluster.spec()
    for task in ("ps:0", "worker:0", "chief:0"):
        cluster.start(task, "--spec", spec, "--index", task.partition(":")[2], LINE, "--max_steps", "50")
    assert [cluster.commands[task].end() for task in ("chief:0", "worker:0")] == [0, 0]
    cluster.start("worker:1", "--spec", spec, "--index", "1", LINE, "--max_steps", "50")
    cluster.succeed()
    said = (
        "dtrain: worker:1: training had ended at step 50 before this task came: nothing is left for it to do"
    )
    assert cluster.commands["worker:1"].err.splitlines().count(said) == 1


def test_a_name_that_cannot_be_resolved_is_named(launcher):
    hosts = ("--ps_hosts", "nosuch.invalid:2222", "--worker_hosts", "127.0.0.1:2223", "--task_index", "0")
    words = ("--insecure", "--set", "wait.start_s=2", *hosts)
    tasks = {"ps": launcher.dtrain("ps", *words), "worker": launcher.dtrain("worker", *words, LINE)}
    assert {role: task.end() for role, task in tasks.items()} == {"ps": 2, "worker": 1}
    for role, whom in (("ps", "its own name"), ("worker", "ps:0")):
        waits, last = (
            line
            for line in tasks[role].err.splitlines()
            if "nosuch.invalid" in line and "connects to" not in line and "warning" not in line
        )
        assert waits.startswith(f"dtrain: {role}:0: waits for {whom} at nosuch.invalid:2222: ")
        assert "name nosuch.invalid cannot be looked up" in last or "no such name: nosuch.invalid" in last


STAYS = """
import sys, time
import dtrain as dt
dt.get_strategy()

def stay():
    print("here", flush=True)
    while True:
        time.sleep(0.05)

while True:
    try:
        stay()
    except SystemExit:
        print("told", file=sys.stderr, flush=True)
"""


def test_a_task_by_hand_that_does_not_leave_is_killed_when_its_grace_is_over(launcher):
    (launcher.folder / "stays.py").write_text(STAYS)
    cluster = HandCluster(launcher, ps=1, chief=1, worker=1)
    task = Heard(cluster, "worker:0", "--spec", cluster.spec(), "--grace", "0.5", "stays.py")
    process = cluster.commands["worker:0"].process
    assert process.stdout.readline() == "here\n"
    process.terminate()
    assert cluster.end() == {"worker:0": -9}
    assert "told" in task.lines
    assert any('stays.py", line ' in line for line in task.lines), "its stacks"
    assert (
        task.lines[-1]
        == "dtrain: worker:0: has not left 0.5 s after the order to stop (wait.grace_s): it is killed"
    )


def test_a_lost_leader_and_a_lost_server_are_waited_for_as_the_spec_says(leaderless):
    assert leaderless.end() == {"ps:0": 1, "worker:0": 1, "chief:0": -9}
    assert "PeerLostError: chief:0 has not been heard of for 5.5 s" in leaderless.commands["ps:0"].err
    said = leaderless.commands["worker:0"].err
    assert "it did not come back within 0.7 s" in said or "it has been away for 0.7 s" in said
