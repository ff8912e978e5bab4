"""The pools of a custom job of Vertex AI: as reviewed, and each replica finds its place in what it is given."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

from dtrain.errors import SpecError
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.vertex import plan
from dtrain_cli.plan.standalone_start import StandaloneStart
from dtrain_cli.spec import read_spec
from dtrain_cli.targets.kubernetes.manifests import yaml_text
from dtrain_cli.targets.vertex import worker_pool_specs

GOLDEN = Path(__file__).parent / "golden" / "vertex.yaml"
SPEC = (
    "name: digits\ncluster: {chief: 1, ps: 2, evaluator: 1}\ntraining: {updates: async, staleness_bound: 3}\n"
    "checkpoint: {every_s: 60}\nenvironment: {MODE: 'yes'}\n"
    "vertex: {image: 'europe-docker.pkg.dev/p/r/i:1', machines: {ps: n1-highmem-2}}\n"
)


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "s.yaml").write_text(SPEC)
    return read_spec(tmp_path / "s.yaml", trains=True)


def test_the_pools_are_as_reviewed(spec):
    pools = worker_pool_specs(spec, ("/app/p.py", "--path", "$HOME"), "a-secret-of-enough-characters")
    text = yaml_text([{"workerPoolSpecs": pools}])
    if os.environ.get("DTRAIN_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert pools[1] == {}, "a pool without tasks before another one"


def test_each_replica_reads_the_spec_from_its_command_line(spec):
    pools = worker_pool_specs(spec, ("/app/p.py",), "a-secret-of-enough-characters")
    addresses = {
        f"workerpool{i}": [f"p{i}-{j}:2222" for j in range(pool.get("replicaCount", 0))]
        for i, pool in enumerate(pools)
    }
    for number in (0, 2, 3):
        words = pools[number]["containerSpec"]["args"]
        sets = tuple(value for option, value in pairwise(words) if option == "--set")
        task = {"type": f"workerpool{number}", "index": 0}
        environment = {each["name"]: each["value"] for each in pools[number]["containerSpec"]["env"]}
        environment |= {"CLUSTER_SPEC": json.dumps({"cluster": addresses, "task": task})}
        found = StandaloneStart(None, sets=sets).assignment(environment)
        assert str(found.task) == {0: "chief:0", 2: "ps:0", 3: "evaluator:0"}[number]
        assert (found.spec.training, found.spec.checkpoint) == (spec.training, spec.checkpoint)
        assert found.spec.wait.start_s == 600


def test_the_plan_prints_the_job_and_says_how_to_start_it(tmp_path, capsys):
    (tmp_path / "s.yaml").write_text(SPEC)
    plan(LaunchOptions(spec=tmp_path / "s.yaml", program=tmp_path / "p.py", json=True))
    out, err = capsys.readouterr()
    assert len(json.loads(out)["workerPoolSpecs"]) == 4
    assert "gcloud ai custom-jobs create" in err


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("cluster: {chief: 1, worker: 1, ps: 1}\n", "vertex.image: expected"),
        ("cluster: {worker: 1, ps: 1}\nvertex: {image: x}\n", "cluster.chief: expected 1"),
        ("cluster: {chief: [a:1], ps: [b:1]}\nvertex: {image: x}\n", "cluster.chief: expected a count"),
    ],
)
def test_what_cannot_run_there_is_refused(tmp_path, text, what):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(SpecError, match=what):
        plan(LaunchOptions(spec=tmp_path / "s.yaml", shortcuts={"on": "vertex"}, program=tmp_path / "p.py"))
