"""A run as manifests, and these as text: an Indexed Job a role behind a headless Service, or one JobSet.

A Job makes a pod again when it was lost or died of a signal, under the same name; exit codes of 1 to 127,
and 255, are permanent, as under a launcher. Sources: "Jobs" and "Pod failure policy" in the documentation
of Kubernetes; JobSet's API v1alpha2; "Run a Job" and "Run a JobSet" in the documentation of Kueue.
"""

import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from dtrain.cluster import Role
from dtrain.config.choices import RestartPolicy, Success
from dtrain.errors import SpecError
from dtrain_cli.plan.run_plan import limits_beside
from dtrain_cli.targets.kubernetes.run import (
    CODE_FILE,
    FILE,
    FOLDER,
    PORT,
    RUNS,
    TLS_FOLDER,
    KubernetesRun,
    options_of,
    stop_s,
    task_spec,
    wait_of,
)

BESIDE = "service,configmap,secret,networkpolicy"
"""The kinds of a run's objects beside those that own pods, and the disk."""
SECRET_BYTES_MAX = 1_000_000
_WIDTH = 1 << 16
_PLAIN = re.compile(r"(--?)?[A-Za-z/$][\w./:@$()-]*(?<!:)", re.ASCII)
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
"""Words that are no texts in YAML 1.1, which kubectl reads."""


def manifests(run: KubernetesRun) -> list[dict[str, Any]]:
    """Return every object of a run in the order in which they are to be applied.

    Raise a `SpecError` if the code, or the certificates of all tasks, are too large for one object.
    """
    objects = [_config_map(run)]
    if run.spec.kubernetes.secret is None and (secret := _secret(run))["stringData"]:
        objects.append(secret)
    if run.spec.kubernetes.volume.claim is None:
        objects.append(_claim(run))
    return [*objects, _network_policy(run), *workloads(run)]


def _object(
    run: KubernetesRun, kind: str, *, version: str = "v1", name: str | None = None, **fields: Any
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name or run.name, "labels": labels(run)}
    if run.spec.kubernetes.namespace is not None:
        metadata["namespace"] = run.spec.kubernetes.namespace
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def owned(objects: Sequence[dict[str, Any]], owner: str, uid: str) -> list[dict[str, Any]]:
    """Return the objects of a run that go with their owner (``job/NAME``, of this uid): all but the disk."""
    named = {f"{each['kind'].lower()}/{each['metadata']['name']}": each for each in objects}
    whole = named[owner]
    reference = {"apiVersion": whole["apiVersion"], "kind": whole["kind"], "name": whole["metadata"]["name"]}
    return [
        {**each, "metadata": {**each["metadata"], "ownerReferences": [{**reference, "uid": uid}]}}
        for each in objects
        if each is not whole and each["kind"] != "PersistentVolumeClaim"
    ]


def _config_map(run: KubernetesRun) -> dict[str, Any]:
    text = json.dumps(task_spec(run), indent=1, ensure_ascii=True) + "\n"
    fields: dict[str, Any] = {"immutable": True, "data": {FILE: text}}
    if run.code.archive is not None:
        fields["binaryData"] = {CODE_FILE: run.code.packed().decode()}
    return _object(run, "ConfigMap", **fields)


def _secret(run: KubernetesRun) -> dict[str, Any]:
    data = {} if run.foreign or run.secret is None else {SECRET_KEY: run.secret}
    data |= run.secrets
    for task, material in run.certificates.items():
        data["ca.crt"] = material.authorities.decode()
        data[f"{task}.crt"] = material.certificate.decode()
        data[f"{task}.key"] = material.key.decode()
    if sum(map(len, data.values())) > SECRET_BYTES_MAX:
        raise SpecError(
            f"the secrets and certificates of {len(run.certificates)} tasks have more bytes than a Secret "
            f"holds, {SECRET_BYTES_MAX}; expected fewer tasks, or security.tls: off"
        )
    return _object(run, "Secret", immutable=True, type="Opaque", stringData=data)


def _network_policy(run: KubernetesRun) -> dict[str, Any]:
    """Return the rule that the run's pods are reached by each other alone; its secret is the next door."""
    own = {"matchLabels": labels(run)}
    spec = {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]}
    return _object(run, "NetworkPolicy", version="networking.k8s.io/v1", spec=spec)


def _claim(run: KubernetesRun) -> dict[str, Any]:
    volume = run.spec.kubernetes.volume
    size = {"requests": {"storage": volume.size}}
    spec: dict[str, Any] = {"accessModes": [volume.access], "resources": size}
    if volume.storage_class is not None:
        spec["storageClassName"] = volume.storage_class
    return _object(run, "PersistentVolumeClaim", spec=spec)


def objects_text(objects: Iterable[dict[str, Any]], as_json: bool) -> str:
    return json_text(objects) if as_json else yaml_text(objects)


def yaml_text(objects: Iterable[dict[str, Any]]) -> str:
    """Return objects as YAML documents; texts of several lines stand as they are, to be read."""
    from ruamel.yaml import YAML

    def scalar(writer: Any, text: str) -> Any:
        stands = "\n" in text and all(each.isprintable() or each in "\n\t" for each in text)
        style = "|" if stands else _quoted(text)
        return writer.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    writer: Any = YAML(typ="safe", pure=True)
    writer.width, writer.default_flow_style = _WIDTH, None  # what holds no lists or mappings is on one line
    writer.sort_base_mapping_type_on_output = False
    writer.representer.add_representer(str, scalar)
    writer.representer.ignore_aliases = lambda _: True
    stream = io.StringIO()
    writer.dump_all(objects, stream)
    return stream.getvalue()


def _quoted(text: str) -> str | None:
    return None if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else '"'


def json_text(objects: Iterable[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}, indent=2) + "\n"


PERMANENT = (*range(1, 128), 255)
"""Exit codes after which a task is not started again; `sys.exit(-1)` gives 255."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KEPT_S = 86_400
"""How long objects with their logs stay after the end."""


def workloads(run: KubernetesRun) -> list[dict[str, Any]]:
    if run.jobset:
        owners = [_object(run, "JobSet", version="jobset.x-k8s.io/v1alpha2", spec=_jobset(run))]
    else:
        specs = {role: {**_job(run, role), "ttlSecondsAfterFinished": KEPT_S} for role in run.roles}
        owners = [
            _object(run, "Job", version="batch/v1", name=run.job_name(role), spec=spec)
            for role, spec in specs.items()
        ]
    if (queue := run.spec.kubernetes.queue) is not None:  # Kueue admits them
        for owner in owners:
            owner["metadata"]["labels"][QUEUE_LABEL] = queue
    return owners if run.jobset else [_service(run), *owners]


def _service(run: KubernetesRun) -> dict[str, Any]:
    """Return the Service that gives the pods their names, from before they are ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels(run)}
    spec |= {"ports": [{"name": "dtrain", "port": PORT}]}
    return _object(run, "Service", spec=spec)


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
                {"action": "FailIndex" if may_be_lost(run, role) else "FailJob", "onExitCodes": exits},
            ]
        },
        "template": pod_template(run, role),
    }
    if not may_be_lost(run, role):
        job["maxFailedIndexes"] = 0
    if run.timeout_s is not None:
        job["activeDeadlineSeconds"] = math.ceil(run.timeout_s)
    return job


def may_be_lost(run: KubernetesRun, role: Role) -> bool:
    """Return whether the others go on without a task of the role: workers beside a chief that leads."""
    return role is Role.WORKER and run.leader is Role.CHIEF and not run.foreign


def _jobset(run: KubernetesRun) -> dict[str, Any]:
    waits = {Role.EVALUATOR: not run.foreign, Role.WORKER: run.spec.success == Success.ALL_WORKERS}
    ends = [role.value for role in run.roles if role is run.leader or waits.get(role)]
    return {
        "network": {"enableDNSHostnames": True, "subdomain": run.name, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ends},
        "failurePolicy": {"maxRestarts": 0},
        "ttlSecondsAfterFinished": KEPT_S,
        "replicatedJobs": [
            {"name": role.value, "replicas": 1, "template": {"spec": _job(run, role)}} for role in run.roles
        ],
    }


CONTAINER = "dtrain"
INDEX = "$(JOB_COMPLETION_INDEX)"
WORK = "/dtrain/work"
RUN_LABEL = "dtrain.dev/run"
ROLE_LABEL = "dtrain.dev/role"
SECRET_KEY = "secret"
USER = 1000
_NODE = "kubernetes.io/hostname"
_LOST_NODE = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
EVICTED_S = 30
"""How long pods stay on a node that does not answer, after the 40 s that the cluster takes to say so; by
default a cluster waits 300 s."""
PROBE_S = 10


def labels(run: KubernetesRun, role: Role | None = None) -> dict[str, str]:
    common = {"app.kubernetes.io/name": "dtrain", RUN_LABEL: run.name}
    return common if role is None else {**common, ROLE_LABEL: role.value}


def pod_template(run: KubernetesRun, role: Role) -> dict[str, Any]:
    user: dict[str, Any] = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    # Else each mount would make the run directory writable for the group, which no run may be.
    user |= {"fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}}
    leaves = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": EVICTED_S}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "subdomain": run.name,
        "terminationGracePeriodSeconds": stop_s(run.spec),
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": user,
        "tolerations": [{"key": key, **leaves} for key in _LOST_NODE],
        "containers": [_container(run, role)],
        "volumes": [volume for volume, _, _ in _mounted(run, role)],
    }
    if role is Role.PS:  # the loss of a node should cost one server
        apart = {"maxSkew": 1, "topologyKey": _NODE, "whenUnsatisfiable": "ScheduleAnyway"}
        spec["topologySpreadConstraints"] = [{**apart, "labelSelector": {"matchLabels": labels(run, role)}}]
    if role is Role.EVALUATOR and reads_disk(run, role) and not run.spec.kubernetes.volume.shared:
        beside = {"labelSelector": {"matchLabels": labels(run, run.leader)}, "topologyKey": _NODE}
        spec["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [beside]}}
    pod = run.spec.kubernetes.pod
    template = {"metadata": {"labels": labels(run, role)}, "spec": spec}
    everywhere = {key: each for key, each in pod.items() if key in template}
    return dict(merged(merged(template, everywhere), pod.get(role, {})))


_NAMES = ("mountPath", "containerPort", "topologyKey", "key", "name")
"""The field by which entries of a list are the same: of volumeMounts, ports, ..., and of all others."""


def merged(base: Any, patch: Any) -> Any:
    """Return a value with a patch laid over it, as `kubectl patch` does by its strategic merge.

    Mappings are merged, and lists whose entries have names; a null removes a key; all else is replaced.
    """
    if isinstance(base, dict) and isinstance(patch, dict):
        laid = base | {key: merged(base.get(key, {}), each) for key, each in patch.items()}
        return {key: each for key, each in laid.items() if each is not None}
    if isinstance(base, list) and isinstance(patch, list):
        entries = [*base, *patch]
        for name in _NAMES:
            if all(isinstance(each, dict) and name in each for each in entries):
                found: dict[Any, Any] = {}
                for each in entries:
                    found[each[name]] = merged(found.get(each[name], {}), each)
                return list(found.values())
    return patch


def reads_disk(run: KubernetesRun, role: Role) -> bool:
    """Return whether a role's pods have the disk of the run directory: the leader's and the evaluator's."""
    if run.foreign:
        return role is run.leader
    return role is run.leader or (role is Role.EVALUATOR and run.spec.checkpoint.remote is None)


def _container(run: KubernetesRun, role: Role) -> dict[str, Any]:
    kubernetes = run.spec.kubernetes
    resources = kubernetes.resources_of(role)
    container: dict[str, Any] = {"name": CONTAINER, "image": kubernetes.image, "command": ["dtrain"]}
    container |= {"args": _arguments(run, role), "env": _environment(run, role)}
    limits = {name: each for name, each in resources.items() if name != "cpu"}
    container["resources"] = {"requests": resources, "limits": limits}
    inside = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    container["securityContext"] = {**inside, "capabilities": {"drop": ["ALL"]}}
    container["volumeMounts"] = [
        {"name": volume["name"], "mountPath": path, **({"readOnly": True} if read_only else {})}
        for volume, path, read_only in _mounted(run, role)
    ]
    if role is not Role.EVALUATOR:
        container["ports"] = [{"name": "dtrain", "containerPort": PORT}]
    if role is Role.PS and not run.foreign:  # other tasks listen where others need them, or never
        tries = math.ceil(wait_of(run.spec)["start_s"] / PROBE_S)
        probe = {"tcpSocket": {"port": PORT}, "periodSeconds": PROBE_S, "failureThreshold": tries}
        container["startupProbe"] = probe
    return container


def _arguments(run: KubernetesRun, role: Role) -> list[str]:
    words = ["task", "--spec", f"{FOLDER}/{FILE}"]
    leads = role is run.leader and not run.foreign
    if leads:
        directory = run.run_directory if role is Role.CHIEF else f"{run.run_directory}/{role}-{INDEX}"
        words += ["--run-dir", directory]
    words += ["--work", f"{run.run_directory}/work" if reads_disk(run, role) and leads else WORK]
    code = f"{FOLDER}/{CODE_FILE}" if run.code.archive else run.code.folder
    words += ["--code", code] if code else []
    # Kubernetes replaces $(NAME) in arguments, and $$ by $.
    return [*words, *(word.replace("$", "$$") for word in run.command)]


def _environment(run: KubernetesRun, role: Role) -> list[dict[str, Any]]:
    plain = {"DTRAIN_ROLE": role.value, "PYTHONUNBUFFERED": "1", "HOME": WORK}
    cores = math.floor(run.spec.kubernetes.cores_of(role))
    threads = "1" if run.spec.training.deterministic else str(max(1, cores))
    plain |= limits_beside(run.spec.environment, threads)
    secret = {} if run.foreign else {"DTRAIN_SECRET": SECRET_KEY}
    secret |= {name: name for name in run.spec.secrets}
    found: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in plain.items()]
    for name, key in secret.items():
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": run.secret_name, "key": key}}})
    return found


def _mounted(run: KubernetesRun, role: Role) -> list[tuple[dict[str, Any], str, bool]]:
    """Return the volumes of a role's pods, each with its path and whether it is only read."""
    files = [FILE, *([CODE_FILE] if run.code.archive else [])]
    spec = {"name": run.name, "items": [{"key": file, "path": file} for file in files]}
    resources = run.spec.kubernetes.resources_of(role)
    disk = {"sizeLimit": resources["ephemeral-storage"]}
    memory = {"medium": "Memory", "sizeLimit": resources["memory"]}
    mounted: list[tuple[dict[str, Any], str, bool]] = [
        ({"name": "spec", "configMap": spec}, FOLDER, True),
        ({"name": "work", "emptyDir": disk}, WORK, False),
        ({"name": "tmp", "emptyDir": disk}, "/tmp", False),
        ({"name": "shm", "emptyDir": memory}, "/dev/shm", False),
    ]
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


NAME_OF_JOB = "$(TRAINJOB)"
"""The name of a run of which only the pods learn it, by the label of their JobSet."""
TRAINER_API = "trainer.kubeflow.org/v1alpha1"
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def training_runtime(run: KubernetesRun) -> dict[str, Any]:
    """Return the runtime of which Kubeflow Trainer makes runs: as a JobSet, named `NAME_OF_JOB`.

    Its API wants the pods that count as nodes in a container ``node`` of a Job with a label. Source: "Runtime
    Guide" and "Job Template" in the documentation of Kubeflow Trainer v2.
    """
    said = {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/jobset-name']"}}
    tasks = task_spec(run)["cluster"]
    cluster = [f"--set=cluster.{role}={json.dumps(tasks.get(role, 0))}" for role in Role]
    nodes = Role.WORKER if Role.WORKER in run.roles else run.leader
    jobset = {**_jobset(run), "network": {"publishNotReadyAddresses": True}}
    for part in jobset["replicatedJobs"]:
        template = part["template"]["spec"]["template"]
        pod, container = template["spec"], template["spec"]["containers"][0]
        template["metadata"]["labels"].pop(RUN_LABEL)
        for name in ("subdomain", "topologySpreadConstraints", "affinity"):
            pod.pop(name, None)
        pod["volumes"] = [each for each in pod["volumes"] if each["name"] != "spec"]
        container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] != "spec"]
        container["args"][1:3] = [*cluster, *options_of(run.spec)]
        container["env"] = [{"name": "TRAINJOB", "valueFrom": said}, *container["env"]]
        if part["name"] == nodes:
            part["template"]["metadata"] = {"labels": {_STEP: "trainer"}}
            part["template"]["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["containerName"] = "node"
            container["name"] = "node"
    return {
        "apiVersion": TRAINER_API,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": run.spec.name},
        "spec": {"mlPolicy": {"numNodes": run.spec.cluster.count(nodes)}, "template": {"spec": jobset}},
    }
