"""`dtrain worker --join`: one more worker for a run that is training, from both sides.

One server of the run is asked, whose address the run's files or the user know: it tells what a task must
know, and gives the worker an index that no other has.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dtrain import errors
from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.cluster.hosts import is_loopback
from dtrain.config import MultiWorkerMirroredSection, RunSpec, SecuritySection, WaitSection, address_problem
from dtrain.config.choices import TlsMode, Transport
from dtrain.errors import DtrainError, PeerError, PeerRefusedError, RunError, SpecError
from dtrain.messages import JoinPlace
from dtrain.messages.membership import TaskStatus
from dtrain.process.assignment import TaskAssignment, secret_in_file
from dtrain.process.private_variables import SECRET
from dtrain.process.requests import JoinRequest, encode_join_message, read_join_answer
from dtrain.process.resources import USERS_LIMIT
from dtrain.process.secret import said_secret, users_secret
from dtrain.process.tensorflow import read_tf_config
from dtrain.runs.files import JoinRecord, RunFiles, RunRecord, TaskRecord, read_record, read_sound
from dtrain.runs.states import LIVE_RUN_STATES, RunState, TaskState
from dtrain.runs.task_states import STOPPED
from dtrain_cli.launch.policies.ordered_stop import RemainingTask
from dtrain_cli.plan.run_plan import limits_beside
from dtrain_cli.runs.advice import Row
from dtrain_cli.runs.index import KnownRun, known_runs
from dtrain_cli.runs.report import first_line, is_alive, is_owned, joined_record, joined_records, with_joined
from dtrain_cli.targets.signals import signal_name


class JoinedWorkers:
    """The workers that have joined a run beside its planned tasks; those of an earlier launch are known."""

    def __init__(self, files: RunFiles, planned: Iterable[TaskId]) -> None:
        self._files = files
        self._here: set[str] = set()
        self._gone: set[str] = set()
        self._stop_s: dict[TaskId, float] = {}
        self._known = {files.task(task).name for task in (*planned, *files.joined_tasks())}

    def new(self) -> Iterator[TaskRecord]:
        """Yield the record of every worker that has come since the last call."""
        for task in self._files.joined_tasks(besides=self._known):
            if (record := joined_record(self._files, task)) is not None:
                self._known.add(self._files.task(task).name)
                self._here.add(record.task.task)
                yield record.task

    def rows(self, ended: RunState | None) -> list[Row]:
        return [
            Row(task, record.state, record.restarts, read_sound(self._files.status(task), TaskStatus))
            for record in self._there(ended)
            for task in (TaskId.parse(record.task),)
        ]

    def lost(self) -> Iterator[TaskRecord]:
        """Yield the record of every worker that has failed or stopped since the last call."""
        for record in self._there(None) if self._here != self._gone else ():
            if record.state in (TaskState.FAILED, TaskState.STOPPED) and record.task not in self._gone:
                self._gone.add(record.task)
                yield record

    def _there(self, ended: RunState | None) -> list[TaskRecord]:
        there = with_joined(self._files, (), ended) if self._here else []
        return [record for record in there if record.task in self._here]

    def remaining(self) -> list[RemainingTask]:
        """Return the workers whose owners live."""
        owned = [TaskId.parse(record.task.task) for record in joined_records(self._files) if is_owned(record)]
        return [RemainingTask(task, self._stop_s.get(task)) for task in owned]

    def signal(self, task: TaskId, number: int, now_s: float) -> None:
        """Have a worker's owner stop it, or kill it with its owner: the worker dies with it."""
        self._stop_s.setdefault(task, now_s)
        record = joined_record(self._files, task)
        if record is None:
            return
        with suppress(OSError):  # it has ended
            owner = os.pidfd_open(record.owner_pid)
            try:
                if is_owned(record):  # the descriptor keeps the pid from becoming another process's
                    signal.pidfd_send_signal(owner, number)
                    signal.pidfd_send_signal(owner, signal.SIGCONT)
            finally:
                os.close(owner)


def departure_text(record: TaskRecord) -> str:
    """Return the line about a worker that is gone: ``worker:2 has left, asked by SIGINT (Ctrl-C)``."""
    if record.message:
        return f"{record.task} has {record.state}: {first_line(record.message)}"
    if record.exit_code in STOPPED:
        return f"{record.task} has left, asked by {signal_name(record.exit_code - 128)}"
    return f"{record.task} has left: the command that owned it has ended"


REACH_S = 5.0
"""How long a server may take to accept a connection at an address that a person has given."""
SERVER = "the server"
_LOOK_S = 0.5
"""How often to look whether the run has ended while one of its servers is asked."""


class Joining(msgspec.Struct, frozen=True):
    """One more worker of a run; `keeper` is the run's record on this machine, whose launcher is watched."""

    assignment: TaskAssignment
    run: str
    keeper: RunRecord | None


def joining_run(run: KnownRun, environment: Mapping[str, str], security: Mapping[str, Any]) -> Joining:
    """Return the assignment of one more worker of a run on this machine.

    `security` are the fields of that section which the worker's own options give.

    Raises:
        RunError: the run has ended, or is none that a worker can join.
        SpecError: it trains in one task.
        PeerError: its control host does not answer, or lets no worker join.
    """
    offer, cluster = _open_offer(run)
    host, name = cluster.control_host, run.record.run
    assert host is not None
    spec = read_record(run.files.spec, RunSpec) or RunSpec()
    section = replace(spec.security, **security).completed(environment)
    request = JoinRequest(
        parent=os.getpid(),
        server=str(host),
        address=cluster.address(host) or "",
        transport=Transport.AUTO,
        reach_s=spec.wait.start_s,
        wait_s=spec.wait.start_s,
        run_id=offer.run_id,
        cluster=offer.cluster,
        security=section,
        secret=offer.secret,
        tls=offer.tls,
    )
    place = _asked(request, run)
    return Joining(_assignment(place, request, run.files.directory), name, run.record)


def joining_address(
    address: str,
    environment: Mapping[str, str],
    security: Mapping[str, Any],
    runs_dir: Path,
    run_dir: Path | None = None,
) -> Joining:
    """Return the assignment of one more worker of a run anywhere, by the address of any of its servers.

    `runs_dir` has the runs of this machine, and the files of this worker unless `run_dir` is given.

    Raises:
        SpecError: the address is none; strangers could listen there; or the run's other servers cannot be
            reached from here.
        PeerError: no dtrain server answers there, or it has another secret, or lets no worker join.
    """
    if problem := address_problem(address):
        raise SpecError(f"--join {address}: {problem}; or give the name or id of a run on this machine")
    section = SecuritySection(tls=TlsMode.REQUIRED if security.get("ca_file") else TlsMode.AUTO)
    section = replace(section, **security).completed(environment)
    secret = secret_in_file(section) or said_secret(environment.get(SECRET))
    if not (secret or section.insecure or is_loopback(address)):
        raise SpecError(
            f"{address} is on a network, and there is no secret: give the run's own by --secret-file FILE, "
            "or say --insecure if the run has none"
        )
    if secret is None and not section.insecure:
        secret = users_secret()
    request = JoinRequest(
        parent=os.getpid(),
        server=SERVER,
        address=address,
        transport=Transport.GRPC,
        reach_s=REACH_S,
        wait_s=WaitSection().start_s,
        run_id="",
        cluster={Role.PS.value: [address]},
        security=section,
        secret=secret,
    )
    place = _asked(request)
    cluster = _cluster(place.cluster)
    _check_reach(cluster, address)
    host = cluster.control_host
    if place.index < 0 and host is not None:
        address = cluster.address(host) or ""
        request = msgspec.structs.replace(request, server=str(host), address=address, cluster=place.cluster)
        place = _asked(request)
    if place.index < cluster.first_joined:
        raise PeerRefusedError(f"{request.server} at {request.address} gives a worker no index")
    known = _known_here(place, runs_dir)
    if known is not None and run_dir is None:
        return Joining(_assignment(place, request, known.files.directory), known.record.run, known.record)
    name = f"{place.spec.name}-worker-{place.index}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    files = RunFiles(run_dir or runs_dir / name)
    files.create()
    return Joining(_assignment(place, request, files.directory), place.run_id, None)


def join_line(run: KnownRun) -> str:
    """Return what to type on another machine to join a run: two lines, of which the first has the secret.

    Raises:
        RunError: the run has ended, accepts no workers, or serves on this machine alone.
        SpecError: it trains in one task.
    """
    offer, cluster = _open_offer(run)
    host, name = cluster.control_host, run.record.run
    address = (host and cluster.address(host)) or ""
    if is_loopback(address):
        raise RunError(
            f"run {name} serves at {address}, which only this machine can reach; a worker joins it here by "
            f"`dtrain worker --join {name} PROGRAM.py`"
        )
    if offer.tls is not None:
        raise RunError(
            f"run {name} has made its certificates itself, and workers of other machines have none: give it "
            "some by `dtrain certificates`"
        )
    task = msgspec.json.decode(run.files.plan.read_bytes())["tasks"][0]
    program = shlex.join([task["program"], *task["arguments"]])
    if offer.secret is None:
        return f"dtrain worker --join {address} --insecure {program}"
    secret = f"(umask 077; echo {shlex.quote(offer.secret)} > {name}.secret)"
    return f"{secret}\ndtrain worker --join {address} --secret-file {name}.secret {program}"


def threads_beside(joining: Joining, environment: Mapping[str, str]) -> dict[str, str]:
    assignment = joining.assignment
    if not assignment.launched or joining.keeper is None or USERS_LIMIT in environment:
        return {}
    training = assignment.cluster.count(Role.CHIEF) + assignment.cluster.count(Role.WORKER) + 1
    return limits_beside(environment, str(max(1, len(os.sched_getaffinity(0)) // training)))


def _asked(request: JoinRequest, run: KnownRun | None = None) -> JoinPlace:
    """Return the answer of a server; `run` is the run if it is on this machine.

    Raise the error that the server has answered, or a `RunError` if the run ends meanwhile.
    """
    command = (sys.executable, "-P", "-m", "dtrain.task.join_command")
    question: bytes | None = encode_join_message(request)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asked:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    output, _ = asked.communicate(question, timeout=_LOOK_S)
                    break
                question = None
                if run is not None:
                    _offer(replace(run, record=read_record(run.files.run, RunRecord) or run.record))
        finally:
            asked.kill()
    if asked.returncode:
        raise PeerError(f"{request.server} at {request.address} could not be asked (exit {asked.returncode})")
    answer = read_join_answer(output)
    if answer.place is None:
        raise getattr(errors, answer.kind)(answer.error)
    for path, problem in answer.place.spec.problems():
        raise PeerRefusedError(f"{request.server} tells a spec that cannot be: {path[0]}: {problem}")
    return answer.place


def _assignment(place: JoinPlace, request: JoinRequest, directory: Path) -> TaskAssignment:
    return TaskAssignment(
        task=TaskId(Role.WORKER, place.index),
        cluster=_cluster(place.cluster),
        spec=replace(place.spec, security=replace(request.security, tls=place.spec.security.tls)),
        run_id=place.run_id,
        run_dir=directory,
        secret=request.secret,
        launched=place.launched,
        tls=request.tls,
    )


def _offer(run: KnownRun) -> JoinRecord | None:
    """Return what a live run on this machine offers; raise a `RunError` if it has ended."""
    if run.record.state not in LIVE_RUN_STATES or not is_alive(run.files, run.record):
        raise RunError(
            f"run {run.record.run} cannot be joined: its state is {run.record.state}; "
            "a worker joins a run that is training"
        )
    return read_record(run.files.join, JoinRecord)


def _open_offer(run: KnownRun) -> tuple[JoinRecord, ClusterSpec]:
    """Return what a live run offers, and its cluster, if a worker can join; see `joining_run`."""
    offer, name = _offer(run), run.record.run
    if offer is None:
        raise RunError(f"run {name} accepts no workers: it runs a command that is not a dtrain program")
    cluster = _cluster(offer.cluster)
    host, spec = cluster.control_host, read_record(run.files.spec, RunSpec) or RunSpec()
    if host is None or not (host.role is Role.PS or isinstance(spec.training, MultiWorkerMirroredSection)):
        raise SpecError(f"run {name} trains in one task; only a run whose workers train can be joined")
    return offer, cluster


def _known_here(place: JoinPlace, runs_dir: Path) -> KnownRun | None:
    """Return the run if its launcher or leader is on this machine: its directory is the worker's as well."""
    for run in known_runs(runs_dir):
        with suppress(DtrainError, OSError):
            if (offer := _offer(run)) is not None and offer.run_id == place.run_id:
                return run
    return None


def _cluster(jobs: Mapping[str, Any]) -> ClusterSpec:
    return read_tf_config(msgspec.json.encode({"cluster": jobs}).decode())[0]


def _check_reach(cluster: ClusterSpec, address: str) -> None:
    """Raise a `SpecError` if a server of the cluster can be reached from another machine alone."""
    if is_loopback(address) or _is_here(address):
        return
    for task in cluster.tasks(Role.PS):
        theirs = cluster.address(task) or ""
        if is_loopback(theirs):
            raise SpecError(
                f"{task} of the run at {address} serves at {theirs}, which only that machine can reach: join "
                "the run there, or start it at addresses of its network"
            )


def _is_here(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    with suppress(OSError):
        for family, kind, _, _, place in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe:
                probe.bind(place)
                return True
    return False
