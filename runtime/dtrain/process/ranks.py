"""The place of a task by its number: what an engine says that numbers its tasks or its hosts, and no more.

Open MPI, PMI, PMIx, Flux, LSF and PBS number the tasks that they start:

    OMPI_COMM_WORLD_RANK=3  OMPI_COMM_WORLD_SIZE=4  OMPI_COMM_WORLD_LOCAL_RANK=1

No variable of theirs has the hosts of all tasks. Those are the job's, where PBS, LSF or Slurm has started it,
or the `hosts` of the spec; tasks are then on one host after the other, which the number of a task on its host
proves. Or the spec writes addresses. Sources: "Environment variables set for MPI applications" of Open MPI;
"Using the Hydra Process Manager" of MPICH; flux-environment(7); "Environment variables set for job execution"
and blaunch(1) of LSF; "Environment variables" and pbsdsh(1B) of PBS.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.cluster.hosts import HOSTS_MAX, expand_counts, expand_hosts
from dtrain.config import ClusterSection, Host
from dtrain.errors import SpecError
from dtrain.formats.bounded_reading import read_regular

ORDER = (Role.CHIEF, Role.PS, Role.WORKER, Role.EVALUATOR)
"""The order in which tasks take the hosts of an engine that numbers them."""


class EngineTask(msgspec.Struct, frozen=True):
    """One task in its cluster, as an engine says.

    Attributes:
        task: which one it is.
        cluster: where all tasks are; empty for a task that trains alone.
        engine: the engine's name, for messages.
        serves_at: where it serves, if the cluster cannot say it.
    """

    task: TaskId
    cluster: ClusterSpec
    engine: str
    serves_at: str | None = None


def default_counts(hosts: int) -> ClusterSection:
    """Return the tasks of so many hosts where no spec says: a chief, a server, and workers."""
    return ClusterSection(chief=1, ps=int(hosts > 1), worker=max(0, hosts - 2))


def place_by_number(
    engine: str,
    number: int,
    addresses: Sequence[str],
    counts: ClusterSection | None,
    first: TaskId | None = None,
) -> EngineTask:
    """Return the place of the task on host `number`: chief, servers, workers, evaluator, in this order.

    Args:
        engine: its name, for messages.
        number: of this task's host, from 0.
        addresses: ``host:port`` of every task, by number.
        counts: how many tasks of each role there are; None: see `default_counts`.
        first: the task on host 0, where it is not the chief; the others keep their order behind it.

    Raises:
        SpecError: there are more or fewer tasks than hosts, or no host of this number.
    """
    if not 0 <= number < len(addresses):
        raise SpecError(
            f"{engine} says that this is task {number} of {len(addresses)}, which are 0 to "
            f"{len(addresses) - 1}"
        )
    counts = counts or default_counts(len(addresses))
    tasks = [TaskId(role, index) for role in ORDER for index in range(counts.count(role))]
    tasks.sort(key=lambda task: task != first)
    if len(tasks) != len(addresses):
        raise SpecError(
            f"{engine} has started {len(addresses)} tasks, and the spec has {len(tasks)}: {counts}; expected "
            "one task of the spec for each"
        )
    jobs: dict[Role, dict[int, str]] = {}
    for task, address in zip(tasks, addresses, strict=True):
        if task.role is not Role.EVALUATOR and len(addresses) > 1:
            jobs.setdefault(task.role, {})[task.index] = address
    return EngineTask(tasks[number], ClusterSpec(jobs), engine)


class EngineFacts(msgspec.Struct, frozen=True):
    """The facts from which an engine's place is found; see `dtrain.process.engines.find_place`."""

    environment: Mapping[str, str]
    counts: ClusterSection | None
    hosts: Sequence[Host]
    own_host: Callable[[str | None], str]


PORT = 2222
FIRST_PORT = 20_000
PORTS_OF_JOB = 100
JOBS = 400
"""How many jobs have different ports: together with the ports of a job they end at 60000."""
_NODE_FILE_BYTES = 1 << 24
_REMEDY = (
    "name them in the order of the tasks, as `--set hosts=h1:2,h2:2`, or write addresses in the spec, as "
    "cluster: {chief: ['h1:2222'], worker: ['h2:2222']}"
)


class Ranks(msgspec.Struct, frozen=True):
    """An engine whose `variable` is the number of a task, and that names no hosts.

    Attributes:
        size: the variable that says how many tasks there are; empty: none does.
        local: variables that say the number of the task on its host.
        first: the number of the first task.
    """

    name: str
    variable: str
    size: str = ""
    local: tuple[str, ...] = ()
    first: int = 0

    def place(self, known: EngineFacts) -> EngineTask:
        """Return the task's place: by the addresses of the spec, else on its hosts, else on those of the job.

        Raises:
            SpecError: a variable is not as documented, nothing names the hosts, or they are others.
        """
        environment, counts = known.environment, known.counts
        number = number_of(environment, self.variable) - self.first
        if written := _written_addresses(counts):
            return place_by_number(self.name, number, written, counts)
        slots, first_port = [host.host for host in known.hosts for _ in range(host.slots or 1)], PORT
        if not slots:
            slots, first_port = _slots_of_job(environment)
        if not slots:
            what = f"{self.name} says that this is task {number}, and nothing names the hosts"
            raise SpecError(f"{what}: {_REMEDY}")
        said = environment.get(self.size)
        placed = self._placed(slots, number_of(environment, self.size, HOSTS_MAX) if said else len(slots))
        addresses = side_by_side(placed, range(first_port, first_port + len(placed)))
        found = place_by_number(self.name, number, addresses, counts)
        self._check(environment, number, int(addresses[number].rpartition(":")[2]) - first_port)
        return found

    def _placed(self, slots: list[str], tasks: int) -> list[str]:
        """Return the host of each task: one a slot, or the same number on each host."""
        hosts = list(dict.fromkeys(slots))
        if tasks == len(slots):
            return slots
        if tasks % len(hosts) == 0:
            return [host for host in hosts for _ in range(tasks // len(hosts))]
        had = f"the hosts have {len(slots)} slots on {len(hosts)} hosts"
        raise SpecError(f"{self.name} has started {tasks} tasks, and {had}: {_REMEDY}")

    def _check(self, environment: Mapping[str, str], number: int, local: int) -> None:
        said = next((environment[name] for name in self.local if environment.get(name)), str(local))
        if said != str(local):
            raise SpecError(
                f"{self.name} says that task {number} is number {said} on its host, and host after host it "
                f"would be number {local}: start the tasks in this order (mpirun --map-by slot), or {_REMEDY}"
            )


def _written_addresses(section: ClusterSection | None) -> list[str]:
    """Return the addresses of all tasks in their order, if a spec writes them; the evaluator needs none."""
    values = [getattr(section, role) for role in ORDER[:-1]] if section is not None else []
    if section is None or any(isinstance(value, int) and value for value in values):
        return []
    addresses = [address for value in values if value for address in value]
    return [*addresses, *(["evaluator.invalid:1"] * section.count(Role.EVALUATOR) if addresses else [])]


def _slots_of_job(environment: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the host of each slot of the job, and the first port of its tasks, by the job's number."""
    hosts, counts, job = [], "", ""
    if path := environment.get("PBS_NODEFILE"):
        job = "PBS_JOBID"
        try:
            hosts = read_regular(Path(path), _NODE_FILE_BYTES).decode().split()
        except (OSError, ValueError):  # it is there on the first host alone
            return [], 0
    elif words := environment.get("LSB_MCPU_HOSTS", "").split():
        hosts, counts, job = words[::2], ",".join(words[1::2]), "LSB_JOBID"
    elif nodes := environment.get("SLURM_JOB_NODELIST"):
        hosts, counts, job = expand_hosts(nodes), environment.get("SLURM_TASKS_PER_NODE", ""), "SLURM_JOB_ID"
    numbers = expand_counts(counts or f"1(x{len(hosts)})")
    slots = [host for host, count in zip(hosts, numbers, strict=False) for _ in range(count)]
    return slots, FIRST_PORT + zlib.crc32(environment.get(job, "").encode()) % JOBS * PORTS_OF_JOB


def side_by_side(hosts: Sequence[str], ports: Sequence[int]) -> list[str]:
    """Return the address of each task by its host; the tasks of one host have ports next to each other."""
    used: Counter[str] = Counter()
    addresses = []
    for host in hosts:
        addresses.append(f"{f'[{host}]' if ':' in host else host}:{ports[used[host]]}")
        used[host] += 1
    return addresses


def number_of(environment: Mapping[str, str], name: str, largest: int = 10**12) -> int:
    value = environment.get(name, "")
    if not value.isdecimal() or len(value) > 13 or int(value) > largest:
        found = f"found {value[:80]!r}, at most {largest}"
        raise SpecError(f"{name} in the environment: expected a number, {found}")
    return int(value)
