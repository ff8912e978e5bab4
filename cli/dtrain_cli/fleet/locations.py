"""The host and the address of every task of a fleet, and the order that starts it there. Pure."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dtrain.cluster import TRAINING_ROLES, ClusterSpec, Role, TaskId
from dtrain.cluster.hosts import is_loopback
from dtrain.config import ClusterSection, Host
from dtrain.config.targets import Places
from dtrain.process.assignment import BIND, RUN_DIR
from dtrain_cli.fleet.link import HostError
from dtrain_cli.placement import place
from dtrain_cli.plan.run_plan import TaskLaunch

_SERVING = (Role.CHIEF, Role.WORKER, Role.PS)


class Locations:
    """The hosts, addresses and ports of one run's tasks.

    `replaced` has the hosts that were lost, each with the spare host that has all of its tasks.
    """

    def __init__(self, hosts: Sequence[Host], replaced: Mapping[str, str]) -> None:
        self._all = {host.host: host for host in hosts}
        self.replaced = dict(replaced)
        self.hosts = [host for host in hosts if host.host not in replaced]
        self._placed: dict[TaskId, Host] = {}
        self._folders: dict[str, TaskId] = {}
        self._address: dict[TaskId, str] = {}
        self.addresses: dict[str, str] = {}

    def assign(self, cluster: ClusterSection, places: Places) -> None:
        """Assign every task to a host; raise a `SpecError` if they have no room."""
        placed = place(cluster, list(self._all.values()), places)
        self._placed = {task: self._in_place_of(host) for task, host in placed.items()}
        self._folders = {f"{task.role}-{task.index}": task for task in self._placed}

    @property
    def leader(self) -> TaskId:
        """The chief, or worker 0 where there is none."""
        return min(task for task in self._placed if task.role in TRAINING_ROLES)

    @property
    def places(self) -> dict[TaskId, str]:
        return {task: host.host for task, host in self._placed.items()}

    def host_of(self, task: TaskId) -> str:
        return self._placed[task].host

    def _in_place_of(self, host: Host) -> Host:
        while (spare := self.replaced.get(host.host)) is not None:
            host = self._all[spare]
        return host

    def port_of(self, task: TaskId) -> int:
        return int(self._address[task].rpartition(":")[2]) if task in self._address else 0

    def tasks_of(self, host: str) -> list[TaskId]:
        return [task for task, where in self._placed.items() if where.host == host]

    def training_on(self, host: str) -> int:
        return sum(task.role in TRAINING_ROLES for task in self.tasks_of(host))

    def may_write(self, host: str, path: str) -> bool:
        """Return whether a host may write a file of the run directory.

        A host may write the files of its own tasks. The leader's host may also write those of the run and of
        workers that have joined, and the requests to kill servers. Without servers, every replica may come to
        lead.
        """
        folder = path.removeprefix("tasks/").partition("/")[0]
        kills = path.endswith("kill.json")
        if folder in self._folders and not kills:
            return self.host_of(self._folders[folder]) == host
        if any(task.role is Role.PS for task in self._placed):
            return self.host_of(self.leader) == host
        return not kills and self.training_on(host) > 0

    def check_addresses(self) -> None:
        """Refuse addresses of which only some are loopback: the other hosts cannot reach these."""
        own = {
            host: address for host, address in self.addresses.items() if is_loopback(host_port(address, 1))
        }
        if own and len(own) < len(self.addresses):
            host, address = next(iter(own.items()))
            raise HostError(
                f"{host}: the login came in on {address}, which no other host can reach; write its address "
                f"in the spec as `hosts: [{{host: {host}, address: ...}}]`, or give `network.interface`"
            )

    def wanted(self, cluster: ClusterSection) -> dict[str, list[int]]:
        """Return the ports that each host is to hold; 0 for any."""
        written = self._written(cluster)
        ports: dict[str, list[int]] = {}
        for task in self._serving(cluster):
            ports.setdefault(self.host_of(task), []).append(written.get(task, 0))
        return ports

    def assign_ports(self, cluster: ClusterSection, held: Mapping[str, Sequence[int]]) -> ClusterSpec:
        """Give every task a port that its host holds; raise a `HostError` if a port of the spec is taken."""
        left = {host: list(ports) for host, ports in held.items()}
        written = self._written(cluster)
        for task, port in written.items():
            host = self.host_of(task)
            if port not in left[host]:
                raise HostError(
                    f"{host}: port {port}, which cluster.{task.role}.{task.index} names, is taken"
                )
            left[host].remove(port)
        jobs: dict[str, list[str]] = {}
        for task in self._serving(cluster):
            host, given = self.host_of(task), getattr(cluster, task.role)
            if isinstance(given, int) or host in self.replaced.values():
                address = host_port(self.addresses[host], written.get(task) or left[host].pop(0))
            else:
                address = given[task.index]
            self._address[task] = address
            jobs.setdefault(task.role.value, []).append(address)
        return ClusterSpec.from_lists(**jobs)

    def pairs(self, foreign: bool) -> dict[str, dict[str, str]]:
        """Return, by host, the tasks of other hosts that its own tasks connect to, by address."""
        servers = [task for task in self._address if task.role is Role.PS]
        if foreign or not servers:
            servers = list(self._address)
        return {
            host.host: {
                self._address[task]: str(task) for task in servers if self._placed[task].host != host.host
            }
            for host in self.hosts
            if any(where.host == host.host for where in self._placed.values())
        }

    def serving(self, host: str) -> list[TaskId]:
        return [task for task in self._address if self._placed[task].host == host]

    def replace(self, lost: str, up: Collection[str]) -> str | None:
        """Choose a spare host that is up and has room for all tasks of a lost one; None: there is none."""
        count, busy = len(self.tasks_of(lost)), {*self.replaced.values(), *self.replaced}
        free = (host for host in self.hosts if host.spare and host.host in up and host.host not in busy)
        spare = next((host.host for host in free if (host.slots or count) >= count), None)
        if spare is not None:
            self.replaced[lost] = spare
        return spare

    def _written(self, cluster: ClusterSection) -> dict[TaskId, int]:
        return {
            task: int(given[task.index].rpartition(":")[2])
            for task in self._serving(cluster)
            if not isinstance(given := getattr(cluster, task.role), int)
        }

    def _serving(self, cluster: ClusterSection) -> list[TaskId]:
        return [TaskId(role, index) for role in _SERVING for index in range(cluster.count(role))]


def host_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class RemotePlace(msgspec.Struct, frozen=True):
    """The place of a run on a host, with paths of that host.

    The files of the folder `code` here lie in `cwd` there; None: the paths here are those there.
    """

    run_dir: str
    cwd: str
    executable: str
    code: Path | None = None

    def path_of(self, path: Path) -> str:
        if self.code is None or not path.absolute().is_relative_to(self.code):
            return str(path.absolute())
        return str(Path(self.cwd) / path.absolute().relative_to(self.code))


def launch_there(
    launch: TaskLaunch, there: RemotePlace, secrets: Mapping[str, str], bind: str | None
) -> TaskLaunch:
    """Return a task with the paths of its host; `bind` replaces the cluster's address."""
    program = None if launch.program is None else there.path_of(launch.program)
    command = launch.command
    if program is not None:
        command = (there.executable, "-m", "dtrain.task", program, *launch.arguments)
    more = {} if bind is None else {BIND: bind}
    return replace(
        launch,
        program=program and Path(program),
        command=command,
        environment={**secrets, **launch.environment, RUN_DIR: there.run_dir, **more},
        cwd=Path(there.cwd),
        run_dir=Path(there.run_dir),
    )
