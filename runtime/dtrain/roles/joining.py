"""The two ends of a worker's question to join a run: what a server tells it, and how it asks."""

import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from dtrain.cluster import JOINING
from dtrain.config import CheckpointSection, RunSpec, SecuritySection
from dtrain.config.choices import TlsMode
from dtrain.control.admission import Admission
from dtrain.errors import PeerRefusedError, WaitTimeoutError
from dtrain.messages import Join, NotReady, Place, Refusal
from dtrain.process.assignment import TaskAssignment
from dtrain.process.join_request import JoinRequest
from dtrain.process.tensorflow.tf_config import read_tf_config
from dtrain.runs.joined import takes_folder
from dtrain.wire.connecting import connect
from dtrain.wire.reaching import obstacle
from dtrain.wire.security.credentials import Credentials

ANSWER_S = 10.0
PATIENCE_S = 3.0
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
    place = Place(run_id=assignment.run_id, launched=assignment.launched, cluster=cluster, spec=spec)
    directory = assignment.run_dir if assignment.launched else None
    return Admission(place, None if directory is None else takes_folder(directory))


def ask_for_place(request: JoinRequest, tell: Callable[[str], None]) -> Place:
    """Ask a server what a worker must know that would like to join.

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
    try:
        channel = connect(request.server, request.address, credentials, request.reach_s, request.transport)
    except WaitTimeoutError:
        if request.run_id or obstacle(request.address) is not None:
            raise
        tls = "" if request.security.tls == TlsMode.REQUIRED else ", or one that expects TLS: see --tls-cert"
        raise WaitTimeoutError(f"what listens at {request.address} is no dtrain server{tls}") from None
    place = f"{request.server} at {request.address}"
    begun_s = time.monotonic()
    told = False
    try:
        while True:
            channel.send(Join())
            answer = channel.receive(deadline=time.monotonic() + ANSWER_S).message
            if isinstance(answer, Place):
                return answer
            if not isinstance(answer, NotReady):
                reason = answer.reason if isinstance(answer, Refusal) else "it gives no place"
                raise PeerRefusedError(f"{place}: {reason}")
            waited_s = time.monotonic() - begun_s
            if waited_s >= request.wait_s:
                raise WaitTimeoutError(f"{place}: {answer.reason}; waited {request.wait_s:g} s")
            if waited_s >= PATIENCE_S and not told:
                told = True
                tell(f"the worker that joins waits for {place}: {answer.reason}")
            time.sleep(_PAUSE_S)
    finally:
        channel.close()
