"""Vertex AI: the variable CLUSTER_SPEC, which every replica of a custom job has.

    {"cluster": {"workerpool0": ["cmle-training-workerpool0-ab-0:2222"], "workerpool1": [...]},
     "task": {"type": "workerpool1", "index": 0, "trial": "..."}, "environment": "cloud", "job": {...}}

Pool 0 is the chief, pool 1 workers, pool 2 parameter servers, pool 3 the evaluator; a pool may be empty.
Source: "Distributed training" and "CLUSTER_SPEC format" in the documentation of Vertex AI.
"""

from collections.abc import Mapping
from typing import Any

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import address_problem
from dtrain.errors import SpecError
from dtrain.process.engines.json_variables import read_object
from dtrain.process.engines.place import Place

VARIABLE = "CLUSTER_SPEC"
CHECKPOINTS = "AIP_CHECKPOINT_DIR"
"""Where a job keeps checkpoints, as a URL: it goes on from there when it is started again."""
MODEL = "AIP_MODEL_DIR"
"""The folder in which a job's model is looked for after its end, as a URL."""
LOGS = "AIP_TENSORBOARD_LOG_DIR"
"""The folder from which TensorBoard shows a job, as a URL."""
ENGINE = "Vertex AI"
POOLS = {
    "workerpool0": Role.CHIEF,
    "workerpool1": Role.WORKER,
    "workerpool2": Role.PS,
    "workerpool3": Role.EVALUATOR,
}


def place(environment: Mapping[str, str]) -> Place | None:
    """Return this task's place; None where no replica of Vertex AI has been started here.

    Raises:
        SpecError: CLUSTER_SPEC is not as documented.
    """
    if not environment.get(VARIABLE):
        return None
    found = read_object(environment, VARIABLE)
    pools = _field(found, "cluster")
    addresses = {POOLS[pool]: _addresses(pools, pool) for pool in POOLS if pools.get(pool)}
    task = _task(_field(found, "task"), addresses)
    alone = sum(map(len, addresses.values())) == 1
    serving = {} if alone else {role: each for role, each in addresses.items() if role is not Role.EVALUATOR}
    return Place(task, ClusterSpec.from_lists(**serving), ENGINE)


def _field(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = found.get(name)
    if not isinstance(value, dict):
        raise SpecError(f'{VARIABLE} in the environment: expected an object "{name}", found {value!r:.80}')
    return value


def _addresses(pools: Mapping[str, Any], pool: str) -> list[str]:
    value = pools[pool]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise SpecError(
            f"{VARIABLE} in the environment, {pool}: expected a list of host:port, found {value!r:.80}"
        )
    for address in value:
        if problem := address_problem(address):
            raise SpecError(f"{VARIABLE} in the environment, {pool}: {problem}")
    return value


def _task(task: Mapping[str, Any], addresses: Mapping[Role, list[str]]) -> TaskId:
    pool, index = task.get("type"), task.get("index")
    if pool not in POOLS or not isinstance(index, int) or isinstance(index, bool):
        raise SpecError(
            f'{VARIABLE} in the environment, "task": expected a type of {", ".join(POOLS)} and an index, '
            f"found {pool!r:.80} and {index!r:.80}"
        )
    role = POOLS[pool]
    if not 0 <= index < len(addresses.get(role, [])):
        raise SpecError(
            f'{VARIABLE} in the environment: "task" is {pool} {index}, and the pool has '
            f"{len(addresses.get(role, []))} replicas"
        )
    return TaskId(role, index)
