"""The pod of a role: one `dtrain task` with the run's files, secrets and disk."""

import math
from typing import Any

from dtrain.cluster import Role
from dtrain_cli.plan.run_plan import limits_beside
from dtrain_cli.targets.kubernetes.run import PORT, RUNS, KubernetesRun
from dtrain_cli.targets.kubernetes.task_spec import FILE, FOLDER, TLS_FOLDER, grace_s

CONTAINER = "dtrain"
INDEX = "$(JOB_COMPLETION_INDEX)"
WORK = "/dtrain/work"
RUN_LABEL = "dtrain.dev/run"
ROLE_LABEL = "dtrain.dev/role"
SECRET_KEY = "secret"
USER = 1000
FAREWELL_S = 10
"""From the end of the tasks' own grace to SIGKILL."""
_NODE = "kubernetes.io/hostname"


def labels(run: KubernetesRun, role: Role | None = None) -> dict[str, str]:
    """Return the labels of the run's objects, or of a role's pods."""
    common = {"app.kubernetes.io/name": "dtrain", RUN_LABEL: run.name}
    return common if role is None else {**common, ROLE_LABEL: role.value}


def pod_template(run: KubernetesRun, role: Role) -> dict[str, Any]:
    """Return the template of a role's pods."""
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "subdomain": run.name,
        "terminationGracePeriodSeconds": math.ceil(grace_s(run.spec.wait)) + FAREWELL_S,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            # Else each mount would make the run directory writable for the group, which no run may be.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(run, role)],
        "volumes": _volumes(run, role),
    }
    if role is Role.EVALUATOR and reads_disk(run, role) and not run.spec.kubernetes.volume.shared:
        beside = {"labelSelector": {"matchLabels": labels(run, run.leader)}, "topologyKey": _NODE}
        spec["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [beside]}}
    return {"metadata": {"labels": labels(run, role)}, "spec": spec}


def reads_disk(run: KubernetesRun, role: Role) -> bool:
    """Return whether a role's pods have the disk of the run directory: the leader's and the evaluator's."""
    if run.foreign:
        return role is run.leader
    return role is run.leader or (role is Role.EVALUATOR and run.spec.checkpoint.remote is None)


def _container(run: KubernetesRun, role: Role) -> dict[str, Any]:
    kubernetes = run.spec.kubernetes
    resources = kubernetes.resources_of(role)
    cpu = resources.cpu if isinstance(resources.cpu, str) else f"{resources.cpu:g}"
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": kubernetes.image,
        "command": ["dtrain"],
        "args": _arguments(run, role),
        "env": _environment(run, role),
        "resources": {
            "requests": {"cpu": cpu, "memory": resources.memory},
            "limits": {"memory": resources.memory},
        },
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": volume["name"], "mountPath": path, **({"readOnly": True} if read_only else {})}
            for volume, path, read_only in _mounted(run, role)
        ],
    }
    if role is not Role.EVALUATOR:
        container["ports"] = [{"name": "dtrain", "containerPort": PORT}]
    return container


def _arguments(run: KubernetesRun, role: Role) -> list[str]:
    words = ["task", "--spec", f"{FOLDER}/{FILE}"]
    leads = role is run.leader and not run.foreign
    if leads:
        directory = run.run_directory if role is Role.CHIEF else f"{run.run_directory}/{role}-{INDEX}"
        words += ["--run-dir", directory]
    words += ["--work", f"{run.run_directory}/work" if reads_disk(run, role) and leads else WORK]
    words += ["--code", run.code.folder] if run.code.folder else []
    # Kubernetes replaces $(NAME) in arguments, and $$ by $.
    return [*words, *(word.replace("$", "$$") for word in run.command)]


def _environment(run: KubernetesRun, role: Role) -> list[dict[str, Any]]:
    plain = {"DTRAIN_ROLE": role.value, "PYTHONUNBUFFERED": "1", "HOME": WORK}
    cores = math.floor(run.spec.kubernetes.resources_of(role).cores)
    threads = "1" if run.spec.training.deterministic else str(max(1, cores))
    plain |= limits_beside(run.spec.environment, threads)
    secret = {} if run.foreign else {"DTRAIN_SECRET": SECRET_KEY}
    secret |= {name: name for name in run.spec.secrets}
    return [
        *({"name": name, "value": value} for name, value in plain.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": run.secret_name, "key": key}}}
            for name, key in secret.items()
        ),
    ]


def _volumes(run: KubernetesRun, role: Role) -> list[dict[str, Any]]:
    return [volume for volume, _, _ in _mounted(run, role)]


def _mounted(run: KubernetesRun, role: Role) -> list[tuple[dict[str, Any], str, bool]]:
    """Return the volumes of a role's pods, each with its path and whether it is only read."""
    spec = {"name": run.name, "items": [{"key": FILE, "path": FILE}]}
    mounted: list[tuple[dict[str, Any], str, bool]] = [
        ({"name": "spec", "configMap": spec}, FOLDER, True),
        ({"name": "work", "emptyDir": {}}, WORK, False),
    ]
    if run.code.files:
        items = [{"key": key, "path": path} for path, key in run.code.keys.items()]
        code = {"name": "code", "configMap": {"name": run.name, "items": items}}
        mounted.append((code, run.code.folder, True))
    if run.certificates:
        tasks = [f"{role}-{index}" for index in range(run.spec.cluster.count(role))]
        files = ["ca.crt", *(f"{task}.{kind}" for task in tasks for kind in ("crt", "key"))]
        items = [{"key": file, "path": file} for file in files]
        # Group alone: the owner of such files is root, and the pod's user is not.
        tls = {"secretName": run.secret_name, "items": items, "defaultMode": 0o440}
        mounted.append(({"name": "tls", "secret": tls}, TLS_FOLDER, True))
    if reads_disk(run, role):
        claim = {"persistentVolumeClaim": {"claimName": run.volume_name}}
        mounted.append(({"name": "runs", **claim}, RUNS, False))
    return mounted
