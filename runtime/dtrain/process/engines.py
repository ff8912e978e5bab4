"""The place of a task in its cluster, as the engine that has started it says: one table, `ENGINES`.

Each row is a pure function of the environment, and of the counts and hosts of a spec where the engine knows
no roles, or no hosts.

Vertex AI gives CLUSTER_SPEC to every replica of a custom job:

    {"cluster": {"workerpool0": ["cmle-training-workerpool0-ab-0:2222"], "workerpool1": [...]},
     "task": {"type": "workerpool1", "index": 0, "trial": "..."}, "environment": "cloud", "job": {...}}

Pool 0 is the chief, pool 1 workers, pool 2 parameter servers, pool 3 the evaluator; a pool may be empty.
Source: "Distributed training" and "CLUSTER_SPEC format" in the documentation of Vertex AI.

SageMaker has variables of its training toolkit, one task a host:

    SM_HOSTS='["algo-1", "algo-2", "algo-3"]'  SM_CURRENT_HOST=algo-2

Its names of hosts may resolve only seconds after the start. Source: ENVIRONMENT_VARIABLES.md of
aws/sagemaker-training-toolkit.

Slurm's `srun` gives its variables to every task of a step:

    SLURM_PROCID=3  SLURM_STEP_NODELIST=n[01-02]  SLURM_STEP_TASKS_PER_NODE=2(x2)

Tasks of one node get ports next to each other: those that the step has reserved (`srun --resv-ports`), else
from a base that follows from the job's number, so that two jobs on one node rarely meet. Source: the manual
page srun(1), "OUTPUT ENVIRONMENT VARIABLES".

Open MPI, PMI, PMIx, Flux, LSF and PBS number the tasks that they start, and name no hosts
(`dtrain.process.ranks`).

SkyPilot runs a task on each node of its cluster:

    SKYPILOT_NODE_RANK=1  SKYPILOT_NODE_IPS="10.0.0.7
    10.0.0.8"

Source: "Environment variables" in the documentation of SkyPilot.

Kubernetes runs pods of an Indexed Job, of which each role of the cluster has one:

    DTRAIN_ROLE=worker  JOB_COMPLETION_INDEX=2

The job's manifest sets DTRAIN_ROLE, and its spec writes the addresses: the stable names of pods behind a
headless Service. Source: "Indexed Job" in the documentation of Kubernetes.

AWS Batch runs nodes of a multi-node parallel job, which has one container a node:

    AWS_BATCH_JOB_NODE_INDEX=2  AWS_BATCH_JOB_NUM_NODES=4  AWS_BATCH_JOB_MAIN_NODE_INDEX=0
    AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.7      (not on the main node)

A node is told only the address of the main node. So the main node is ps:0, which every task asks, and the
other servers tell it where they serve (docs/design/protocol.md#no-silent-wait). Tasks that only train serve
nowhere. Source: "Multi-node parallel jobs" in the documentation of AWS Batch, "Environment variables".
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.cluster.hosts import HOSTS_MAX, PARTS_MAX, expand_counts, expand_hosts
from dtrain.config import ClusterSection, Host, address_problem
from dtrain.errors import SpecError
from dtrain.process.ranks import (
    FIRST_PORT,
    JOBS,
    PORT,
    PORTS_OF_JOB,
    EngineFacts,
    EngineTask,
    Ranks,
    default_counts,
    number_of,
    place_by_number,
    side_by_side,
)

VERTEX_SPEC = "CLUSTER_SPEC"
VERTEX_CHECKPOINTS = "AIP_CHECKPOINT_DIR"
"""Where a job keeps checkpoints, as a URL: it goes on from there when it is started again."""
VERTEX_MODEL = "AIP_MODEL_DIR"
"""The folder in which a job's model is looked for after its end, as a URL."""
VERTEX_LOGS = "AIP_TENSORBOARD_LOG_DIR"
"""The folder from which TensorBoard shows a job, as a URL."""
VERTEX = "Vertex AI"
POOLS = {
    "workerpool0": Role.CHIEF,
    "workerpool1": Role.WORKER,
    "workerpool2": Role.PS,
    "workerpool3": Role.EVALUATOR,
}


def vertex_place(environment: Mapping[str, str]) -> EngineTask:
    """Return this task's place in the pools of a custom job.

    Raises:
        SpecError: CLUSTER_SPEC is not as documented.
    """
    found = read_object(environment, VERTEX_SPEC)
    pools = _vertex_field(found, "cluster")
    addresses = {POOLS[pool]: _pool_addresses(pools, pool) for pool in POOLS if pools.get(pool)}
    task = _pool_task(_vertex_field(found, "task"), addresses)
    alone = sum(map(len, addresses.values())) == 1
    serving = {} if alone else {role: each for role, each in addresses.items() if role is not Role.EVALUATOR}
    return EngineTask(task, ClusterSpec.from_lists(**serving), VERTEX)


def _vertex_field(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = found.get(name)
    if not isinstance(value, dict):
        raise SpecError(f'{VERTEX_SPEC} in the environment: expected an object "{name}", found {value!r:.80}')
    return value


def _pool_addresses(pools: Mapping[str, Any], pool: str) -> list[str]:
    value = pools[pool]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise SpecError(
            f"{VERTEX_SPEC} in the environment, {pool}: expected a list of host:port, found {value!r:.80}"
        )
    for address in value:
        if problem := address_problem(address):
            raise SpecError(f"{VERTEX_SPEC} in the environment, {pool}: {problem}")
    return value


def _pool_task(task: Mapping[str, Any], addresses: Mapping[Role, list[str]]) -> TaskId:
    pool, index = task.get("type"), task.get("index")
    if pool not in POOLS or not isinstance(index, int) or isinstance(index, bool):
        raise SpecError(
            f'{VERTEX_SPEC} in the environment, "task": expected a type of {", ".join(POOLS)} and an index, '
            f"found {pool!r:.80} and {index!r:.80}"
        )
    role = POOLS[pool]
    if not 0 <= index < len(addresses.get(role, [])):
        raise SpecError(
            f'{VERTEX_SPEC} in the environment: "task" is {pool} {index}, and the pool has '
            f"{len(addresses.get(role, []))} replicas"
        )
    return TaskId(role, index)


SM_HOSTS = "SM_HOSTS"
CURRENT_HOST = "SM_CURRENT_HOST"
SAGEMAKER = "SageMaker"


def sagemaker_place(environment: Mapping[str, str], counts: ClusterSection | None) -> EngineTask:
    """Return this task's place among the hosts of a training job.

    Args:
        environment: the variables.
        counts: how many tasks of each role there are; see `place_by_number`.

    Raises:
        SpecError: the variables are not as documented, or the spec has another number of tasks.
    """
    # The order of the list is not promised; the numbers in the names are.
    hosts = sorted(read_texts(environment, SM_HOSTS), key=lambda host: (len(host), host))
    current = environment.get(CURRENT_HOST, "")
    if current not in hosts:
        raise SpecError(
            f"{CURRENT_HOST} in the environment: expected one of {', '.join(hosts)}, found {current[:80]!r}"
        )
    addresses = [f"{host}:{PORT}" for host in hosts]
    return place_by_number(SAGEMAKER, hosts.index(current), addresses, counts)


PROCID = "SLURM_PROCID"
STEP_TASKS = "SLURM_STEP_NUM_TASKS"
NODELISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
TASKS_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
JOB_ID = "SLURM_JOB_ID"
RESV_PORTS = "SLURM_STEP_RESV_PORTS"
DISTRIBUTION = "SLURM_DISTRIBUTION"
HET_SIZE = "SLURM_HET_SIZE"
"""The number of parts of a heterogeneous job, whose tasks are numbered part after part."""
SLURM = "Slurm"


def slurm_place(environment: Mapping[str, str], counts: ClusterSection | None) -> EngineTask | None:
    """Return this task's place; None where something else than `srun` has started it, inside of its step.

    Args:
        environment: the variables.
        counts: how many tasks of each role there are; see `place_by_number`.

    Raises:
        SpecError: a variable is missing or not as documented, tasks are distributed over nodes in a way whose
            order is not known, or the spec has another number of tasks.
    """
    if environment.get("PMI_SIZE", in_step := environment.get(STEP_TASKS)) != in_step:
        return None
    number = number_of(environment, PROCID)
    nodes = expand_hosts(_first(environment, NODELISTS))
    tasks = expand_counts(_first(environment, TASKS_PER_NODE))
    if len(tasks) != len(nodes):
        raise SpecError(f"Slurm names {len(nodes)} nodes and the tasks of {len(tasks)}; expected as many")
    ports = _slurm_ports(environment, max(tasks))
    distribution = environment.get(DISTRIBUTION, "block")
    parts = _parts(environment, nodes)
    placed = [nodes[node] for part in parts for node in _nodes_of_tasks(tasks, part, distribution)]
    return place_by_number(SLURM, number, side_by_side(placed, ports), counts)


def _parts(environment: Mapping[str, str], nodes: Sequence[str]) -> list[Sequence[int]]:
    """Return the places of each part's nodes among a step's; only heterogeneous jobs have several parts.

    A step may be over some of the parts (`srun --het-group`). Slurm sorts its nodes, whatever their parts.
    """
    parts: list[Sequence[int]] = []
    places = {node: place for place, node in enumerate(nodes)}
    room = HOSTS_MAX
    for part in range(number_of(environment, HET_SIZE, PARTS_MAX) if environment.get(HET_SIZE) else 0):
        names = expand_hosts(environment.get(f"{NODELISTS[1]}_HET_GROUP_{part}", ""), room)
        room -= len(names)
        if places.keys() >= set(names):
            parts.append([places[name] for name in names])
    whole = sorted(place for part in parts for place in part) == list(range(len(nodes)))
    return parts if whole else [range(len(nodes))]


def _nodes_of_tasks(tasks: Sequence[int], part: Sequence[int], distribution: str) -> list[int]:
    """Return the node of each task of a part, by number: node after node, or one of each in turn."""
    kind = distribution.split(":")[0].split(",")[0]
    if kind == "block":
        return [node for node in part for _ in range(tasks[node])]
    if kind == "cyclic":
        return [node for turn in range(max(tasks)) for node in part if turn < tasks[node]]
    raise SpecError(
        f"{DISTRIBUTION} in the environment is {distribution[:80]!r}; expected block or cyclic, of which the "
        "order of tasks is known: start the step with `srun --distribution=block`"
    )


def _slurm_ports(environment: Mapping[str, str], tasks: int) -> Sequence[int]:
    reserved = environment.get(RESV_PORTS)
    if reserved:
        ports = [int(port) for port in expand_hosts(f"[{reserved}]")]
        if len(ports) >= tasks:
            return ports
        raise SpecError(
            f"{RESV_PORTS} in the environment: expected a port for each of {tasks} tasks of a node, found "
            f"{reserved[:80]}"
        )
    if tasks > PORTS_OF_JOB:
        raise SpecError(f"Slurm runs {tasks} tasks on one node; expected at most {PORTS_OF_JOB}")
    first = FIRST_PORT + number_of(environment, JOB_ID) % JOBS * PORTS_OF_JOB
    return range(first, first + tasks)


def _first(environment: Mapping[str, str], names: Sequence[str], of: str = PROCID) -> str:
    for name in names:
        if value := environment.get(name):
            return value
    started = "; start the task with srun" if of == PROCID else ""
    raise SpecError(f"{of} is in the environment, and {names[0]} is not{started}")


SKYPILOT_RANK = "SKYPILOT_NODE_RANK"
SKYPILOT_IPS = "SKYPILOT_NODE_IPS"
SKYPILOT = "SkyPilot"


def skypilot_place(environment: Mapping[str, str], counts: ClusterSection | None) -> EngineTask:
    """Return this task's place among the nodes of a cluster.

    Raises:
        SpecError: the variables are not as documented, or the spec has another number of tasks.
    """
    number = number_of(environment, SKYPILOT_RANK, HOSTS_MAX)
    addresses = [f"{ip}:{PORT}" for ip in _first(environment, (SKYPILOT_IPS,), SKYPILOT_RANK).split()]
    for problem in filter(None, map(address_problem, addresses)):
        raise SpecError(f"{SKYPILOT_IPS} in the environment: {problem}")
    return place_by_number(SKYPILOT, number, addresses, counts)


POD_INDEX = "JOB_COMPLETION_INDEX"
ROLE = "DTRAIN_ROLE"
KUBERNETES = "Kubernetes"


def indexed_job_place(environment: Mapping[str, str], section: ClusterSection | None) -> EngineTask:
    """Return this task's place among the pods of an Indexed Job a role.

    Args:
        environment: the variables.
        section: the spec's, which writes addresses.

    Raises:
        SpecError: the role is missing or wrong, or the spec has no address for the task.
    """
    index = number_of(environment, POD_INDEX, 10**9)
    role = environment.get(ROLE, "")
    if role not in set(Role):
        raise SpecError(
            f"{POD_INDEX} is in the environment: expected {ROLE} beside it, one of {', '.join(Role)}, found "
            f"{role[:80]!r}"
        )
    jobs: dict[str, tuple[str, ...]] = {}
    for name in Role if section is not None else ():
        value = getattr(section, name)
        if isinstance(value, tuple):
            jobs[name] = value
        elif value and name is not Role.EVALUATOR:
            raise SpecError(
                f"cluster.{name}: in an Indexed Job expected the addresses of its pods, found {value}"
            )
    task = TaskId(Role(role), index)
    cluster = ClusterSpec.from_lists(**{name: each for name, each in jobs.items() if name != Role.EVALUATOR})
    if task not in cluster and task != TaskId(Role.EVALUATOR, 0):
        raise SpecError(
            f"{ROLE} and {POD_INDEX} in the environment say {task}, and the spec has no address for it"
        )
    return EngineTask(task, cluster, KUBERNETES)


NODE = "AWS_BATCH_JOB_NODE_INDEX"
NODES = "AWS_BATCH_JOB_NUM_NODES"
MAIN_NODE = "AWS_BATCH_JOB_MAIN_NODE_INDEX"
MAIN_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
AWS_BATCH = "AWS Batch"


def aws_batch_place(
    environment: Mapping[str, str],
    counts: ClusterSection | None,
    own_host: Callable[[str | None], str],
) -> EngineTask:
    """Return this task's place among the nodes of a multi-node parallel job.

    Args:
        environment: the variables.
        counts: how many tasks of each role there are; None: see `default_counts`.
        own_host: returns the address of this machine that a peer reaches, of which the address is given if
            one is known.

    Raises:
        SpecError: the variables are not as documented; or there are no servers, of which the first is the
            node that all others know.
    """
    number, nodes, main = (number_of(environment, name, HOSTS_MAX) for name in (NODE, NODES, MAIN_NODE))
    if not (number < nodes and main < nodes):
        raise SpecError(f"{NODE} and {MAIN_NODE} in the environment: expected numbers below {NODES}, {nodes}")
    counts = counts or default_counts(nodes)
    if nodes > 1 and counts.count(Role.PS) == 0:
        raise SpecError(
            f"on {AWS_BATCH} a node is told only the address of the main node, which is ps:0: expected a "
            f"cluster with ps tasks, found {counts}"
        )
    given = environment.get(MAIN_ADDRESS)
    if number != main and not given:
        raise SpecError(
            f"{MAIN_ADDRESS} is not in the environment of node {number}, which is not the main one"
        )
    host = given if number != main and given else own_host(None)
    # The main node's is the first task; no host has the names of the others, which all nodes write alike.
    order = [main, *(node for node in range(nodes) if node != main)]
    addresses = [f"{host if node == main else f'node-{node}.invalid'}:{PORT}" for node in order]
    found = place_by_number(AWS_BATCH, order.index(number), addresses, counts, TaskId(Role.PS, 0))
    if found.task.role is Role.PS and number != main:
        return replace(found, serves_at=f"{own_host(given)}:{PORT}")
    return found


def read_object(environment: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return the object that a variable holds.

    Raises:
        SpecError: the variable holds none.
    """
    value = _read(environment[name], name)
    if not isinstance(value, dict):
        raise SpecError(f"{name} in the environment: expected an object in braces, found {_shown(value)}")
    return value


def read_texts(environment: Mapping[str, str], name: str) -> list[str]:
    """Return the list of texts that a variable holds.

    Raises:
        SpecError: the variable holds none, or an empty one.
    """
    value = _read(environment[name], name)
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        raise SpecError(f"{name} in the environment: expected a list of names, found {_shown(value)}")
    return value


def _read(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{name} in the environment is not JSON: {str(error)[:200]}") from None


def _shown(value: Any) -> str:
    return json.dumps(value)[:80]


class Engine(msgspec.Struct, frozen=True):
    """An engine that is asked where its `variable` is set; `place` is a function of what is known."""

    name: str
    variable: str
    place: Callable[[EngineFacts], EngineTask | None]


ENGINES: tuple[Engine | Ranks, ...] = (
    Engine(VERTEX, VERTEX_SPEC, lambda known: vertex_place(known.environment)),
    Ranks("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_RANK",)),
    Ranks("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", ("FLUX_TASK_LOCAL_ID",)),
    Engine(SLURM, PROCID, lambda known: slurm_place(known.environment, known.counts)),
    Ranks("PMI", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK")),
    Ranks("PMIx", "PMIX_RANK"),
    Engine(SAGEMAKER, SM_HOSTS, lambda known: sagemaker_place(known.environment, known.counts)),
    Ranks("LSF", "LSF_PM_TASKID", "LSB_DJOB_NUMPROC", first=1),
    Ranks("PBS", "PBS_NODENUM"),
    Engine(SKYPILOT, SKYPILOT_RANK, lambda known: skypilot_place(known.environment, known.counts)),
    Engine(KUBERNETES, POD_INDEX, lambda known: indexed_job_place(known.environment, known.counts)),
    Engine(AWS_BATCH, NODE, lambda known: aws_batch_place(known.environment, known.counts, known.own_host)),
)
"""The engines, an inner one before the outer one: in a pod, mpirun or srun may start tasks."""
EXPECTED = "TF_CONFIG, " + ", ".join(f"{engine.variable} ({engine.name})" for engine in ENGINES)
"""The variables that are looked for, for messages."""


def find_place(
    environment: Mapping[str, str],
    section: ClusterSection | None,
    own_host: Callable[[str | None], str],
    hosts: Sequence[Host] = (),
) -> EngineTask | None:
    """Return the place that an engine gives to this task; None where no engine says anything.

    Args:
        environment: the variables.
        section: the spec's tasks; None without a spec.
        own_host: see `aws_batch_place`; asked there alone.
        hosts: the spec's, for engines that name none.

    Raises:
        SpecError: an engine's variables are wrong, or contradict the spec.
    """
    known = EngineFacts(environment, section, hosts, own_host)
    asked = (engine.place(known) for engine in ENGINES if environment.get(engine.variable))
    return next((place for place in asked if place is not None), None)
