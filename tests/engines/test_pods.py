"""Manifests that are run: pods with new addresses, late names, and SIGTERM to all at once."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from engines.mini_kubelet import Kubelet, reason_against, sweep

from dtrain_cli.launch.kubernetes import gather
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.targets.kubernetes.manifests import manifests

TRIALS = int(os.environ.get("DTRAIN_TRIALS", "1"))
pytestmark = pytest.mark.skipif(reason_against() is not None, reason=str(reason_against()))

PROGRAM = """
import sys, time
from pathlib import Path
import numpy as np
import dtrain as dt

steps = int(sys.argv[1])
x = np.arange(64, dtype="float32").reshape(64, 1) / 64

class Pace(dt.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        print("step", self.epoch * 4 + batch + 1, flush=True)
        time.sleep(0.02)

strategy = dt.get_strategy()
with strategy.scope():
    model = dt.Sequential([dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.SGD(0.1), loss="mse")
model.fit(x, 2 * x, batch_size=16, epochs=steps // 4, callbacks=[Pace()], verbose=0)
Path("model.txt").write_text("there")
print("ends", flush=True)
"""


def run_of(tmp_path: Path, cluster: str, *arguments: str, more: str = ""):
    program, spec = tmp_path / "p.py", tmp_path / "spec.yaml"
    program.write_text(PROGRAM)
    spec.write_text(
        f"name: tiny\ncluster: {cluster}\ntraining: {{updates: sync}}\ncheckpoint: {{every_s: 1000}}\n"
        f"kubernetes: {{image: 'x:1'}}\n{more}"
    )
    return gather(LaunchOptions(spec=spec, program=program, arguments=arguments), {})


def test_pods_with_late_names_train_to_the_end_and_all_end_with_0(tmp_path):
    run = run_of(tmp_path, "{chief: 1, worker: 1, ps: 2}", "30")
    with Kubelet(tmp_path / "pods", names_late_s=1.0) as kubelet:
        kubelet.apply(manifests(run))
        kubelet.run_until(lambda: not kubelet.pods, "the end of all pods")
        assert sorted(code for _, code in kubelet.ends) == [0, 0, 0, 0], kubelet.story()
        assert kubelet.names.refused
        assert (kubelet.claim(run.name) / run.name / "work" / "model.txt").read_text() == "there"


def step_of(kubelet: Kubelet, chief: str) -> int:
    return int((re.findall(r"^step (\d+)", kubelet.log(chief), re.MULTILINE) or ["0"])[-1])


@pytest.mark.parametrize("trial", range(TRIALS))
def test_all_pods_deleted_and_made_again_resume_at_that_step(tmp_path, trial):
    run = run_of(tmp_path, "{chief: 1, worker: 1, ps: 1}", "100000")
    chief = f"{run.name}-chief-0"
    with Kubelet(tmp_path / "pods") as kubelet:
        kubelet.apply(manifests(run))
        kubelet.run_until(lambda: step_of(kubelet, chief) > 5, "some steps")
        kubelet.delete_pods()
        kubelet.run_until(lambda: not kubelet.pods, "the end of all pods")
        assert {code for _, code in kubelet.ends} == {143}, kubelet.story()
        before = step_of(kubelet, chief)
        kubelet.apply(manifests(run))
        server = f"{run.name}-ps-0"
        begins = lambda: re.findall(r"training begins at step (\d+)", kubelet.log(server))  # noqa: E731
        kubelet.run_until(lambda: len(begins()) > 1, "a second start")
        assert before <= int(begins()[-1]) <= before + 2, kubelet.story()


def test_a_run_outlives_the_node_of_its_server(tmp_path):
    """The cluster makes the pod again only when somebody has said that the node is off; the others wait for it."""
    run = run_of(tmp_path, "{chief: 1, worker: 1, ps: 1}", "40")
    chief, server = f"{run.name}-chief-0", f"{run.name}-ps-0"
    with Kubelet(tmp_path / "pods") as kubelet:
        kubelet.apply(manifests(run))
        kubelet.run_until(lambda: step_of(kubelet, chief) > 5, "some steps")
        kubelet.lose(server)
        kubelet.run_until(lambda: kubelet.pods[server].terminating, "the eviction")
        assert kubelet.pods.keys() == {chief, server, f"{run.name}-worker-0"}, "none has given up"
        kubelet.remove_node(server)
        kubelet.run_until(lambda: not kubelet.pods, "the end of all pods")
        assert sorted(code for _, code in kubelet.ends) == [0, 0, 0], kubelet.story()


@pytest.mark.skipif("DTRAIN_TRIALS" not in os.environ, reason="DTRAIN_TRIALS is not set")
def test_nodes_of_aws_batch_find_each_other_by_the_main_one(tmp_path):
    """The same program as one Job whose pods have Batch's variables: no node knows the others' addresses."""
    run = run_of(tmp_path, "{chief: 1, worker: 1, ps: 2}", "30")
    jobs = [each for each in manifests(run) if each["kind"] == "Job"]
    job, rest = jobs[0], [each for each in manifests(run) if each["kind"] != "Job"]
    job["spec"] |= {"completions": 4, "parallelism": 4}
    container = job["spec"]["template"]["spec"]["containers"][0]
    container["args"] = [
        "task",
        "--set",
        "cluster.chief=1",
        "--set",
        "cluster.ps=2",
        "--set",
        "cluster.worker=1",
    ]
    container["args"] += ["--set", "cluster.evaluator=0", "--work", "/dtrain/work", *run.command]
    variables = {
        "AWS_BATCH_JOB_NODE_INDEX": "$(JOB_COMPLETION_INDEX)",
        "AWS_BATCH_JOB_NUM_NODES": "4",
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
        "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.79.0.10",
    }
    kept = [each for each in container["env"] if each["name"] != "DTRAIN_ROLE"]
    container["env"] = [*({"name": name, "value": value} for name, value in variables.items()), *kept]
    container["env"].append({"name": "JOB_COMPLETION_INDEX", "value": ""})
    with Kubelet(tmp_path / "pods") as kubelet:
        kubelet.apply([*rest, job])
        kubelet.run_until(lambda: not kubelet.pods, "the end of all nodes")
        assert sorted(code for _, code in kubelet.ends) == [0, 0, 0, 0], kubelet.story()
        said = kubelet.log(f"{run.name}-ps-0")
        assert "training begins at step 0" in said, kubelet.story()


def test_namespaces_of_killed_tests_go_and_those_of_living_ones_stay():
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = [f"dtk{ended.pid}", f"dtk{ended.pid}p10", f"dtk{os.getpid()}p9", f"dtkeep{os.getpid()}"]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        sweep()
        there = {
            line.split()[0]
            for line in subprocess.check_output(["ip", "netns", "list"], text=True).splitlines()
        }
        assert [name in there for name in names] == [False, False, True, True]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
