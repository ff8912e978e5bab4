"""Vertex AI: a run as the `workerPoolSpecs` of a custom job, of which each replica runs `dtrain task`.

Pool 0 is the chief, 1 the workers, 2 the servers, 3 the evaluator; a pool without tasks before another one is
an empty object. Source: "Distributed training" and "CustomJobSpec" in the documentation of Vertex AI.
"""

import json
from collections.abc import Iterator
from typing import Any

from dtrain.cluster import Role
from dtrain.config import Problem, RunSpec
from dtrain.process.engines import POOLS
from dtrain_cli.targets.kubernetes.run import set_sections, wait_of

SECRET = "DTRAIN_SECRET"


def problems(spec: RunSpec) -> Iterator[Problem]:
    if spec.vertex.image is None:
        text = "expected the image of the replicas: --set vertex.image=docker.pkg.dev/p/r/i:1"
        yield ("vertex", "image"), text
    for role in Role:
        if not isinstance(getattr(spec.cluster, role), int):
            yield ("cluster", role.value), "expected a count: Vertex AI gives the replicas addresses"
    if spec.cluster.count(Role.CHIEF) == 0:
        yield ("cluster", "chief"), "expected 1: the first pool of a job is one replica, the chief"
    if spec.secrets:
        text = "expected none: a job shows its variables; have the program read them from Secret Manager"
        yield ("secrets",), text


def worker_pool_specs(spec: RunSpec, command: tuple[str, ...], secret: str | None) -> list[dict[str, Any]]:
    """Return the pools of a job; `command` is behind `dtrain task` and its options."""
    variables = dict(spec.environment)
    if secret is not None:
        variables[SECRET] = secret
    pools = []
    for role in POOLS.values():
        count = spec.cluster.count(role)
        container = {
            "imageUri": spec.vertex.image,
            "command": ["dtrain"],
            "args": ["task", *_options(spec), *command],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
        }
        pool = {
            "machineSpec": {"machineType": spec.vertex.machine_of(role)},
            "replicaCount": count,
            "containerSpec": container,
        }
        pools.append(pool if count else {})
    while not pools[-1]:
        del pools[-1]
    return pools


def _options(spec: RunSpec) -> list[str]:
    """Return the options that hold the spec: a job has no file for it."""
    settings = set_sections(spec, ("checkpoint", "success", "trace", "simulate"))
    settings |= {"name": spec.name, "wait": wait_of(spec)}
    if training := spec.said.get("training"):
        settings["training"] = training
    if spec.security.insecure:
        settings["security"] = {"insecure": True}
    return [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
