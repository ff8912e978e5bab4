"""Texts for SkyPilot, Kubeflow Trainer and Ray: each task finds its place in what it is given."""

import ast
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from dtrain.errors import SpecError
from dtrain.process.engines import find_place
from dtrain_cli.launch.engines import command_of
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.plan.standalone_start import StandaloneStart
from dtrain_cli.spec import read_spec

SPEC = (
    "name: digits\ncluster: {chief: 1, worker: 2, ps: 1}\ntraining: {updates: async, staleness_bound: 3}\n"
    "checkpoint: {every_s: 60}\nsecrets: [HF_TOKEN]\n"
)
TRAINER = "kubernetes: {image: 'x:1', code_in: /app, secret: mine, volume: {claim: runs}}\n"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def printed(tmp_path, capsys, engine, more="", program="print(1)\n", **options):
    (tmp_path / "s.yaml").write_text(SPEC + more)
    (tmp_path / "p.py").write_text(program)
    asked = LaunchOptions(
        spec=tmp_path / "s.yaml", shortcuts={"on": engine}, program=tmp_path / "p.py", arguments=("--lr", "0.1"), **options
    )  # fmt: skip
    assert command_of(engine, "plan")(asked) == 0
    return capsys.readouterr()


def settings_of(words):
    """The values of --set among the words of a command line."""
    joined = [word.partition("=")[2] for word in words if word.startswith("--set=")]
    return (*joined, *(value for option, value in pairwise(words) if option == "--set"))


def test_a_node_of_skypilot_is_one_task_and_the_text_holds_no_secret(tmp_path, capsys):
    out, err = printed(tmp_path, capsys, "skypilot")
    task = YAML(typ="safe").load(out)
    assert (task["num_nodes"], task["workdir"]) == (4, ".")
    assert task["secrets"] == {"DTRAIN_SECRET": None, "HF_TOKEN": None}
    assert "sky launch --secret DTRAIN_SECRET --secret HF_TOKEN FILE" in err
    words = shlex.split(task["run"])
    assert words[:3] == ["exec", "dtrain", "task"]
    assert words[-3:] == ["p.py", "--lr", "0.1"]
    spec = read_spec(None, settings_of(words), {})
    assert {role: spec.cluster.count(role) for role in ("chief", "worker", "ps", "evaluator")} == {
        "chief": 1, "worker": 2, "ps": 1, "evaluator": 0,
    }  # fmt: skip
    assert (spec.name, spec.training.staleness_bound, spec.checkpoint.every_s) == ("digits", 3, 60)
    nodes = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3\n10.0.0.4"}
    places = [find_place({**nodes, "SKYPILOT_NODE_RANK": str(rank)}, spec.cluster, str) for rank in range(4)]
    assert [str(place.task) for place in places] == ["chief:0", "ps:0", "worker:0", "worker:1"]


def test_each_pod_of_a_trainjob_finds_its_place_by_the_name_of_the_run(tmp_path, capsys):
    out, err = printed(tmp_path, capsys, "trainer", TRAINER)
    runtime = YAML(typ="safe").load(out)
    assert (runtime["kind"], runtime["metadata"]["name"]) == ("ClusterTrainingRuntime", "digits")
    assert runtime["spec"]["mlPolicy"]["numNodes"] == 2
    job = json.loads(err[err.index("{") :])
    assert job["spec"]["runtimeRef"]["name"] == "digits"
    places, steps = {}, {}
    for part in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        spec = part["template"]["spec"]
        container = spec["template"]["spec"]["containers"][0]
        labels = part["template"].get("metadata", {}).get("labels", {})
        steps[part["name"]] = (labels.get("trainer.kubeflow.org/trainjob-ancestor-step"), container["name"])
        assert spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["containerName"] == container["name"]
        volumes = {each["name"] for each in spec["template"]["spec"]["volumes"]}
        assert volumes == {each["name"] for each in container["volumeMounts"]}
        assert container["env"][0]["name"] == "TRAINJOB"
        environment = {
            each["name"]: each.get("value", "a-secret-of-enough-characters") for each in container["env"]
        }
        words = [word.replace("$(TRAINJOB)", "digits-k2x9p") for word in container["args"]]
        for index in range(spec["completions"]):
            found = StandaloneStart(None, sets=settings_of(words)).assignment(
                {**environment, "JOB_COMPLETION_INDEX": str(index)}
            )
            places[str(found.task)] = found.address
    assert places == {
        f"{role}:{index}": f"digits-k2x9p-{role}-0-{index}.digits-k2x9p:2222"
        for role, index in (("ps", 0), ("chief", 0), ("worker", 0), ("worker", 1))
    }
    assert steps["worker"] == ("trainer", "node")
    assert all(
        "$(TRAINJOB)" not in line
        for line in out.splitlines()
        if "--set=cluster." not in line and "/runs/" not in line
    )


@pytest.mark.parametrize("version", ["1.31", "1.34", "1.37"])
def test_the_schemas_of_kubernetes_accept_the_jobs_of_a_runtime(tmp_path, capsys, version):
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate").validate
    runtime = YAML(typ="safe").load(printed(tmp_path, capsys, "trainer", TRAINER).out)
    for part in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": part["name"]}}
        validate({**job, "spec": part["template"]["spec"]}, version, strict=True)


@pytest.mark.parametrize(
    ("engine", "more", "what"),
    [
        ("trainer", "kubernetes: {image: x}\n", "kubernetes.code_in: expected it"),
        (
            "trainer",
            TRAINER.replace(", volume: {claim: runs}", ""),
            "volume.claim: expected the name of a disk",
        ),
        ("skypilot", "checkpoint: {remote: 's3://u:p@host/x'}\n", "password"),
    ],
)
def test_what_cannot_run_there_is_refused(tmp_path, capsys, engine, more, what):
    text = SPEC.replace("checkpoint: {every_s: 60}\n", "") + more
    (tmp_path / "s.yaml").write_text(text)
    (tmp_path / "p.py").write_text("")
    with pytest.raises(SpecError, match=what):
        command_of(engine, "plan")(
            LaunchOptions(spec=tmp_path / "s.yaml", shortcuts={"on": engine}, program=tmp_path / "p.py")
        )


PROGRAM = """
import numpy as np
import dtrain as dt

x = np.arange(64, dtype="float32").reshape(64, 1) / 64
with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.SGD(0.1), loss="mse")
model.fit(x, 2 * x, batch_size=16, epochs=5, verbose=0)
print("ends", flush=True)
"""


def test_a_program_of_ray_has_a_bundle_for_each_role_and_no_secret(tmp_path, capsys):
    out, _ = printed(tmp_path, capsys, "ray")
    said = {
        each.targets[0].id: ast.literal_eval(each.value)
        for each in ast.parse(out).body
        if isinstance(each, ast.Assign)
        and getattr(each.targets[0], "id", "") in ("COUNTS", "BUNDLES", "COMMAND")
    }
    assert said["COUNTS"] == {"chief": 1, "ps": 1, "worker": 2}
    assert said["BUNDLES"].keys() == said["COUNTS"].keys()
    assert said["COMMAND"][:2] == ["dtrain", "task"]
    assert "HF_TOKEN" in out


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs dtrain[ray]")
@pytest.mark.long("a Ray of its own starts and ends")
def test_a_run_on_a_real_ray_trains_and_passes_the_exit_code_on(tmp_path, capsys):
    out, _ = printed(tmp_path, capsys, "ray", program=PROGRAM)
    (tmp_path / "ray_job.py").write_text(out.replace('"CPU": 1', '"CPU": 0.1'))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "HF_TOKEN": "x", "RAY_USAGE_STATS_ENABLED": "0"}
    job = [sys.executable, "ray_job.py"]
    done = subprocess.run(job, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "has succeeded" in done.stdout + done.stderr
    (tmp_path / "p.py").write_text("raise SystemExit(7)\n")
    done = subprocess.run(job, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 7, done.stderr
