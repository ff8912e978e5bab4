"""The flags of TensorFlow's first distributed programs."""

import pytest
from row_by_row import every_row

from dtrain.cluster import TaskId
from dtrain.errors import SpecError
from dtrain.process.tensorflow import read_classic_flags


@pytest.mark.parametrize(
    "line",
    [
        "--ps_hosts a:1,b:2 --worker_hosts c:3,d:4 --job_name worker --task_index 1",
        "--ps-hosts=a:1,b:2 --worker-hosts=c:3,d:4 --job-name=worker --task-index=1",
        (
            "train --steps 3 --worker_hosts c:3,d:4 --lr=1 --ps-hosts a:1,b:2 --task_index 0 --job_name=worker "
            "--task_index=1"
        ),
    ],
)
def test_dashes_underscores_and_other_arguments_between(line):
    cluster, task = read_classic_flags(line.split())
    assert task == TaskId.parse("worker:1")
    assert cluster.to_dict() == {"worker": ["c:3", "d:4"], "ps": ["a:1", "b:2"]}


@pytest.mark.parametrize(
    "line", ["", "--steps 3", "--job_name ps --task_index 1", "--ps_hosts= --worker_hosts="]
)
def test_no_hosts_is_no_cluster(line):
    assert read_classic_flags(line.split()) is None


@every_row(
    "line, said",
    [
        ("--worker_hosts", "--worker_hosts: expected a value after it"),
        ("--worker_hosts a --job_name worker", "--worker_hosts: expected host:port, found 'a'"),
        (
            "--worker_hosts a:1,a:1 --job_name worker",
            "--worker_hosts: a:1 is already the address of worker:0",
        ),
        ("--ps_hosts a:1 --job_name ps", "--worker_hosts: no task trains"),
        ("--worker_hosts a:1", "--job_name: expected one of chief, worker, ps, evaluator, found ''"),
        (
            "--worker_hosts a:1 --job_name worker --task_index x",
            "--task_index: expected a number from 0, found 'x'",
        ),
        (
            "--worker_hosts a:1 --job_name worker --task_index 1",
            "--task_index: the flags name no worker:1: there are 1",
        ),
    ],
)
def test_mistakes_name_the_flag(line, said):
    with pytest.raises(SpecError) as caught:
        read_classic_flags(line.split())
    assert str(caught.value).startswith(said)
