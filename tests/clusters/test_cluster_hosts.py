"""Replicas without servers over several hosts, which are network namespaces: tasks started by hand, as on real
machines. Numbers, callbacks, files and weights are those of one host, to the last bit.
"""

import json
import os
import shutil
import signal

import pytest
from clusters.test_cluster_leaders import PROGRAM, WORDS, outcome
from launching import Launcher, wait_until
from security.three_hosts import SwitchedHosts

from dtrain.process.secret import new_secret

SECRET = new_secret()
MORE = pytest.mark.skipif(
    "DTRAIN_KILLS" not in os.environ, reason="one of them each time; DTRAIN_KILLS has all"
)


class OverHosts:
    """Tasks on some hosts, each in a folder of its own: the replicas by `layout`, servers by `servers`."""

    def __init__(self, folder, layout, servers=(), **more):
        self.layout = layout
        self.hosts = SwitchedHosts(max((*layout, *servers)) + 1)
        self.launchers = []
        self.commands = {}
        names = ["chief:0", *(f"worker:{index}" for index in range(len(layout) - 1))]
        names += [f"ps:{index}" for index in range(len(servers))]
        self.tasks = dict(zip(names, (*layout, *servers), strict=True))
        self.folders = {task: folder / task.replace(":", "-") for task in self.tasks}
        self.cluster = {}
        for number, (task, host) in enumerate(self.tasks.items()):
            address = f"{self.hosts.ip(host)}:{4100 + number}"
            self.cluster.setdefault(task.partition(":")[0], []).append(address)
        self.spec = folder / "spec.json"
        training = {"strategy": "multi_worker_mirrored", "deterministic": True, **more}
        said = {"cluster": self.cluster, "training": training, "checkpoint": {"every_steps": 5}}
        self.spec.write_text(json.dumps(said))

    def start(self, task, *words, secret=SECRET, program=PROGRAM, run_dir=None, **options):
        self.folders[task].mkdir(exist_ok=True)
        launcher = Launcher(self.folders[task])
        self.launchers.append(launcher)
        role, _, index = task.partition(":")
        # The program looks for its task there, to die once.
        environment = {"DTRAIN_SECRET": secret, "DTRAIN_TASK": task, "DTRAIN_ATTEMPT": "0"}
        command = [role, "--spec", str(self.spec), "--index", index]
        command += [] if run_dir is None else ["--run-dir", str(run_dir)]
        command += [] if role == "ps" else [program, *words]
        network = self.hosts.network(self.tasks[task])
        self.commands[task] = launcher.dtrain(*command, environment=environment, network=network, **options)
        return self.commands[task]

    def start_all(self, *words, **options):
        for task in self.tasks:
            self.start(task, *words, **options)

    def told(self, *tasks):
        """What tasks told at their end, which was a good one."""
        found = {}
        for task in tasks:
            command = self.commands[task]
            assert command.end() == 0, f"{task}: {command.err}"
            (line,) = [line for line in command.out.splitlines() if line.startswith("TOLD ")]
            found[task] = json.loads(line[5:])
        return found

    def close(self):
        for launcher in self.launchers:
            launcher.close()
        self.hosts.close()


@pytest.fixture
def over_hosts(tmp_path):
    if os.getuid() or not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        pytest.skip("network namespaces need root, and the commands ip, nsenter and unshare")
    made = []

    def make(*layout, **training):
        made.append(OverHosts(tmp_path, layout, **training))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    launcher = Launcher(tmp_path_factory.mktemp("calm"))
    yield outcome(launcher, launcher.start(*WORDS, PROGRAM), {})
    launcher.close()


def as_calm(told, folder):
    """The same of a run over hosts, whose leader worked in a folder."""
    assert len({each["weights"] for each in told.values()}) == 1
    assert len({json.dumps(each["history"]) for each in told.values()}) == 1
    noted = [each["noted"] for each in told.values() if each["noted"]]
    one = next(iter(told.values()))
    files = {name: (folder / name).read_bytes() for name in ("table.csv", "best.safetensors")}
    return one["weights"], one["history"], noted, files


OTHERS = {
    "parameter servers": ("parameter_server", "--updates", "sync", "--workers", "2", "--ps", "2"),
    "threads": ("mirrored", "--set", "training.replicas=3"),
    "one updating thread": ("central_storage", "--set", "training.replicas=3"),
    "one replica": ("mirrored", "--set", "training.replicas=1", "--set", "training.replicas_to_aggregate=3"),
}


def test_every_other_synchronous_strategy_has_the_bits_of_one_host_too(tmp_path, calm):
    """So they have those of two and three hosts, with which the next test compares the same run."""
    launchers = {name: Launcher(tmp_path / name) for name in OTHERS}
    try:
        for name, words in OTHERS.items():
            launchers[name].folder.mkdir()
            exact = ("--set", "training.deterministic=true", "--no-evaluator")
            launchers[name].start("--strategy", *words, *exact, PROGRAM)
        found = {name: outcome(each, each.launches[0], {}) for name, each in launchers.items()}
    finally:
        for each in launchers.values():
            each.close()
    assert found == dict.fromkeys(OTHERS, calm)


@pytest.mark.parametrize(
    ("layout", "settings"),
    [((0, 0, 1), {}), ((0, 1, 2), {}), ((0, 0, 1, 1), {"chief_trains": False})],
    ids=["two hosts", "three hosts", "a chief that only leads"],
)
def test_bits_are_those_of_one_host(over_hosts, calm, layout, settings):
    run = over_hosts(*layout, **settings)
    run.start_all()
    assert as_calm(run.told(*run.tasks), run.folders["chief:0"]) == calm


def numbers(told):
    """What a run must not lose, whoever leads at its end."""
    assert len({each["weights"] for each in told.values()}) == 1
    assert len({json.dumps(each["history"]) for each in told.values()}) == 1
    noted = [each["noted"] for each in told.values() if each["noted"]]
    one = next(iter(told.values()))
    return one["weights"], one["history"], noted


@pytest.mark.parametrize(
    ("layout", "dead", "moment"),
    [
        pytest.param((0, 1, 1), "chief:0", ("step", "20"), marks=MORE),
        pytest.param((0, 1, 2), "chief:0", ("end", "2"), marks=MORE),
        pytest.param((0, 1, 2), "chief:0", ("validation", "5"), marks=MORE),
        pytest.param((0, 0, 1), "worker:0", ("step", "20"), marks=MORE),
        pytest.param((0, 0, 1), "worker:1", ("step", "20"), marks=MORE),
        ((0, 0, 1), "chief:0", ("step", "20")),
        ((0, 1, 1), "worker:0", ("step", "20")),
        pytest.param((0, 0, 1), "chief:0", ("end", "2"), marks=MORE),
        pytest.param((0, 0, 1), "chief:0", ("validation", "5"), marks=MORE),
        pytest.param((0, 0, 1), "chief:0", ("saving", "3"), marks=MORE),
    ],
    ids=[
        "leader's host in a step",
        "leader's host between epochs",
        "as it validates",
        "replica",
        "host",
        "leader who speaks, in a step",
        "who speaks",
        "leader who speaks, between epochs",
        "leader who speaks, as it validates",
        "leader who speaks, as it saves",
    ],
)
def test_a_step_is_finished_without_a_host_or_replica_that_is_killed(over_hosts, calm, layout, dead, moment):
    run = over_hosts(*layout)
    run.start_all("--die", dead, *moment)
    assert numbers(run.told(*(task for task in run.tasks if task != dead))) == calm[:3]
    assert run.commands[dead].process.wait(60) == -signal.SIGKILL


def test_a_host_that_was_lost_comes_back_and_ends_the_run_alone(over_hosts, calm):
    """The others die in the epoch in which it comes back: it has the sums of the steps that it has missed."""
    run = over_hosts(0, 1, 2)
    deaths = [("worker:1", "step", 5), ("worker:0", "step", 21), ("chief:0", "step", 33)]
    words = [word for death in deaths for word in ("--die", *map(str, death))]
    run.start_all(*words, "--wait_for", "go")
    assert run.commands["worker:1"].process.wait(60) == -signal.SIGKILL
    wait_until((run.folders["chief:0"] / "held").exists, "the others stand in a step")
    again = run.start("worker:1", *words[4:], stderr=(run.folders["worker:1"] / "said").open("w"))
    said = run.folders["worker:1"] / "said"
    wait_until(lambda: "waits for the other hosts, the end of their step" in said.read_text(), "it asks")
    for folder in run.folders.values():
        (folder / "go").touch()
    assert again.end() == 0, said.read_text()
    assert numbers(run.told("worker:1")) == calm[:3]


@pytest.mark.parametrize(
    "layout", [(0, 1, 1), pytest.param((0, 1, 2), marks=MORE)], ids=["at a host that lives", "as a host"]
)
def test_steps_are_held_until_a_replica_is_back(over_hosts, calm, layout):
    run = over_hosts(*layout, too_few="wait")
    heard = run.folders["chief:0"].parent / "heard"
    run.start("chief:0", stderr=heard.open("w"))
    for task in ("worker:0", "worker:1"):
        run.start(task, "--die", "worker:1", "step", "5")
    assert run.commands["worker:1"].process.wait(60) == -signal.SIGKILL
    wait_until(lambda: "waits for 1 more replicas" in heard.read_text(), "the step is held")
    run.start("worker:1")
    assert numbers(run.told(*run.tasks)) == calm[:3]


@pytest.fixture(scope="module")
def calm_table(tmp_path_factory):
    launcher = Launcher(tmp_path_factory.mktemp("table"))
    yield outcome(launcher, launcher.start(*WORDS, PROGRAM, "--table"), {})
    launcher.close()


def test_a_table_has_the_bits_of_one_host_although_a_host_is_lost_and_comes_back(over_hosts, calm_table):
    """The new host is sent the table and its slots, and the lists of the steps from then on."""
    run = over_hosts(0, 0, 1)
    run.start_all("--table", "--die", "worker:1", "step", "5", "--wait_for", "go")
    assert run.commands["worker:1"].process.wait(60) == -signal.SIGKILL
    wait_until((run.folders["chief:0"] / "held").exists, "the others stand in a step")
    said = run.folders["worker:1"] / "said"
    again = run.start("worker:1", "--table", stderr=said.open("w"))
    wait_until(lambda: "waits for the other hosts, the end of their step" in said.read_text(), "it asks")
    for folder in run.folders.values():
        (folder / "go").touch()
    assert again.end() == 0, said.read_text()
    assert numbers(run.told(*run.tasks)) == calm_table[:3]


def test_a_step_is_finished_without_the_host_of_the_leader_that_is_killed_and_a_table_keeps_its_bits(
    over_hosts, calm_table
):
    run = over_hosts(0, 1, 2)
    run.start_all("--table", "--die", "chief:0", "step", "20")
    assert numbers(run.told("worker:0", "worker:1")) == calm_table[:3]
