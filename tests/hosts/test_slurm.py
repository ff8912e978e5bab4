"""Slurm runs a launch: in an allocation, as a job that is followed, cancelled, requeued, out of time.

DTRAIN_SLURM_TRIALS says how often a requeue is tried, one time by default; with more the slow tests run too.
"""

import json
import os
import pty
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts.minislurm import MiniSlurm, needs_slurm
from hosts.rig import Rig
from launching import Command, wait_until

pytestmark = needs_slurm
TRIALS = int(os.environ.get("DTRAIN_SLURM_TRIALS", "1"))
thorough = pytest.mark.skipif(TRIALS == 1, reason="takes long; DTRAIN_SLURM_TRIALS=2 runs it")
COUNTED = Path(__file__).parents[1] / "clusters" / "counted_stages.py"
LATE_STEPS = 3
"""Asynchronous updates that a worker may make after the leader's last cut: its signal comes some ms later."""
PACED = """
import itertools, sys, time
import numpy as np
import dtrain as dt

def batches():
    rng = np.random.default_rng(0)
    for _ in itertools.count():
        time.sleep(0.02)
        x = rng.normal(size=(8, 1)).astype(np.float32)
        yield x, 2 * x + 10

strategy = dt.get_strategy()
with strategy.scope():
    model = dt.Sequential([dt.layers.Input((1,)), dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.SGD(0.01), loss="mse")
examples = lambda context: dt.data.Dataset.from_generator(batches)
model.fit(examples, epochs=1, steps_per_epoch=int(sys.argv[1]), verbose=0)
"""
CLUSTER = ("--no-evaluator", "--workers", "2", "--ps", "1")


class User:
    """A user of a Slurm on h0, whose home all nodes see."""

    def __init__(self, slurm: MiniSlurm, folder: Path) -> None:
        self.slurm = slurm
        self.folder = folder
        self.commands: list[Command] = []
        (folder / "paced.py").write_text(PACED)
        home = {"XDG_STATE_HOME": f"{folder}/state", "XDG_CACHE_HOME": f"{folder}/cache"}
        self.environment = {**slurm.environment, **home, "DTRAIN_RUNS_DIR": f"{folder}/state/dtrain/runs"}

    def start(self, *words: str, before: tuple[str, ...] = (), **options: object) -> Command:
        """Start a dtrain command on h0, behind another such as salloc."""
        wrapper = self.slurm.rig.wrapper("h0")
        place = ("sh", "-c", 'cd "$0" && exec "$@"', str(self.folder))
        command = Command(
            self.folder,
            ["-m", "dtrain_cli.main", *words],
            wrapper=(*wrapper, *place, *before),
            environment=self.environment,
            **options,
        )
        self.commands.append(command)
        return command

    def launch(self, *words: str, **options: object) -> Command:
        """Launch the paced program on two nodes, which it is given with its number of steps last."""
        wishes = ("--set", "slurm.nodes=2", *CLUSTER)
        return self.start("launch", "--on", "slurm", *wishes, *words[:-1], "paced.py", words[-1], **options)

    def runs(self) -> list[Path]:
        """The directories of all runs."""
        return sorted((self.folder / "state" / "dtrain" / "runs").glob("*/run.json"))

    def step(self) -> int:
        """The last step that a task of the newest run has told."""
        found = []
        for path in self.runs()[-1].parent.glob("tasks/*/status.json") if self.runs() else ():
            found.append(json.loads(path.read_text()).get("step") or 0)
        return max(found, default=0)

    def output(self, ending: str) -> str:
        """What the newest job has printed."""
        files = sorted((self.folder / "state" / "dtrain" / "slurm").glob(f"*.{ending}"))
        return files[-1].read_text() if files else ""

    def close(self) -> None:
        """End what is left."""
        for command in self.commands:
            if command.process.poll() is None:
                command.process.kill()
            command.process.communicate()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniSlurm]:
    with Rig(tmp_path_factory.mktemp("rig"), 3) as rig, MiniSlurm(rig) as slurm:
        yield slurm


@pytest.fixture
def user(slurm: MiniSlurm, tmp_path: Path) -> Iterator[User]:
    user = User(slurm, tmp_path)
    yield user
    user.close()
    slurm.run("scancel", "--user=root", check=False)
    wait_until(lambda: not slurm.run("squeue", "-h").stdout, "the jobs to end")


def nothing_is_left(slurm: MiniSlurm) -> None:
    def rest() -> list[str]:
        lines = (line for name in slurm.rig.names for line in slurm.rig.processes(name).values())
        return [line for line in lines if "dtrain" in line and "slurmd" not in line]

    wait_until(lambda: not rest(), f"processes of dtrain are left on nodes: {rest()}")


def job_of(command: Command, user: User) -> str:
    """The number of the job that a launch has submitted."""
    del command
    jobs = wait_until(lambda: user.slurm.run("squeue", "-h", "-o", "%i").stdout.split(), "a job")
    return jobs[0].partition("+")[0]  # of a heterogeneous one, 7+0


def test_in_an_allocation_agents_run_on_its_nodes(user, slurm):
    command = user.start(
        "launch", "--on", "slurm", *CLUSTER, "paced.py", "30", before=("salloc", "-N3", "-c4", "--quiet")
    )
    assert command.end() == 0, command.err
    (run,) = user.runs()
    hosts = {task["task"]: task["host"] for task in json.loads(run.read_text())["tasks"]}
    assert hosts == {"chief:0": "h1", "ps:0": "h1", "worker:0": "h2", "worker:1": "h3"}
    nothing_is_left(slurm)


def test_tasks_that_srun_starts_find_their_places(user, slurm):
    (user.folder / "tasks.yaml").write_text("cluster: {chief: 1, worker: 2, ps: 1}\n")
    assert user.start("secret", "run.secret").end() == 0
    words = ("task", "--spec", "tasks.yaml", "--secret-file", "run.secret", "paced.py", "20")
    command = user.start(*words, before=("salloc", "-N2", "-n4", "--quiet", "srun"))
    assert command.end() == 0, command.err
    assert re.search(r"chief:0: the run has succeeded after .* at step 20", command.err)
    assert {name for name in slurm.rig.names if re.search(rf"listens at {name}:", command.err)} == {"h1"}
    nothing_is_left(slurm)


def test_stages_of_a_model_run_on_the_nodes_of_an_allocation(user, slurm):
    (user.folder / "counted.py").write_text(COUNTED.read_text())
    words = ("--strategy", "pipeline", "--stages", "3", "--no-evaluator", "counted.py")
    command = user.start("launch", "--on", "slurm", *words, before=("salloc", "-N3", "-c4", "--quiet"))
    assert command.end() == 0, command.err
    (run,) = user.runs()
    assert {task["host"] for task in json.loads(run.read_text())["tasks"]} == {"h1", "h2", "h3"}
    assert len(re.findall(r"\| counts \S+ \[\[6\.0\], \[6\.0\], \[6\.0\]\]", command.out)) == 3, command.out
    nothing_is_left(slurm)


def test_a_job_is_submitted_followed_and_its_end_is_the_command_s(user, slurm):
    command = user.launch("30")
    assert command.end() == 0, command.err
    assert "is submitted; files of the run" in command.err
    assert "at step 30" in command.err
    assert "lie on" not in command.err  # the disk is shared
    assert re.search(r"job \d+ is COMPLETED", command.err)
    nothing_is_left(slurm)


def test_a_run_on_a_node_is_seen_and_stopped_from_the_login_node(user, slurm):
    command = user.launch("100000")
    job = job_of(command, user)
    wait_until(lambda: user.step() > 5, "some steps")
    status = user.start("status", "--json")
    assert status.end() == 0, status.err
    tasks = {task["task"]: task for task in json.loads(status.out)["tasks"]}
    assert {task["host"] for task in tasks.values()} == {"h1", "h2"}
    assert all(task["heartbeat_age_s"] < 60 for task in tasks.values())
    assert user.start("stop").end() == 0
    assert command.end() == 143, command.err
    assert slurm.job(job)["JobState"] == "FAILED"
    assert slurm.job(job)["Restarts"] == "0"
    nothing_is_left(slurm)


def test_a_job_that_waits_is_a_run_that_status_and_stop_know(user, slurm):
    other = slurm.run("sbatch", "--parsable", "-N3", "--exclusive", "-o/dev/null", "--wrap=sleep 1000")
    slurm.await_state(other.stdout.strip(), "RUNNING")
    submitted = user.launch("--detach", "30")
    assert submitted.end() == 0, submitted.err
    job = submitted.out.strip()
    slurm.await_state(job, "PENDING")
    status = user.start("status")
    assert status.end() == 0, status.err
    assert re.search(rf"pending .* job {job} is PENDING \(\w+\)", status.out), status.out
    assert slurm.run("squeue", "-h", "-o", "%j", "-j", job).stdout.strip() == "paced"
    assert user.start("stop").end() == 0
    assert slurm.job(job)["JobState"] == "CANCELLED"
    assert user.start("status").end() == 4


@thorough
def test_a_run_whose_first_node_is_lost_goes_on_when_its_job_does(user, slurm):
    submitted = user.launch("--detach", "--set", "checkpoint.every_s=1", "100000")
    assert submitted.end() == 0, submitted.err
    job = submitted.out.strip()
    wait_until(lambda: list(user.folder.rglob("checkpoints/ckpt-[1-9]*")), "a checkpoint")
    slurm.rig.kill("h1")
    slurm.run("scontrol", "update", "NodeName=h1", "State=DOWN", "Reason=lost")
    waits = lambda: slurm.job(job)["JobState"] == "PENDING"  # noqa: E731
    wait_until(waits, "the job to be requeued: Slurm asks the lost node first", within_s=200)
    status = user.start("status")
    assert status.end() == 0, status.err
    assert f"job {job} is PENDING" in status.out
    slurm.rig.revive("h1")
    slurm.start_node("h1")
    slurm.run("scontrol", "update", "NodeName=h1,h2", "State=RESUME", check=False)
    slurm.start_now(job)
    output = lambda: user.output("out") + user.output("err")  # noqa: E731
    resumed = wait_until(lambda: re.search(r"goes on from step (\d+)", output()), "the resume")
    assert int(resumed[1]) > 0
    assert user.start("stop").end() == 0
    nothing_is_left(slurm)


@thorough
def test_twenty_trials_are_an_array(user, slurm):
    plan = user.start("plan", "--on", "slurm", *CLUSTER, "paced.py", "3")
    assert plan.end() == 0, plan.err
    (user.folder / "job.sh").write_text(plan.out)
    (user.folder / "state" / "dtrain" / "slurm").mkdir(parents=True)
    slurm.run("sbatch", "--array=0-19", str(user.folder / "job.sh"))
    wait_until(lambda: not slurm.run("squeue", "-h").stdout, "the jobs to end", within_s=300)
    records = [json.loads(path.read_text()) for path in user.runs()]
    assert [record["state"] for record in records] == ["succeeded"] * 20
    nothing_is_left(slurm)


@thorough
def test_a_job_that_fails_gives_its_exit_code_and_its_box(user):
    (user.folder / "bad.py").write_text("import dtrain as dt\ndt.get_strategy()\nraise SystemExit(7)\n")
    command = user.start("launch", "--on", "slurm", "--set", "slurm.nodes=2", *CLUSTER, "bad.py")
    assert command.end() == 7, command.err
    assert "exit code 7" in command.err


def test_what_slurm_refuses_is_one_sentence(user):
    command = user.start(
        "launch", "--on", "slurm", "--set", "slurm.partition=nowhere", *CLUSTER, "paced.py", "9"
    )
    assert command.end() == 1
    assert "sbatch failed: " in command.err
    assert "partition" in command.err


@pytest.mark.parametrize("trial", range(TRIALS))
def test_a_requeued_job_goes_on_from_its_last_step(user, slurm, trial):
    command = user.launch("100000")
    job = job_of(command, user)
    wait_until(lambda: user.step() > 20 + 7 * trial, "some steps")
    slurm.run("scontrol", "requeue", job)
    slurm.await_state(job, "PENDING")
    last = max(map(int, re.findall(r"stopped after .* at step (\d+)", user.output("err"))), default=-1)
    nothing_is_left(slurm)
    slurm.start_now(job)
    resumed = wait_until(
        lambda: re.search(r"goes on from step (\d+) of", user.output("out") + user.output("err")),
        "the resume",
    )
    assert last - LATE_STEPS <= int(resumed[1]) <= last
    assert len(user.runs()) == 1
    slurm.run("scancel", job)
    assert command.end() == 143, command.err
    assert "requeued once" in command.err
    nothing_is_left(slurm)


def test_a_job_that_is_preempted_with_a_grace_is_requeued_and_loses_no_step(user, slurm):
    command = user.launch("--set", "slurm.options=[--exclusive]", "100000")
    job = job_of(command, user)
    wait_until(lambda: user.step() > 20, "some steps")
    urgent = ("sbatch", "--parsable", "-p", "urgent", "-N3", "--exclusive", "-o/dev/null", "--wrap=sleep 1")
    other = slurm.run(*urgent).stdout.strip()
    slurm.await_state(other, "RUNNING", "COMPLETED")
    last = max(map(int, re.findall(r"stopped after .* at step (\d+)", user.output("err"))))
    slurm.await_state(other, "COMPLETED")
    slurm.start_now(job)
    resumed = wait_until(
        lambda: re.search(r"goes on from step (\d+) of", user.output("out") + user.output("err")),
        "the resume",
    )
    assert last - LATE_STEPS <= int(resumed[1]) <= last
    assert slurm.job(job)["Restarts"] == "1"
    slurm.run("scancel", job)
    assert command.end() == 143, command.err
    nothing_is_left(slurm)


def test_elements_of_an_array_are_runs_of_their_own(user, slurm):
    """The script that plan prints is submitted twice, too: another job is another run."""
    (user.folder / "own.py").write_text(PACED.replace("8, 1", "int(sys.argv[2]) + 1, 1"))
    seed = "$SLURM_ARRAY_TASK_ID"
    plan = user.start("plan", "--on", "slurm", *CLUSTER, "own.py", "3", seed)
    assert plan.end() == 0, plan.err
    (user.folder / "job.sh").write_text(plan.out)
    (user.folder / "state" / "dtrain" / "slurm").mkdir(parents=True)
    for elements in ("0-2", "7"):
        slurm.run("sbatch", f"--array={elements}", str(user.folder / "job.sh"))
    wait_until(lambda: not slurm.run("squeue", "-h").stdout, "the jobs to end")
    records = [json.loads(path.read_text()) for path in user.runs()]
    assert [record["state"] for record in records] == ["succeeded"] * 4, user.output("err")
    commands = [json.loads((path.parent / "plan.json").read_text()) for path in user.runs()]
    assert {plan["tasks"][0]["command"][-1] for plan in commands} == {"0", "1", "2", "7"}
    nothing_is_left(slurm)


def test_lines_of_the_site_come_before_the_launch_and_its_tasks_have_what_they_set(user, slurm):
    (user.folder / "site.sh").write_text("export OF_THE_SITE=yes\n")
    (user.folder / "says.py").write_text(
        "import os\nimport dtrain as dt\ndt.get_strategy()\nprint(dict(os.environ))\n"
    )
    wishes = ("--set", "slurm.setup=[source ./site.sh]", "--set", "slurm.options=[--export=NONE]")
    command = user.start("launch", "--on", "slurm", *wishes, *CLUSTER, "says.py")
    assert command.end() == 0, command.err
    said = [line for line in command.out.splitlines() if "OF_THE_SITE" in line]
    assert len(said) == 3
    nothing_is_left(slurm)


def test_a_cancelled_job_saves_its_last_step_and_leaves_nothing(user, slurm):
    command = user.launch("100000")
    job = job_of(command, user)
    wait_until(lambda: user.step() > 20, "some steps")
    slurm.run("scancel", job)
    assert command.end() == 143, command.err
    assert json.loads(user.runs()[-1].read_text())["state"] == "stopped"
    step = int(re.search(r"stopped after .* at step (\d+)", command.err)[1])
    saved = [int(path.name.removeprefix("ckpt-")) for path in user.folder.rglob("checkpoints/ckpt-*")]
    assert step - LATE_STEPS <= max(saved) <= step
    assert slurm.job(job)["JobState"] == "CANCELLED"
    nothing_is_left(slurm)


@thorough
def test_a_job_at_its_time_limit_is_requeued_by_its_launcher(user, slurm):
    command = user.launch("--set", "slurm.time=2", "--set", "slurm.grace_s=30", "100000")
    job = job_of(command, user)
    words = "it is requeued, and goes on from its last step"
    wait_until(lambda: words in user.output("err"), "the requeue", within_s=150)
    slurm.await_state(job, "PENDING")
    assert slurm.job(job)["Restarts"] == "1"
    slurm.start_now(job)
    wait_until(lambda: "goes on from step" in user.output("out") + user.output("err"), "the resume")
    slurm.run("scancel", job)
    assert command.end() == 143, command.err


@thorough
@pytest.mark.parametrize(("answer", "state"), [("leave", "RUNNING"), ("cancel", "CANCELLED")])
def test_ctrl_c_asks_whether_the_job_is_left_or_cancelled(user, slurm, answer, state):
    ours, theirs = pty.openpty()
    command = user.launch("100000", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    job = job_of(command, user)
    slurm.await_state(job, "RUNNING")
    seen = b""
    wait_until(lambda: user.step() > 5, "some steps")
    command.send(signal.SIGINT)
    while b"[leave/cancel]" not in seen:
        seen += os.read(ours, 65536)
    os.write(ours, f"{answer}\n".encode())

    def drained() -> bool:
        try:
            os.read(ours, 65536)
        except OSError:  # the other end is closed
            return True
        return command.process.poll() is not None

    wait_until(drained, "the command to end")
    assert command.process.wait() == 130
    slurm.await_state(job, state)
    os.close(ours)


@thorough
def test_a_heterogeneous_allocation_is_one_cluster(user, slurm):
    parts = ("salloc", "--quiet", "-N1", "-c2", ":", "-N2", "-c4")
    command = user.start("launch", "--on", "slurm", *CLUSTER, "paced.py", "30", before=parts)
    assert command.end() == 0, command.err
    hosts = {task["host"] for task in json.loads(user.runs()[-1].read_text())["tasks"]}
    assert len(hosts) == 3
    nothing_is_left(slurm)


@thorough
def test_servers_get_nodes_of_their_own_in_a_heterogeneous_job_that_is_requeued_as_a_whole(user, slurm):
    command = user.launch("--set", "slurm.servers.nodes=1", "100000")
    job = job_of(command, user)
    wait_until(lambda: user.step() > 5, "some steps")
    tasks = {task["task"]: task["host"] for task in json.loads(user.runs()[-1].read_text())["tasks"]}
    assert tasks["chief:0"] == tasks["ps:0"]
    assert len(set(tasks.values())) == 3
    slurm.run("scontrol", "requeue", job)
    wait_until(lambda: slurm.job(job)["JobState"] == "PENDING", "the job to be requeued")
    assert user.start("status").end() == 4
    slurm.run("scancel", job)
    assert command.end() == 143, command.err
    nothing_is_left(slurm)
