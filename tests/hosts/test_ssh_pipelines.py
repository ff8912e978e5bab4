"""A pipeline over hosts, a stage on each: by ssh and gRPC, with and without TLS, and a host that is cut off or ends."""

import ast
import contextlib
import re
import time
from pathlib import Path

import pytest
from clusters.watching import report_of, step_of
from hosts.rig import Rig, needs_hosts
from launching import Launch

pytestmark = needs_hosts

COUNTED = str(Path(__file__).parents[1] / "clusters" / "counted_stages.py")
TASKS = ("chief:0", "worker:0", "worker:1")
STEPS, EPOCHS = 36, 6
ON = ("--on", "ssh", "--strategy", "pipeline", "--stages", "3", "--no-evaluator")
OFTEN = ("--set", "checkpoint.every_steps=4")
PACED = (COUNTED, "--wait_for", "/run/go", "--after", "13")


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with Rig(tmp_path_factory.mktemp("rig"), 4) as rig:
        yield rig


@pytest.fixture
def start(rig, launcher, tmp_path):
    def start(*words, hosts="h1,h2,h3"):
        options = [*ON, "--hosts", hosts, *OFTEN, *words]
        launch = Launch(tmp_path, options, wrapper=rig.wrapper("h0"))
        launcher.launches.append(launch)
        return launch

    yield start
    for name in rig.names:
        rig.run(name, "rm", "-f", "/run/go")


def let_go(rig):
    """Have every host that lives compute on."""
    for name in rig.names:
        with contextlib.suppress(KeyError):
            rig.run(name, "touch", "/run/go")


def counted_once(launch):
    """Every stage has each example's gradient once an epoch in its weights, as each task tells at its end."""
    assert launch.end() == 0, launch.err
    told = re.findall(r"^(\S+:\d) +\| counts \S+ (.*)$", launch.out, re.MULTILINE)
    assert {task for task, _ in told} == set(TASKS), launch.out
    assert all(ast.literal_eval(line) == [[float(EPOCHS)]] * 3 for _, line in told), told
    assert report_of(launch.run_dir)["global_step"] == STEPS


@pytest.mark.parametrize("tls", ["off", "required"])
def test_stages_on_three_hosts_count_every_example_once(rig, start, tls):
    words = ("--set", "security.tls=required") if tls == "required" else ()
    launch = start(*words, COUNTED)
    counted_once(launch)
    tasks = report_of(launch.run_dir)["tasks"]
    assert {task["host"] for task in tasks} == {"h1", "h2", "h3"}
    assert all(task["bytes_sent"] > 0 for task in tasks)


def halfway(launch):
    launch.wait_for(lambda: step_of(launch, "chief:0") >= 12, "12 steps")


@pytest.mark.parametrize(
    "host", ["h2", pytest.param("h1", marks=pytest.mark.night("another host, by day that of one stage"))]
)
def test_a_stage_that_is_cut_off_for_ten_seconds_loses_nothing(rig, start, host):
    """The cable of a stage in the middle, or of the one that leads."""
    launch = start(*PACED)
    halfway(launch)
    rig.cut(host)
    let_go(rig)
    time.sleep(10)  # how long is what this is about
    rig.restore(host)
    counted_once(launch)
    assert {task["attempt"] for task in launch.record()["tasks"]} == {0}


@pytest.mark.night("takes half a minute: a host is waited for")
def test_a_spare_host_takes_the_stage_of_a_killed_one(rig, start):
    spare = "hosts=[h1, h2, h3, {host: h4, spare: true}]"
    launch = start("--set", "wait.server_s=8", "--set", spare, *PACED)
    halfway(launch)
    rig.kill("h2")
    try:
        launch.wait_for(lambda: launch.task("worker:0").get("host") == "h4", "the spare host")
        let_go(rig)
        counted_once(launch)
    finally:
        rig.revive("h2")


@pytest.mark.night("takes half a minute: a host is waited for")
def test_a_killed_host_without_a_spare_one_ends_the_run_with_a_checkpoint_from_which_it_goes_on(rig, start):
    launch = start("--set", "wait.server_s=8", *PACED)
    halfway(launch)
    rig.kill("h2")
    try:
        assert launch.end() == 1
        assert "h2 is lost: training cannot go on without worker:0, and no spare host takes its" in launch.err
    finally:
        rig.revive("h2")
    let_go(rig)
    again = start("--run-dir", str(launch.run_dir), "--resume", *PACED)
    again.run_dir = launch.run_dir
    counted_once(again)
