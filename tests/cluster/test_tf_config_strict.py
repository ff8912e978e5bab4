"""The strict door of TF_CONFIG: what passes, what comes back, and the message for every mistake."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.errors import SpecError
from dtrain.process.tensorflow import read_tf_config, write_tf_config

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def config(cluster=CLUSTER, **task):
    return json.dumps({"cluster": cluster, "task": task} if task else {"cluster": cluster})


def test_a_plain_config_is_read():
    cluster, task = read_tf_config(config(type="worker", index=1))
    assert cluster == ClusterSpec.from_lists(chief=["a:1"], worker=["b:1", "c:1"], ps=["d:1"])
    assert task == TaskId(Role.WORKER, 1)


def test_no_task_and_no_cluster_are_nobody_in_particular():
    assert read_tf_config("{}") == (ClusterSpec({}), None)
    assert read_tf_config(config())[1] is None
    assert read_tf_config('{"task": {}}')[1] is None


def test_without_a_cluster_a_task_trains_alone():
    assert read_tf_config('{"task": {"type": "worker", "index": 0}}') == (
        ClusterSpec({}),
        TaskId(Role.WORKER, 0),
    )


@pytest.mark.parametrize("index", ["1", 1.0, " 1 "])
def test_an_index_is_taken_as_tensorflow_takes_it(index):
    assert read_tf_config(config(type="worker", index=index))[1] == TaskId(Role.WORKER, 1)


def test_master_is_the_chief():
    cluster, task = read_tf_config(config({"master": ["a:1"], "worker": ["b:1"]}, type="master", index=0))
    assert cluster.jobs[Role.CHIEF] == {0: "a:1"}
    assert task == TaskId(Role.CHIEF, 0)


def test_sparse_jobs_keep_their_indices():
    cluster, task = read_tf_config(
        config({"worker": {"1": "b:1", "3": "d:1"}, "ps": ["e:1"]}, type="worker", index=3)
    )
    assert cluster.jobs[Role.WORKER] == {1: "b:1", 3: "d:1"}
    assert task == TaskId(Role.WORKER, 3)


def test_an_evaluator_is_a_task_outside_of_the_cluster():
    inside = config({**CLUSTER, "evaluator": ["e:1"]}, type="evaluator", index=0)
    for text in (inside, config(type="evaluator", index=0)):
        cluster, task = read_tf_config(text)
        assert Role.EVALUATOR not in cluster.jobs
        assert task == TaskId(Role.EVALUATOR, 0)


def test_keys_of_other_platforms_pass():
    text = json.dumps(
        {"cluster": CLUSTER, "environment": "cloud", "job": {}, "trial_uuid": 4, "task": {"trial": "4"}}
    )
    assert read_tf_config(text)[0].count(Role.WORKER) == 2


def test_all_mistakes_are_told_at_once():
    cluster = {"worker": ["a:1", "a:1", "b"], "chef": ["c:1"], "ps": {"x": "d:1", "1": "d:1"}}
    with pytest.raises(SpecError) as caught:
        read_tf_config(json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 7}}))
    told = str(caught.value).splitlines()
    for line, words in zip(
        told, ("[2]: expected host", "same address a:1", "mean 'chief'", "ps index", "worker"), strict=True
    ):
        assert words in line
    assert told[-1] == 'TF_CONFIG names the task worker:7; the indices of worker in its "cluster" are 0 to 2'


def test_ipv6_addresses_are_written_in_brackets():
    assert read_tf_config(config({"worker": ["[::1]:2222"]}))[0].jobs[Role.WORKER] == {0: "[::1]:2222"}
    with pytest.raises(SpecError, match="brackets"):
        read_tf_config(config({"worker": ["::1:2222"]}))


@every_row(
    "text, message",
    [
        ("", "empty"),
        ("  ", "empty"),
        ("{", "not JSON"),
        ("{'cluster': {}}", "double quotes"),
        ("[" * 100_000, "nested"),
        ("null", "expected an object"),
        ('"x"', "expected an object"),
        ("[]", "expected an object"),
        ('{"clusters": {}}', "did you mean 'cluster'"),
        ('{"Cluster": {}}', "did you mean 'cluster'"),
        ('{"cluster": {}, "cluster": {}}', "'cluster' twice"),
        ('{"cluster": null}', 'TF_CONFIG "cluster": expected an object'),
        ('{"task": ["worker", 0]}', 'TF_CONFIG "task": expected an object'),
        (config({"workers": ["a:1"]}), "did you mean 'worker'"),
        (config({"chef": ["a:1"]}), "did you mean 'chief'"),
        (config({"trainer": ["a:1"]}), "expected chief, worker, ps or evaluator"),
        (config({"chief": ["a:1", "b:1"]}), "at most one chief"),
        (config({"chief": {"1": "b:1"}}), "at most one chief, with index 0"),
        (config({"chief": ["a:1"], "master": ["b:1"]}), "two names of the same task"),
        (config({"worker": "a:1,b:1"}), "expected a list of addresses"),
        (config({"worker": 5}), "expected a list of addresses"),
        (config({"worker": [1]}), r"worker\[0\]: expected host:port, found 1"),
        (config({"worker": ["a"]}), r"worker\[0\]: expected host:port, found 'a'"),
        (config({"worker": ["a:99999"]}), "port from 1 to 65535"),
        (config({"worker": ["a:1", "a:1"]}), "worker:1 and worker:0 have the same address a:1"),
        (config({"chief": ["a:1"], "ps": ["a:1"]}), "ps:0 and chief:0 have the same address a:1"),
        (config({"worker": {"x": "a:1"}}), "expected a whole number"),
        (config({"worker": {"-1": "a:1"}}), "expected a whole number"),
        (config({"worker": {"1": "a:1", "01": "b:1"}}), "index 1 is given twice"),
        (config(type="worker"), "no index"),
        (config(index=0), "no type"),
        (config(typ="worker", index=0), "did you mean 'type'"),
        (config(type=None, index=0), "found null"),
        (config(type="wroker", index=0), "did you mean 'worker'"),
        (config(type="worker", index=None), "expected a whole number"),
        (config(type="worker", index=True), "expected a whole number"),
        (config(type="worker", index=0.5), "expected a whole number"),
        (config(type="worker", index=-1), "expected a whole number"),
        (config(type="worker", index="9" * 5000), "expected a whole number"),
        ('{"task": {"index": ' + "9" * 5000 + "}}", "not JSON"),
        (config(type="worker", index=float("inf")), "expected a whole number"),
        (config(type="worker", index=float("nan")), "expected a whole number"),
        (config(type="worker", index="x"), "expected a whole number"),
        (config(type="worker", index=7), "worker:7; the indices of worker in its \"cluster\" are 0 to 1"),
        (config({"worker": {"1": "a:1", "3": "b:1"}}, type="worker", index=0), "are 1, 3"),
        (config({"worker": ["a:1"]}, type="ps", index=0), "has no ps at all; it has worker"),
        (config({"worker": ["a:1"], "ps": []}, type="ps", index=0), "has no ps at all"),
        (config(type="evaluator", index=1), "at most one evaluator"),
        ('{"task": {"type": "ps", "index": 0}}', 'no "cluster"'),
    ],
)  # fmt: skip
def test_every_mistake_has_its_message(text, message):
    with pytest.raises(SpecError, match=message):
        read_tf_config(text)


ADDRESSES = st.builds(
    "{}:{}".format,
    st.from_regex(r"[a-z][a-z0-9-]{0,20}|\[::[0-9a-f]{1,4}\]", fullmatch=True),
    st.integers(1, 65535),
)


@st.composite
def clusters(draw):
    addresses = iter(draw(st.lists(ADDRESSES, min_size=1, max_size=12, unique=True)))
    jobs = {}
    for address in addresses:
        role = draw(st.sampled_from([Role.CHIEF, Role.WORKER, Role.PS]))
        tasks = jobs.setdefault(role, {})
        if role is not Role.CHIEF or not tasks:
            tasks[
                len(tasks) if role is Role.CHIEF else draw(st.integers(0, 3)) + max(tasks, default=-1) + 1
            ] = address
    return ClusterSpec(jobs)


@settings(deadline=None, max_examples=100)
@given(clusters(), st.data())
def test_what_is_written_is_what_is_read(cluster, data):
    task = data.draw(st.sampled_from([*cluster.tasks(), TaskId(Role.EVALUATOR, 0)]))
    text = write_tf_config(cluster, task)
    assert "evaluator" not in json.loads(text)["cluster"]
    assert read_tf_config(text) == (cluster, task)


@settings(deadline=None, max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["cluster", "task", "worker", "type", "index", "0"]), inner, max_size=3
            )
        ),
        max_leaves=8,
    )
)
def test_nothing_but_a_spec_error_comes_out(value):
    with contextlib.suppress(SpecError):
        read_tf_config(json.dumps(value))
