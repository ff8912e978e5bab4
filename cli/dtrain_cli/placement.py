"""The host of each task of a run at the start: rules alone, which neither connect nor look anything up.

The order is fixed: tasks whose host the spec names, then the leader, the evaluator beside it (it reads the
leader's checkpoints), servers and workers. The same spec gives the same placement, so that a restarted
launcher finds its tasks where they were.
"""

from collections.abc import Iterable, Sequence

from dtrain.cluster import Role, TaskId, tasks_text
from dtrain.config import ROLES, ClusterSection, Host, RunSpec, read_hosts
from dtrain.config.targets import PACK, SPREAD, Places
from dtrain.errors import SpecError

_FIRST_HOSTS = "over the first hosts"
_FREE_SLOTS = "by free slots"
_BESIDE_LEADER = "beside the leader"
_DEFAULT = {
    Role.CHIEF: _FIRST_HOSTS,
    Role.PS: _FIRST_HOSTS,
    Role.WORKER: _FREE_SLOTS,
    Role.EVALUATOR: _BESIDE_LEADER,
}
_ORDER = (Role.CHIEF, Role.PS, Role.WORKER, Role.EVALUATOR)
_SHOWN = 8


def place(cluster: ClusterSection, hosts: Sequence[Host], places: Places) -> dict[TaskId, Host]:
    """Return the host of every task of a cluster; a task with an address is where that says.

    Raises a `SpecError` if the tasks have no room, or an address or a rule names a host that is not there.
    """
    tasks = [TaskId(role, index) for role in _ORDER for index in range(cluster.count(role))]
    hosts = [host for host in hosts if not host.spare]
    if not hosts:
        raise SpecError("hosts: expected at least one host, found none (`--hosts h1,h2:4`)")
    room = sum(host.slots or 0 for host in hosts)
    if all(host.slots is not None for host in hosts) and room < len(tasks):
        slots = ", ".join(map(str, hosts[:_SHOWN])) + (", ..." if len(hosts) > _SHOWN else "")
        counts = tasks_text({role: cluster.count(role) for role in ROLES})
        raise SpecError(f"hosts: {len(tasks)} tasks ({counts}) have {room} slots ({slots}); give more")
    slots_of = _Slots(hosts, tasks)
    for task in tasks:
        if (name := _named_host(task, cluster, hosts, places)) is not None:
            slots_of.assign(task, name)
    for task in slots_of.in_turn(tasks):
        if task not in slots_of.placed:
            rule = places if isinstance(places, str) else places.get(task.role.value)
            if not isinstance(rule, str) or (isinstance(places, str) and task.role is Role.EVALUATOR):
                rule = _DEFAULT[task.role]  # a rule for all leaves the evaluator beside the leader
            slots_of.assign_by_rule(task, rule)
    return {task: slots_of.placed[task] for task in tasks}


def hosts_of_addresses(cluster: ClusterSection) -> list[Host]:
    """Return the hosts that a cluster of addresses names by itself, in the order of roles and indices."""
    written = (getattr(cluster, role) for role in _ORDER)
    addresses = (address for given in written if not isinstance(given, int) for address in given)
    return [Host(name) for name in dict.fromkeys(map(_host_part, addresses))]


def hosts_of(spec: RunSpec) -> list[Host]:
    """Return the hosts of a run; raise a `SpecError` if nothing names one."""
    hosts = read_hosts(spec.hosts) if spec.hosts else hosts_of_addresses(spec.cluster)
    if not hosts:
        raise SpecError("hosts: `on: ssh` needs hosts: give `--hosts h1,h2:4`, or `hosts` in the spec")
    return hosts


class _Slots:
    """The hosts, each with the tasks that it has."""

    def __init__(self, hosts: Sequence[Host], tasks: Sequence[TaskId]) -> None:
        self._hosts = {host.host: host for host in hosts}
        self._used = dict.fromkeys(self._hosts, 0)
        self._share = -(-len(tasks) // max(1, len(hosts)))  # what a host without a number of slots counts as
        self._turn = dict.fromkeys((_FIRST_HOSTS, SPREAD), 0)
        self._leader = min((task for task in tasks if task.trains), key=_sort_key, default=None)
        self.placed: dict[TaskId, Host] = {}

    def in_turn(self, tasks: Iterable[TaskId]) -> list[TaskId]:
        def turn(task: TaskId) -> tuple[bool, bool, tuple[int, int]]:
            return task != self._leader, task.role is not Role.EVALUATOR, _sort_key(task)

        return sorted(tasks, key=turn)

    def assign(self, task: TaskId, name: str) -> None:
        host = self._hosts[name]
        if self._full(host):
            why = ", beside the leader whose checkpoints it reads" if task.role is Role.EVALUATOR else ""
            raise SpecError(f"place: {task} has no slot on {name}{why}: {name} has {host.slots} in all")
        self._used[name] += 1
        self.placed[task] = host

    def assign_by_rule(self, task: TaskId, rule: str) -> None:
        free = [name for name, host in self._hosts.items() if not self._full(host)]
        if not free:
            raise SpecError(f"hosts: no slot is left for {task}; give more slots or hosts")
        # The leader was placed before; there is none where no task trains.
        leader = self.placed.get(self._leader) if self._leader is not None else None
        if rule == _BESIDE_LEADER and leader is not None:
            name = leader.host
        elif rule == PACK:
            name = free[0]
        elif rule in (_FREE_SLOTS, _BESIDE_LEADER):
            name = max(free, key=self._free)  # the first of equals
        else:
            name = self._next(task, rule, free)
        self.assign(task, name)

    def _next(self, task: TaskId, rule: str, free: Sequence[str]) -> str:
        """Return the next host in turn that has a slot; servers begin anew at the first host."""
        names = list(self._hosts)
        start = task.index if rule == _FIRST_HOSTS else self._turn[rule]
        turn = next(turn for turn in range(start, start + len(names)) if names[turn % len(names)] in free)
        self._turn[rule] = turn + 1
        return names[turn % len(names)]

    def _full(self, host: Host) -> bool:
        return host.slots is not None and self._used[host.host] >= host.slots

    def _free(self, name: str) -> int:
        slots = self._hosts[name].slots
        return (self._share if slots is None else slots) - self._used[name]


def _sort_key(task: TaskId) -> tuple[int, int]:
    return _ORDER.index(task.role), task.index


def _named_host(task: TaskId, cluster: ClusterSection, hosts: Sequence[Host], places: Places) -> str | None:
    given = getattr(cluster, task.role)
    if not isinstance(given, int):
        part = _host_part(given[task.index])
        found = next((host.host for host in hosts if part in _names(host)), None)
        if found is None:
            raise SpecError(f"cluster: {task} is at {part}, which is none of the hosts")
        return found
    rule = None if isinstance(places, str) else places.get(task.role.value)
    if isinstance(rule, tuple):
        return rule[task.index % len(rule)]
    return None if rule in (None, SPREAD, PACK) else rule


def _names(host: Host) -> tuple[str | None, ...]:
    return host.host, host.host.rpartition("@")[2], host.address


def _host_part(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
