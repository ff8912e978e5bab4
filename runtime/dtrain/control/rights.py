"""The rules of who may send which message to a server: docs/design/protocol.md#authentication. Pure.

Every task of the run has its secret. A task that sends what its role never sends is broken, or no task of
ours: it is refused, and changes nothing.
"""

import math

import msgspec

from dtrain.cluster import JOINING, ClusterSpec, Role, TaskId
from dtrain.config import address_problem
from dtrain.messages import (
    Alter,
    AnyMessage,
    Commit,
    Complete,
    Conclude,
    Control,
    Farewell,
    Heartbeat,
    Hold,
    Initialise,
    Load,
    Look,
    Mark,
    Record,
    Release,
    Share,
    Snapshot,
    SnapshotRows,
    Subscribe,
)

LEADERS: dict[type[AnyMessage], str] = {
    Initialise: "initialise variables",
    Load: "load tables",
    Hold: "give orders",
    Control: "give orders",
    Mark: "mark a checkpoint",
    Snapshot: "ask for a snapshot",
    SnapshotRows: "ask for a snapshot",
    Record: "record epochs",
    Conclude: "conclude a generation",
    Farewell: "say farewell",
    Share: "share variables",
}
"""Messages that only the leader sends."""
SERVERS = frozenset({Complete, Subscribe})
"""Messages that only servers send, to the control host."""
DECISIONS = frozenset({Commit, Release})
"""Messages that only the control host sends."""
TRAINERS = frozenset({Look, Alter})
"""Messages that only the chief and workers send."""


STATUS_LIMIT_BYTES = 16 * 1024
"""The longest status: the leader is sent those of all tasks in one message."""
EVALUATOR_LIMIT_BYTES = 256 * 1024
"""The longest status of the evaluator, with its last evaluations."""
JOINED_MAX = 2_000
"""The limit of workers that join a run. The status of each takes memory and is sent to the leader."""
_encode = msgspec.msgpack.Encoder().encode


def newcomer_obstacle(sender: TaskId, cluster: ClusterSpec, joined: int) -> str | None:
    """Return why a task may not connect at all; None if it may.

    Args:
        sender: the task.
        cluster: of the run. Beside its tasks there are one evaluator, and workers that join; one that has no
            index yet connects to be told one, or why there is none.
        joined: how many of these there have been, but for the sender.
    """
    if sender in cluster or sender in (TaskId(Role.EVALUATOR, 0), JOINING):
        return None
    if sender.role is not Role.WORKER or sender.index < cluster.first_joined:
        return f"the cluster of this run has no {sender}"
    return None if joined < JOINED_MAX else f"{joined} workers have joined this run, and no more may"


def obstacle(message: AnyMessage, sender: TaskId, cluster: ClusterSpec) -> str | None:
    """Return why `sender` may not send the message; None if it may."""
    kind = type(message)
    if (deed := LEADERS.get(kind)) is not None:
        return None if sender == cluster.leader else f"only {cluster.leader} may {deed}, not {sender}"
    if kind in SERVERS and (sender.role is not Role.PS or sender not in cluster):
        return f"only servers report to {cluster.control_host}, not {sender}"
    if kind in DECISIONS and sender != cluster.control_host:
        return f"only {cluster.control_host} decides, not {sender}"
    if kind in TRAINERS and not sender.trains:
        return f"{sender} takes no closures, and may not see or change their variables"
    return _false_beat(message, sender) if isinstance(message, Heartbeat) else None


def _false_beat(message: Heartbeat, sender: TaskId) -> str | None:
    if not math.isfinite(message.process[1]):  # it would be neither earlier nor later than any other
        return f"{sender} reports no time at which its process began"
    if message.moved_to is not None and (reason := address_problem(message.moved_to)):
        return f"{sender} reports where it serves: {reason}"
    status = message.status
    if status is None:
        return None
    limit = EVALUATOR_LIMIT_BYTES if sender.role is Role.EVALUATOR else STATUS_LIMIT_BYTES
    if (nbytes := len(_encode(status))) > limit:
        return f"{sender} reports a status of {nbytes} bytes; at most {limit} make sense"
    if not (math.isfinite(status.monotonic_s) and math.isfinite(status.progress_monotonic_s)):
        return f"{sender} reports a status of no time"
    if status.task != str(sender):
        return f"{sender} reports the status of {status.task[:40]!r}"
    if status.evaluations and sender.role is not Role.EVALUATOR:
        return f"only an evaluator reports evaluations, not {sender}"
    if not all(isinstance(evaluation.get("global_step"), int) for evaluation in status.evaluations):
        return f"{sender} reports an evaluation of no step"
    return None
