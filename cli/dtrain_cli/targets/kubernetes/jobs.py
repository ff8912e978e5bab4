"""The tasks as an Indexed Job a role behind a headless Service, or as one JobSet.

A Job makes a pod again when it was lost or died of a signal, under the same name; exit codes of 1 to 127, and
255, are permanent, as under a launcher. Sources: "Jobs" and "Pod failure policy" in the documentation of
Kubernetes; JobSet's API v1alpha2; "Run a Job" and "Run a JobSet" in the documentation of Kueue.
"""

from typing import Any

from dtrain.cluster import Role
from dtrain.config.choices import RestartPolicy, Success
from dtrain_cli.targets.kubernetes.pod import CONTAINER, labels, pod_template
from dtrain_cli.targets.kubernetes.run import PORT, KubernetesRun

PERMANENT = (*range(1, 128), 255)
"""Exit codes after which a task is not started again; `sys.exit(-1)` gives 255."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KEPT_S = 86_400
"""How long objects with their logs stay after the end."""


def workloads(run: KubernetesRun) -> list[dict[str, Any]]:
    """Return the objects that start the tasks."""
    if run.jobset:
        return [_jobset(run)]
    jobs = [
        _object(run, "batch/v1", "Job", run.job_name(role), {**_job(run, role), **_kept()})
        for role in run.roles
    ]
    return [_service(run), *jobs]


def _object(run: KubernetesRun, version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return an object that Kueue admits, where the run waits in a queue."""
    metadata: dict[str, Any] = {"name": name, "labels": labels(run)}
    if run.spec.kubernetes.queue is not None and kind != "Service":
        metadata["labels"][QUEUE_LABEL] = run.spec.kubernetes.queue
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _kept() -> dict[str, Any]:
    return {"ttlSecondsAfterFinished": KEPT_S}


def _service(run: KubernetesRun) -> dict[str, Any]:
    """Return the Service that gives the pods their names, from before they are ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": labels(run),
        "ports": [{"name": "dtrain", "port": PORT}],
    }
    return _object(run, "v1", "Service", run.name, spec)


def _job(run: KubernetesRun, role: Role) -> dict[str, Any]:
    count, restart = run.spec.cluster.count(role), run.spec.restart_of(role)
    exits = {"containerName": CONTAINER, "operator": "In", "values": list(PERMANENT)}
    job: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimitPerIndex": 0 if restart.policy == RestartPolicy.NEVER or run.foreign else restart.max,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailIndex" if _may_be_lost(run, role) else "FailJob", "onExitCodes": exits},
            ]
        },
        "template": pod_template(run, role),
    }
    if not _may_be_lost(run, role):
        job["maxFailedIndexes"] = 0
    return job


def _may_be_lost(run: KubernetesRun, role: Role) -> bool:
    """Return whether the others go on without a task of the role: workers beside a chief that leads."""
    return role is Role.WORKER and run.leader is Role.CHIEF and not run.foreign


def _jobset(run: KubernetesRun) -> dict[str, Any]:
    waited_for = [run.leader]
    if Role.EVALUATOR in run.roles and not run.foreign:
        waited_for.append(Role.EVALUATOR)
    if run.spec.success == Success.ALL_WORKERS and Role.WORKER in run.roles:
        waited_for.append(Role.WORKER)
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": run.name, "publishNotReadyAddresses": True},
        "successPolicy": {
            "operator": "All",
            "targetReplicatedJobs": [role.value for role in dict.fromkeys(waited_for)],
        },
        "failurePolicy": {"maxRestarts": 0},
        **_kept(),
        "replicatedJobs": [
            {"name": role.value, "replicas": 1, "template": {"spec": _job(run, role)}} for role in run.roles
        ],
    }
    return _object(run, "jobset.x-k8s.io/v1alpha2", "JobSet", run.name, spec)
