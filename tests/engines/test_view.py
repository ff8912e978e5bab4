"""The state of a run in the cluster, from objects as its API has them."""

import pytest

from dtrain.cluster import TaskId
from dtrain.runs.states import RunState, TaskState
from dtrain_cli.targets.kubernetes.kubectl import view_of

CHIEF = TaskId.parse("chief:0")


def pod(role, index, phase, code=None, number=0, **status):
    name = f"r-{role}-{index}-{number}"
    labels = {"dtrain.dev/role": role, "batch.kubernetes.io/job-completion-index": str(index)}
    metadata = {
        "name": name,
        "uid": name,
        "labels": labels,
        "creationTimestamp": f"2026-01-01T00:00:{number:02}Z",
    }
    if code is not None:
        status["containerStatuses"] = [
            {"name": "dtrain", "state": {"terminated": {"exitCode": code, "reason": "Error"}}}
        ]
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": "n1"},
        "status": {"phase": phase, **status},
    }


def job(role, *conditions, **metadata):
    template = {"metadata": {"labels": {"dtrain.dev/role": role}}}
    said = [{"type": each, "status": "True", "message": f"{role} {each}"} for each in conditions]
    return {
        "kind": "Job",
        "metadata": {"name": f"r-{role}", **metadata},
        "spec": {"template": template},
        "status": {"conditions": said},
    }


def jobset(*conditions):
    said = [{"type": each, "status": "True", "message": each} for each in conditions]
    return {"kind": "JobSet", "metadata": {"name": "r"}, "spec": {}, "status": {"conditions": said}}


def owned(role, *conditions):
    return job(role, *conditions, ownerReferences=[{"kind": "JobSet"}])


@pytest.mark.parametrize(
    ("objects", "state"),
    [
        ([], None),
        ([job("chief"), job("ps")], RunState.PENDING),
        ([job("chief"), pod("chief", 0, "Pending")], RunState.STARTING),
        ([job("chief"), pod("chief", 0, "Running"), pod("worker", 0, "Pending")], RunState.RUNNING),
        ([job("chief", "Complete"), job("ps"), pod("chief", 0, "Succeeded", 0)], RunState.SUCCEEDED),
        ([job("chief", "Failed"), pod("chief", 0, "Failed", 3)], RunState.FAILED),
        ([job("chief"), job("ps", "Failed"), pod("ps", 1, "Failed", 1)], RunState.FAILED),
        ([job("chief"), job("worker", "Failed"), pod("chief", 0, "Running")], RunState.RUNNING),
        ([job("chief"), job("ps", "Complete"), pod("chief", 0, "Running")], RunState.RUNNING),
        ([job("chief", deletionTimestamp="x"), pod("chief", 0, "Running")], RunState.STOPPING),
        ([jobset("Completed"), owned("chief", "Complete"), owned("ps", "Failed")], RunState.SUCCEEDED),
        (
            [
                jobset(),
                owned("chief", "Complete"),
                pod("chief", 0, "Succeeded", 0),
                pod("evaluator", 0, "Running"),
            ],
            RunState.STARTING,
        ),
        ([jobset("Failed"), pod("worker", 1, "Failed", 9)], RunState.FAILED),
    ],
)
def test_the_state_follows_from_leader_servers_and_jobset(objects, state):
    assert view_of(objects, CHIEF).state == state


def test_the_pod_that_failed_first_is_named_and_a_queue_says_that_it_waits():
    objects = [
        job("chief", "Failed"),
        pod("chief", 0, "Failed", 3, number=4),
        pod("worker", 0, "Failed", 1, number=1),
    ]
    assert view_of(objects, CHIEF).failed.exit_code == 3
    assert view_of([jobset("Suspended")], CHIEF).message == "Suspended"


def test_the_newest_pod_of_a_task_counts_and_a_noticed_one_was_stopped():
    view = view_of(
        [
            pod("ps", 1, "Running", number=2),
            pod("ps", 1, "Failed", 137, number=1),
            pod("worker", 0, "Failed", 143),
        ],
        CHIEF,
    )
    assert view.newest[TaskId.parse("ps:1")].state == TaskState.RUNNING
    assert view.restarts(TaskId.parse("ps:1")) == 1
    assert view.newest[TaskId.parse("worker:0")].state == TaskState.STOPPED


def test_strangers_with_our_label_are_no_tasks():
    stranger = pod("ps", 0, "Running")
    stranger["metadata"]["labels"] = {"dtrain.dev/role": "sidecar"}
    assert view_of([stranger], CHIEF).pods == []


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"containerStatuses": [{"name": "dtrain", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]}, "ImagePullBackOff: no such image"),
        ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}]}, "Unschedulable: 0/3"),
        ({}, None),
    ],
)  # fmt: skip
def test_a_waiting_pod_says_why(status, why):
    assert view_of([pod("ps", 0, "Pending", **status)], CHIEF).pods[0].message == why
