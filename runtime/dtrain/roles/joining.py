"""The two ends of a worker's question to join a run: what a server tells it, and how it asks."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle

import msgspec
from msgspec.structs import replace

from dtrain.cluster import JOINING, ClusterSpec
from dtrain.config import CheckpointSection, RunSpec, SecuritySection
from dtrain.config.choices import TlsMode
from dtrain.control.roster import Admission
from dtrain.errors import PeerRefusedError, WaitTimeoutError
from dtrain.messages import Join, JoinPlace, NotReady, Refusal, RefusalKind
from dtrain.process.assignment import TaskAssignment
from dtrain.process.requests import JoinRequest
from dtrain.process.tensorflow import read_tf_config
from dtrain.runs.joined import takes_folder
from dtrain.wire.addresses import obstacle
from dtrain.wire.channel import Channel
from dtrain.wire.connecting import ATTEMPT_S, connect
from dtrain.wire.security.credentials import Credentials

ANSWER_S = 10.0
PATIENCE_S = 2.0
"""After so long a wait a worker that joins says what it waits for."""
_PAUSE_S = 0.2


def admission_by(assignment: TaskAssignment) -> Admission:
    """Return how a server admits workers; it tells no secret, and no path of its host.

    An index is free if the run directory of a launch, which may have seen an earlier launch, has no folder of
    that worker.
    """
    spec = replace(
        assignment.spec,
        security=SecuritySection(tls=assignment.spec.security.tls),
        checkpoint=CheckpointSection(),
    )
    cluster = assignment.cluster.to_dict()
    place = JoinPlace(run_id=assignment.run_id, launched=assignment.launched, cluster=cluster, spec=spec)
    directory = assignment.run_dir if assignment.launched else None
    return Admission(place, None if directory is None else takes_folder(directory))


def ask_for_place(request: JoinRequest, tell: Callable[[str], None]) -> JoinPlace:
    """Ask a server what a worker must know that would like to join.

    Where replicas reduce among themselves any of them may lead: the next one is asked where one is gone, or
    does not lead.

    Args:
        request: the question.
        tell: told, once, what is waited for, and of certificates that cannot be used.

    Raises:
        SpecError: TLS is required, and its files cannot be used.
        WaitTimeoutError: no dtrain server answers there, or training does not begin.
        PeerRefusedError: the server has another secret, or lets no worker join.
        PeerLostError: it ends meanwhile.
    """
    asking = TaskAssignment(
        task=JOINING,
        cluster=read_tf_config(msgspec.json.encode({"cluster": request.cluster}).decode())[0],
        spec=RunSpec(security=request.security),
        run_id=request.run_id,
        secret=request.secret,
        tls=request.tls,
    )
    credentials = Credentials.of(asking, tell)
    waits = _Waits(request, tell)
    servers = servers_to_ask(request, asking.cluster)
    for server, address in cycle(servers):
        reach_s = request.reach_s if len(servers) == 1 else ATTEMPT_S
        try:
            channel = _connected(request, server, address, credentials, reach_s, waits)
        except WaitTimeoutError:
            if len(servers) == 1 or waits.lasts_s() >= request.reach_s:
                raise
            continue
        try:
            place = _answered(channel, f"{server} at {address}", waits, others=len(servers) > 1)
        finally:
            channel.close()
        if place is not None:
            return place
    raise AssertionError("there is a server to ask")


def servers_to_ask(request: JoinRequest, cluster: ClusterSpec) -> Sequence[tuple[str, str]]:
    """Return name and address of every task that may give a place, in the order in which they are asked."""
    first = request.server, request.address
    replicas = [(str(task), cluster.address(task) or "") for task in cluster.replicas()]
    if first not in replicas:
        return [first]  # a parameter server, or one of which only the address is known
    begin = replicas.index(first)
    return [*replicas[begin:], *replicas[:begin]]


class _Waits:
    """How long the worker that joins has waited, and what it says of that."""

    def __init__(self, request: JoinRequest, tell: Callable[[str], None]) -> None:
        self._limit_s = request.wait_s
        self._tell = tell
        self._begun_s = time.monotonic()
        self._told = False

    def lasts_s(self) -> float:
        return time.monotonic() - self._begun_s

    def wait(self, whom: str, reason: str) -> None:
        """Wait a moment. Raises a WaitTimeoutError if it has lasted too long."""
        if self.lasts_s() >= self._limit_s:
            raise WaitTimeoutError(f"{whom}: {reason}; waited {self._limit_s:g} s")
        self.note(whom, reason)
        time.sleep(_PAUSE_S)

    def note(self, whom: str, reason: str | None) -> None:
        """Say once what is waited for, as soon as the wait has lasted `PATIENCE_S`."""
        if reason and self.lasts_s() >= PATIENCE_S and not self._told:
            self._told = True
            self._tell(f"the worker that joins waits for {whom}: {reason}")


def _connected(
    request: JoinRequest, server: str, address: str, credentials: Credentials, reach_s: float, waits: _Waits
) -> Channel:
    try:
        told = partial(waits.note, f"{server} at {address}")
        return connect(server, address, credentials, reach_s, request.transport, told)
    except WaitTimeoutError:
        if request.run_id or obstacle(address) is not None:
            raise
        tls = "" if request.security.tls == TlsMode.REQUIRED else ", or one that expects TLS: see --tls-cert"
        raise WaitTimeoutError(f"what listens at {address} is no dtrain server{tls}") from None


def _answered(channel: Channel, whom: str, waits: _Waits, *, others: bool) -> JoinPlace | None:
    """Return the place that a server gives; None where it does not lead and others may be asked."""
    while True:
        channel.send(Join())
        match channel.receive(deadline=time.monotonic() + ANSWER_S).message:
            case JoinPlace() as place:
                return place
            case Refusal(reason=reason, kind=RefusalKind.NOT_LEADING) if others:
                waits.wait(whom, reason)
                return None
            case NotReady(reason=reason):
                waits.wait(whom, reason)
            case Refusal(reason=reason):
                raise PeerRefusedError(f"{whom}: {reason}")
            case _:
                raise PeerRefusedError(f"{whom}: it gives no place")
