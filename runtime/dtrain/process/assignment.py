"""The assignment of one process: its task, its cluster, its run, and its right to start.

The launcher, `dtrain worker` and friends, and a user who exports TF_CONFIG by hand all speak to a task
through the same variables, so a program behaves alike under each of them and under plain `python program.py`.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.cluster.hosts import LOOPBACK, is_loopback
from dtrain.config import ClusterSection, RunSpec, SecuritySection, address_problem
from dtrain.errors import SpecError
from dtrain.formats.remote_files import masked
from dtrain.messages import Hello
from dtrain.process.private_variables import SECRET
from dtrain.process.secret import read_secret, said_secret, users_secret
from dtrain.process.tensorflow import read_tf_config
from dtrain.process.tls_material import HANDED_OVER, TlsMaterial

RUN_ID = "DTRAIN_RUN_ID"
RUN_DIR = "DTRAIN_RUN_DIR"
SPEC = "DTRAIN_SPEC"
ATTEMPT = "DTRAIN_ATTEMPT"
JOINED = "DTRAIN_JOINED"
MOVED_TO = "DTRAIN_MOVED_TO"
BIND = "DTRAIN_BIND"
PLANNED = "DTRAIN_PLANNED"
TF_CONFIG = "TF_CONFIG"
TASK = "DTRAIN_TASK"
ROLE = "DTRAIN_ROLE"
INDEX = "DTRAIN_INDEX"
"""The task's name, role and index, for scripts that cannot read TF_CONFIG; dtrain itself reads TF_CONFIG."""

_SPECS = msgspec.json.Decoder(RunSpec)
"""Made at the import, which forked tasks share: a type's first decoding takes half a millisecond."""


class TaskAssignment(msgspec.Struct, frozen=True):
    """A task's place in a run.

    Attributes:
        task: that this process is.
        cluster: the addresses of all tasks.
        spec: the resolved spec; its `cluster` section holds counts only for tasks that `cluster` does not
            name (the evaluator).
        run_id: equal on all tasks of a run, different for any two runs; by hand it is made from the cluster.
        run_dir: the directory of this task's files; None when the program was started by hand without one.
        attempt: how often the launcher has restarted this task.
        secret: that both ends of every connection prove to have; None by hand without one.
        launched: whether a launcher owns this process.
        moved_to: the address at which this task serves, if that is not the cluster's.
        tls: the certificate that a launcher has made for this task.
        bind: the host, or ``host:port``, at which it listens; None: as its address says.
    """

    task: TaskId
    cluster: ClusterSpec
    spec: RunSpec
    run_id: str
    run_dir: Path | None = None
    attempt: int = 0
    secret: str | None = None
    launched: bool = False
    moved_to: str | None = None
    tls: TlsMaterial | None = None
    bind: str | None = None

    def __repr__(self) -> str:
        return f"TaskAssignment({self.task}, run_id={self.run_id!r})"  # without its secret

    @property
    def on_one_host(self) -> bool:
        """Whether all tasks of the cluster, and this one, serve at addresses of one host."""
        served = [self.cluster.address(task) for task in self.cluster.tasks()]
        return all(is_loopback(address or "") for address in [*served, self.moved_to or LOOPBACK + ":1"])

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "TaskAssignment | None":
        """Read the assignment; None without a cluster. Raise a `SpecError` if the environment is wrong."""
        if TF_CONFIG not in environment:
            return None
        cluster, task = read_tf_config(environment[TF_CONFIG], joined=JOINED in environment)
        if not cluster:
            return None
        if task is None:
            raise SpecError(
                'TF_CONFIG names a cluster but no task; expected "task": {"type": ..., "index": ...} beside '
                '"cluster"'
            )
        spec = _read_spec(environment.get(SPEC), cluster).secured(environment)
        run_dir = environment.get(RUN_DIR)
        run_id = environment.get(RUN_ID)
        secret = said_secret(environment.get(SECRET)) or secret_in_file(spec.security)
        return cls(
            task=task,
            cluster=cluster,
            spec=spec,
            run_id=run_id or run_id_by_hand(cluster),
            run_dir=Path(run_dir) if run_dir else None,
            attempt=_read_attempt(environment.get(ATTEMPT, "0")),
            secret=secret,
            launched=run_id is not None,
            moved_to=_read_moved_to(
                environment.get(MOVED_TO), trusted=bool(secret or spec.security.insecure)
            ),
            tls=TlsMaterial.from_text(handed) if (handed := environment.get(HANDED_OVER)) else None,
            bind=checked_bind(environment.get(BIND), BIND),
        )

    @classmethod
    def by_hand(cls, cluster: ClusterSpec, task: TaskId, environment: Mapping[str, str]) -> "TaskAssignment":
        """Return the assignment of a task that was started without a launcher and without a spec.

        Raises:
            SpecError: the environment says something of `security`, or a secret, that cannot be used.
        """
        spec = _default_spec(cluster).secured(environment)
        secret = said_secret(environment.get(SECRET))
        bind = checked_bind(environment.get(BIND), BIND)
        return cls(task, cluster, spec, run_id=run_id_by_hand(cluster), secret=secret, bind=bind)

    @property
    def address(self) -> str:
        """Where this task serves, ``host:port``.

        Raises:
            SpecError: neither the cluster nor DTRAIN_MOVED_TO names an address.
        """
        address = self.moved_to or self.cluster.address(self.task)
        if address is None:
            raise SpecError(f"{self.task} cannot serve: the cluster names no address for it; set {MOVED_TO}")
        return address

    @property
    def joined(self) -> bool:
        """True if this is a worker that has joined a running cluster, which does not name it."""
        return self.task.role is Role.WORKER and self.task not in self.cluster

    @property
    def watched(self) -> bool:
        """True if a launcher watches this task and informs its user; else the task does so itself."""
        return self.launched and not self.joined

    @property
    def connect_s(self) -> float:
        """Return how long another task may take to appear; under a launcher, the launcher decides."""
        wait = self.spec.wait
        return wait.start_s + wait.server_s if self.watched else wait.start_s

    def hello(self) -> Hello:
        """Return what this task says of itself on a connection; without a run id it knows no run yet."""
        cluster_hash = self.cluster.hash if self.run_id else ""
        return Hello(run_id=self.run_id, cluster_hash=cluster_hash, task=str(self.task))

    def to_environment(self, tf_config: str) -> dict[str, str]:
        """Return the variables from which `from_environment` reads this assignment in another process.

        Those of `private` belong to them.
        """
        environment = {
            TF_CONFIG: tf_config,
            TASK: str(self.task),
            ROLE: self.task.role.value,
            INDEX: str(self.task.index),
            SPEC: masked(msgspec.json.encode(self.spec).decode()),
            ATTEMPT: str(self.attempt),
        }
        if self.joined:
            environment[JOINED] = "1"
        if self.launched:
            environment[RUN_ID] = self.run_id
        if self.moved_to is not None:
            environment[MOVED_TO] = self.moved_to
        if self.bind is not None:
            environment[BIND] = self.bind
        if self.run_dir is not None:
            environment[RUN_DIR] = str(self.run_dir)
        return environment

    @property
    def private(self) -> dict[str, str]:
        """The variables that go another way than by an environment (`process.private_variables`)."""
        spec = msgspec.json.encode(self.spec).decode()
        variables = {} if masked(spec) == spec else {SPEC: spec}
        if self.secret is not None:
            variables[SECRET] = self.secret
        if self.tls is not None:
            variables[HANDED_OVER] = self.tls.to_text()
        return variables


def run_id_by_hand(cluster: ClusterSpec) -> str:
    """Return the run id of tasks that were started without a launcher: equal addresses make one run."""
    return run_id_of(cluster.hash)


def run_id_of(cluster_hash: str) -> str:
    """Return what `run_id_by_hand` does, of the hash of a cluster."""
    return f"hand-{cluster_hash}"


def _default_spec(cluster: ClusterSpec) -> RunSpec:
    return RunSpec(cluster=ClusterSection(**{role.value: cluster.count(role) for role in cluster.jobs}))


def _read_spec(text: str | None, cluster: ClusterSpec) -> RunSpec:
    if text is None:
        return _default_spec(cluster)
    try:
        return _SPECS.decode(text)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, and half a character
        raise SpecError(
            f"{SPEC} in the environment is not a spec as dtrain writes it: {str(error)[:300]}"
        ) from None


def _read_moved_to(address: str | None, *, trusted: bool) -> str | None:
    reason = address_problem(address) if address else None
    if address and reason is None and not (trusted or is_loopback(address)):
        reason = f"{address} can be reached by other hosts: give every task the run's secret"
    if reason is not None:
        raise SpecError(f"{MOVED_TO} in the environment: {reason}")
    return address or None


def checked_bind(bind: str | None, where: str) -> str | None:
    """Return the host, or ``host:port``, at which a task is to listen; None where nothing is said.

    Raises:
        SpecError: it is neither; `where` says who said it.
    """
    if not bind:
        return None
    if address_problem(f"{bind}:1") is not None and (reason := address_problem(bind)) is not None:
        raise SpecError(f"{where}: expected a host, such as 0.0.0.0, or host:port; {reason}")
    return bind


def _read_attempt(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise SpecError(f"{ATTEMPT} in the environment: expected a number, found {text[:80]!r}")
    return int(text)


def secret_in_file(security: SecuritySection) -> str | None:
    """Return the secret in `security.secret_file`; None where no file is named.

    Raises:
        SpecError: the file cannot be used; see `read_secret`.
    """
    file = security.secret_file
    return None if file is None else read_secret(Path(file).expanduser())


def proven_secret(
    cluster: ClusterSpec, given: str | None, security: SecuritySection, *, by_command: bool
) -> str | None:
    """Return the secret that a task proves, so that strangers cannot talk to the tasks of its cluster.

    Args:
        cluster: the addresses.
        given: the secret that the spec, an option or the environment gives.
        security: of the spec, with what the environment says.
        by_command: whether a command of dtrain starts the task, which has options; else plain Python does.

    Returns:
        The given one; without one, on loopback, the secret of this user. None: the user says that none is
        needed, or the task is alone.

    Raises:
        SpecError: there is no secret, nothing says that none is needed, and an address is not loopback, or
            this user's secret cannot be used.
    """
    tasks = list(cluster.tasks())
    if given is not None or security.insecure or len(tasks) < 2:
        return given
    for task in tasks:
        address = cluster.address(task)
        if address is not None and not is_loopback(address):
            give, trust = (
                ("the same --secret-file FILE", "--insecure")
                if by_command
                else ('DTRAIN_SECRET="$(cat FILE)"', "DTRAIN_INSECURE=1")
            )
            raise SpecError(
                f"{task} is at {address}, where every process of the network could read and change the "
                f"model: make a secret with `dtrain secret FILE` and give every task {give}, or say {trust} "
                "if you trust that network"
            )
    return users_secret()
