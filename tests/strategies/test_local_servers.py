"""`dt.distribute.Server`: this process's own task, those of a chief's process, and what makes no sense."""

import json
import sys

import pytest

import dtrain as dt
from dtrain.errors import ProgramError, SpecError
from dtrain.strategies import interface as process
from dtrain.strategies import local_servers

CLUSTER = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3", "127.0.0.1:4"]}
SPEC = dt.train.ClusterSpec(CLUSTER)


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    monkeypatch.setattr(process, "_process", process._Process())
    monkeypatch.setattr(local_servers, "_here", {})
    monkeypatch.setattr(local_servers, "THREADS_S", 0.0)
    monkeypatch.setattr(sys, "argv", ["p.py"])
    monkeypatch.delenv("TF_CONFIG", raising=False)


def be(monkeypatch, job, index=0):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": {"type": job, "index": index}}))


def test_a_server_knows_its_address_and_starts_nothing_yet():
    server = dt.distribute.Server(SPEC, "ps", 1, protocol="grpc", config=None, start=True)
    assert server.target == "grpc://127.0.0.1:4"
    server.start()
    assert dt.distribute.Server(CLUSTER, "worker").target == "grpc://127.0.0.1:2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SPEC, "ps", 2), "Server: No task with index 2 in job 'ps'; the cluster is {'chief'"),
        ((SPEC, "pss", 0), "one of its jobs chief, worker, ps, evaluator, found TFClusterSpec and 'pss'"),
        ((3, "ps", 0), "expected a cluster and one of its jobs .*, found int and 'ps'"),
        ((SPEC, "evaluator", 0), "Server: No such job in cluster: 'evaluator'"),
    ],
)
def test_a_task_that_the_cluster_does_not_have_is_refused(arguments, message):
    with pytest.raises(SpecError, match=message):
        dt.distribute.Server(*arguments)


def test_a_strategy_wants_servers_of_all_other_tasks(monkeypatch):
    be(monkeypatch, "chief")
    dt.distribute.Server(SPEC, "ps", 0)
    resolver = dt.distribute.cluster_resolver.TFConfigClusterResolver()
    with pytest.raises(SpecError, match=r"has those of ps:0; .* found none for worker:0, ps:1"):
        dt.distribute.ParameterServerStrategy(resolver)


@pytest.mark.parametrize("own", ["worker", "chief"])
def test_a_task_that_computes_cannot_only_join(own, monkeypatch):
    be(monkeypatch, own)
    with pytest.raises(ProgramError, match="runs the whole program, as the chief does"):
        dt.distribute.Server(SPEC, own, 0).join()
    assert not local_servers._here


def test_own_server_by_the_classic_flags(monkeypatch):
    flags = ["--ps_hosts=127.0.0.1:3", "--worker_hosts=127.0.0.1:2", "--job_name=worker", "--task_index=0"]
    monkeypatch.setattr(sys, "argv", ["p.py", *flags])
    spec = dt.train.ClusterSpec({"ps": ["127.0.0.1:3"], "worker": ["127.0.0.1:2"]})
    with pytest.raises(ProgramError, match="call join in tasks of the job ps alone"):
        dt.distribute.Server(spec, job_name="worker", task_index=0).join()


def test_a_simple_resolver_says_what_it_was_given():
    """The answers are those of TensorFlow 2.15.1 for the same calls."""
    resolver = dt.distribute.cluster_resolver.SimpleClusterResolver
    plain = resolver(SPEC)
    assert (plain.task_type, plain.task_id, plain.environment, plain.rpc_layer) == (None, None, "", None)
    assert (plain.master(), plain.master("ps", 1), plain.num_accelerators()) == ("", "127.0.0.1:4", {})
    assert plain.cluster_spec().as_dict() == CLUSTER
    full = resolver(SPEC, "m:1", "worker", 0, "test", {"GPU": 2}, "grpc")
    assert (full.task_type, full.task_id, full.environment, full.rpc_layer) == ("worker", 0, "test", "grpc")
    assert (full.master(), full.master("chief", 0)) == ("grpc://m:1", "grpc://127.0.0.1:1")
    assert full.num_accelerators() == {"GPU": 2}
    with pytest.raises(TypeError, match=r"must be a `tf\.train\.ClusterSpec`"):
        resolver(CLUSTER)
    assert dt.distribute.cluster_resolver.TFConfigClusterResolver().num_accelerators() == {}


def test_names_of_experimental():
    experimental = dt.distribute.experimental
    assert experimental.partitioners is dt.distribute.partitioners
    assert experimental.CollectiveCommunication.RING is dt.distribute.CommunicationImplementation.RING
