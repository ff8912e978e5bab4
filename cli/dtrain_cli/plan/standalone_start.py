"""Tasks started by hand: who one is and in which cluster, and the lines to type on each host.

The first of these says who it is:

1. the classic flags (`dtrain.process.tensorflow`), before the program or among its arguments
2. a spec that writes addresses 3. the TF_CONFIG of the environment 4. for `dtrain task`, the variables of
the engine that has started it (`dtrain.process.engines`)

The rest of a spec (how to train, when to save) always comes from `--spec` and `--set`.
"""

import json
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec.structs import replace

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.cluster.hosts import is_loopback
from dtrain.config import ClusterSection, RunSpec, read_hosts
from dtrain.errors import SpecError
from dtrain.process.assignment import (
    BIND,
    TF_CONFIG,
    TaskAssignment,
    checked_bind,
    proven_secret,
    run_id_by_hand,
    secret_in_file,
)
from dtrain.process.engines import EXPECTED, VERTEX_CHECKPOINTS, find_place
from dtrain.process.private_variables import SECRET
from dtrain.process.secret import said_secret
from dtrain.process.tensorflow import read_classic_flags, write_tf_config
from dtrain_cli.spec import read_spec

NO_CLUSTER = (
    'TF_CONFIG names no "cluster"; expected "cluster": {"chief": [...], "worker": [...], "ps": '
    '[...]} beside "task"'
)


def place_of_tf_config(
    environment: Mapping[str, str], sets: tuple[str, ...], shortcuts: Mapping[str, Any]
) -> TaskAssignment:
    """Return the task that TF_CONFIG gives to a program, with what the options say of the spec.

    Raise a `SpecError` if TF_CONFIG is wrong, or names no cluster that can train or no task of it.
    """
    assignment = TaskAssignment.from_environment(environment)
    if assignment is None:
        raise SpecError(NO_CLUSTER)
    assignment = StandaloneStart(assignment.task.role, sets=sets, shortcuts=shortcuts).with_spec(assignment)
    for _, problem in assignment.spec.program_problems():
        raise SpecError(f"TF_CONFIG: {problem}")
    return assignment


class StandaloneStart(msgspec.Struct, frozen=True):
    """The command line of `dtrain worker` and its like, and of `dtrain task`.

    Attributes:
        role: the command's name; None for `dtrain task`, which the environment tells its role.
        flags: everything in which classic flags may stand, the strongest last.
        bind: where it listens, if not at its own address.
        foreign: whether any other command than a program of dtrain is to run, which has no secret.
    """

    role: Role | None
    index: int | None = None
    spec: Path | None = None
    sets: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    run_dir: Path | None = None
    bind: str | None = None
    shortcuts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    foreign: bool = False

    def assignment(self, environment: Mapping[str, str]) -> TaskAssignment:
        """Return the task of a cluster that this command is.

        Raise a `SpecError` if nothing says which cluster, if what does is wrong or contradicts the command,
        or if strangers on a network could talk to its tasks.
        """
        assignment = (
            self._assignment(self.role, environment) if self.role else self._place_of_engine(environment)
        )
        spec = assignment.spec.secured(environment)
        secret = secret_in_file(spec.security) or said_secret(environment.get(SECRET))
        if not self.foreign:
            secret = proven_secret(assignment.cluster, secret, spec.security, by_command=True)
        run_dir = self.run_dir.absolute() if self.run_dir else assignment.run_dir
        bind = checked_bind(self.bind, "--bind") or checked_bind(environment.get(BIND), BIND)
        return replace(assignment, spec=spec, run_dir=run_dir, secret=secret, bind=bind)

    def _assignment(self, role: Role, environment: Mapping[str, str]) -> TaskAssignment:
        words = [f"--job_name={role}", f"--task_index={self.index or 0}", *self.flags]
        assignment = self.with_spec(_by_hand(*flags)) if (flags := read_classic_flags(words)) else None
        assignment = assignment or self._by_spec(role) or self._by_environment(environment)
        if assignment is None and TF_CONFIG in environment:
            raise SpecError(NO_CLUSTER)
        if assignment is None:
            raise SpecError(
                f"nothing says which {role} this is, and of which cluster; expected --spec SPEC with "
                "addresses and --index I, or TF_CONFIG in the environment, or --ps_hosts, --worker_hosts and "
                "--task_index"
            )
        if assignment.task.role is not role or self.index not in (None, assignment.task.index):
            asked = role if self.index is None else TaskId(role, self.index)
            raise SpecError(
                f"`dtrain {role}` was asked for {asked}; TF_CONFIG or the flags say {assignment.task}"
            )
        return assignment

    def _place_of_engine(self, environment: Mapping[str, str]) -> TaskAssignment:
        assignment = TaskAssignment.from_environment(environment)
        says_tasks = self.spec is not None or any(text.startswith("cluster.") for text in self.sets)
        says_hosts = any(text.startswith("hosts=") for text in self.sets)
        spec = self._read(self.sets) if says_tasks or says_hosts else RunSpec()
        section, hosts = spec.cluster if says_tasks else None, read_hosts(spec.hosts) if spec.hosts else ()
        place = None if assignment is not None else find_place(environment, section, own_host, hosts)
        if place is not None:
            assignment = _by_hand(place.cluster, place.task) if place.cluster else ALONE
            assignment = replace(assignment, moved_to=place.serves_at) if place.serves_at else assignment
        if assignment is None:
            raise SpecError(f"nothing says which task this is: expected one of {EXPECTED} in the environment")
        placed = self.with_spec(assignment)
        checkpoint = placed.spec.checkpoint
        if checkpoint.remote is None and (remote := environment.get(VERTEX_CHECKPOINTS)):
            checkpoint = replace(checkpoint, remote=remote.rstrip("/"))
            placed = replace(placed, spec=replace(placed.spec, checkpoint=checkpoint))
        return placed

    def _by_spec(self, role: Role) -> TaskAssignment | None:
        if self.spec is None:
            return None
        spec = read_spec(self.spec, self.sets, self.shortcuts)
        jobs = {name: getattr(spec.cluster, name) for name in Role if name is not Role.EVALUATOR}
        if any(isinstance(job, int) and job for job in jobs.values()):
            return None
        count = spec.cluster.count(role)
        if self.index is None and count > 1:
            raise SpecError(f"{self.spec} has {count} tasks {role}; say which by --index I")
        task = TaskId(role, self.index or 0)
        if task.index >= count:
            raise SpecError(f"{self.spec} has no {task}: its cluster.{role} is {count or 'absent'}")
        return replace(
            _by_hand(ClusterSpec.from_lists(**{name: job for name, job in jobs.items() if job}), task),
            spec=spec,
        )

    def _by_environment(self, environment: Mapping[str, str]) -> TaskAssignment | None:
        assignment = TaskAssignment.from_environment(environment)
        if assignment is not None:
            return self.with_spec(assignment)
        if self.spec is not None:
            raise SpecError(
                f"{self.spec} gives counts, which `launch` turns into ports of this machine; "
                f"to start a task by hand write addresses such as worker: [machine-a:2222], or set TF_CONFIG"
            )
        return None

    def with_spec(self, assignment: TaskAssignment) -> TaskAssignment:
        """Return an assignment that does not come from the spec, with the rest of the user's spec."""
        if self.spec is None and not self.sets and not self.shortcuts and assignment is not ALONE:
            return assignment
        counts = [
            f"cluster.{role}={assignment.cluster.count(role)}" for role in Role if role is not Role.EVALUATOR
        ]
        evaluates = assignment.task.role is Role.EVALUATOR
        if self.spec is None or evaluates:
            counts.append(f"cluster.{Role.EVALUATOR}={int(evaluates)}")
        return replace(assignment, spec=self._read([*counts, *self.sets], alone=assignment is ALONE))

    def _read(self, sets: Sequence[str], *, alone: bool = False) -> RunSpec:
        return read_spec(self.spec, sets, self.shortcuts, self.foreign, alone=alone)


def _by_hand(cluster: ClusterSpec, task: TaskId) -> TaskAssignment:
    counts = {role.value: cluster.count(role) for role in cluster.jobs}
    counts["evaluator"] = int(task.role is Role.EVALUATOR)
    spec = RunSpec(cluster=ClusterSection(**counts))
    return TaskAssignment(task, cluster, spec, run_id=run_id_by_hand(cluster))


ALONE = _by_hand(ClusterSpec.from_lists(chief=["127.0.0.1:2222"]), TaskId(Role.CHIEF, 0))
"""The only task that an engine has started. It listens nowhere."""


HERE = "where you like"


def is_by_hand(addresses: ClusterSpec) -> bool:
    """Return whether the tasks are on hosts of a network, which `launch` on this machine cannot all be."""
    return any(not is_loopback(addresses.address(task) or "") for task in addresses.tasks())


def lines_by_hand(
    tasks: Sequence[TaskId],
    addresses: ClusterSpec,
    spec: str,
    options: Mapping[str, Any],
    command: Sequence[str],
    foreign: bool,
) -> Iterator[tuple[str, str]]:
    """Yield each host with the command line of one of its tasks, host after host.

    `spec` is the path of the spec; `options` are the fields that options have set, by their dotted keys.
    """
    hosts = {task: _host(addresses, task) for task in tasks}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in options.items()}
    sets = [word for key, text in texts.items() for word in ("--set", f"{key}={text}")]
    for host in dict.fromkeys(hosts.values()):
        for task in (task for task in tasks if hosts[task] == host):
            if foreign:
                config = shlex.quote(write_tf_config(addresses, task))
                yield host, f"TF_CONFIG={config} {shlex.join(command)}"
                continue
            place = ["dtrain", task.role.value, "--spec", spec, *sets, "--index", str(task.index)]
            yield host, shlex.join([*place, *([] if task.role is Role.PS else command)])


def _host(addresses: ClusterSpec, task: TaskId) -> str:
    address = addresses.address(task)
    return HERE if address is None else address.rpartition(":")[0]


_FAR_AWAY = "203.0.113.1"
"""An address of documentation: nothing is sent, the kernel only says by which interface it would leave."""


def own_host(peer: str | None = None) -> str:
    """Return the IPv4 address by which this machine reaches a peer; without one, the default route's.

    Raise a `SpecError` if it has no address on a network, or several and no default route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((peer or _FAR_AWAY, 9))
            host: str = asked.getsockname()[0]
            if not is_loopback(f"{host}:1"):
                return host
        except OSError:
            pass
    addresses = [
        each.address
        for interface in psutil.net_if_addrs().values()
        for each in interface
        if each.family is socket.AF_INET and not is_loopback(f"{each.address}:1")
    ]
    if len(addresses) != 1:
        found = ", ".join(addresses) or "none"
        raise SpecError(f"which address of this machine do others reach? expected one, found {found}")
    return addresses[0]
