"""Slurm: the variables that `srun` gives to every task of a step.

    SLURM_PROCID=3  SLURM_STEP_NODELIST=n[01-02]  SLURM_STEP_TASKS_PER_NODE=2(x2)

Tasks of one node get ports next to each other: those that the step has reserved (`srun --resv-ports`), else
from a base that follows from the job's number, so that two jobs on one node rarely meet. Source: the manual
page srun(1), "OUTPUT ENVIRONMENT VARIABLES".
"""

from collections.abc import Mapping, Sequence

from dtrain.cluster.host_lists import HOSTS_MAX, PARTS_MAX, expand_counts, expand_hosts
from dtrain.config import ClusterSection
from dtrain.errors import SpecError
from dtrain.process.engines.place import Place, place_by_number

NUMBER = "SLURM_PROCID"
NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
TASKS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
JOB = "SLURM_JOB_ID"
PORTS = "SLURM_STEP_RESV_PORTS"
DISTRIBUTION = "SLURM_DISTRIBUTION"
PARTS = "SLURM_HET_SIZE"
"""The number of parts of a heterogeneous job, whose tasks are numbered part after part."""
ENGINE = "Slurm"
FIRST_PORT = 20_000
PORTS_OF_JOB = 100
JOBS = 400
"""How many jobs have different ports: together with the ports of a job they end at 60000."""


def place(environment: Mapping[str, str], counts: ClusterSection | None) -> Place | None:
    """Return this task's place; None where `srun` has not started it.

    Args:
        environment: the variables.
        counts: how many tasks of each role there are; see `place_by_number`.

    Raises:
        SpecError: a variable is missing or not as documented, tasks are distributed over nodes in a way whose
            order is not known, or the spec has another number of tasks.
    """
    if not environment.get(NUMBER):
        return None
    number = _number(environment, NUMBER)
    nodes = expand_hosts(_first(environment, NODES))
    tasks = expand_counts(_first(environment, TASKS))
    if len(tasks) != len(nodes):
        raise SpecError(f"Slurm names {len(nodes)} nodes and the tasks of {len(tasks)}; expected as many")
    ports = _ports(environment, max(tasks))
    used = [0] * len(nodes)
    addresses = []
    distribution = environment.get(DISTRIBUTION, "block")
    parts = _parts(environment, nodes)
    for node in (node for part in parts for node in _nodes_of_tasks(tasks, part, distribution)):
        addresses.append(f"{nodes[node]}:{ports[used[node]]}")
        used[node] += 1
    return place_by_number(ENGINE, number, addresses, counts)


def _parts(environment: Mapping[str, str], nodes: Sequence[str]) -> list[Sequence[int]]:
    """Return the places of each part's nodes among a step's; only heterogeneous jobs have several parts.

    A step may be over some of the parts (`srun --het-group`). Slurm sorts its nodes, whatever their parts.
    """
    parts: list[Sequence[int]] = []
    places = {node: place for place, node in enumerate(nodes)}
    room = HOSTS_MAX
    for part in range(_number(environment, PARTS, PARTS_MAX) if environment.get(PARTS) else 0):
        names = expand_hosts(environment.get(f"{NODES[1]}_HET_GROUP_{part}", ""), room)
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


def _ports(environment: Mapping[str, str], tasks: int) -> Sequence[int]:
    reserved = environment.get(PORTS)
    if reserved:
        ports = [int(port) for port in expand_hosts(f"[{reserved}]")]
        if len(ports) >= tasks:
            return ports
        raise SpecError(
            f"{PORTS} in the environment: expected a port for each of {tasks} tasks of a node, found "
            f"{reserved[:80]}"
        )
    if tasks > PORTS_OF_JOB:
        raise SpecError(f"Slurm runs {tasks} tasks on one node; expected at most {PORTS_OF_JOB}")
    first = FIRST_PORT + _number(environment, JOB) % JOBS * PORTS_OF_JOB
    return range(first, first + tasks)


def _first(environment: Mapping[str, str], names: Sequence[str]) -> str:
    for name in names:
        if value := environment.get(name):
            return value
    raise SpecError(f"{NUMBER} is in the environment, and {names[0]} is not; start the task with srun")


def _number(environment: Mapping[str, str], name: str, largest: int = 10**12) -> int:
    value = environment.get(name, "")
    if not value.isdecimal() or len(value) > 12 or int(value) > largest:
        found = f"found {value[:80]!r}, at most {largest}"
        raise SpecError(f"{name} in the environment: expected a number, {found}")
    return int(value)
