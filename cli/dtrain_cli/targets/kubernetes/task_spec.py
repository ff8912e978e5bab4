"""The spec that the pods read: what the user's says, with addresses for counts and files as pods see them."""

from typing import Any

import msgspec

from dtrain.cluster import Role
from dtrain.config import RunSpec, SecuritySection, WaitSection
from dtrain.config.choices import TlsMode
from dtrain_cli.targets.kubernetes.run import KubernetesRun

FILE = "spec.json"
FOLDER = "/etc/dtrain/spec"
TLS_FOLDER = "/etc/dtrain/tls"
WAIT_S = {"start_s": 600.0, "server_s": 300.0, "leader_s": 300.0}
"""The time for nodes to come, where the spec says nothing: a cluster takes minutes to get one."""
_AS_SAID = ("checkpoint", "success", "trace", "environment", "secrets", "simulate")


def task_spec(run: KubernetesRun) -> dict[str, Any]:
    """Return the spec as plain data; what is at its default, and was not said, is left out."""
    spec = run.spec
    default = RunSpec()
    written: dict[str, Any] = {"name": spec.name, "cluster": dict(run.addresses.to_dict())}
    written |= {
        name: msgspec.to_builtins(value)
        for name in _AS_SAID
        if (value := getattr(spec, name)) != getattr(default, name)
    }
    if evaluators := spec.cluster.count(Role.EVALUATOR):
        written["cluster"][Role.EVALUATOR.value] = evaluators
    if training := spec.said.get("training"):
        written["training"] = training
    written["wait"] = wait_of(spec)
    if run.certificates:
        written["security"] = {"tls": TlsMode.REQUIRED.value, **_files()}
    return written


def wait_of(spec: RunSpec) -> dict[str, float]:
    """Return the patience of the tasks: the spec's where it says one, else that of a cluster."""
    said = spec.said.get("wait", {})
    seconds = msgspec.to_builtins(spec.wait) if said else {}
    wait = {name: seconds[name] if name in said else patience for name, patience in WAIT_S.items()}
    return {**wait, "grace_s": grace_s(spec.wait)}


def grace_s(wait: WaitSection) -> float:
    """Return the time of a task to end in order."""
    return wait.grace(launched=False)


def _files() -> dict[str, str]:
    paths = SecuritySection(
        ca_file=f"{TLS_FOLDER}/ca.crt",
        cert_file=f"{TLS_FOLDER}/{{role}}-{{index}}.crt",
        key_file=f"{TLS_FOLDER}/{{role}}-{{index}}.key",
    )
    return {name: getattr(paths, name) for name in ("ca_file", "cert_file", "key_file")}
