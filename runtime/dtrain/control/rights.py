"""The rules of who may send which message to a server: docs/design/protocol.md#authentication. Pure.

Every task of the run has its secret. A task that sends what its role never sends is broken, or no task of
ours: it is refused, and changes nothing.
"""

import math

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import address_problem
from dtrain.messages import (
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
    Mark,
    Record,
    Release,
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
}
"""Messages that only the leader sends."""
SERVERS = frozenset({Complete, Subscribe})
"""Messages that only servers send, to the control host."""
DECISIONS = frozenset({Commit, Release})
"""Messages that only the control host sends."""


def obstacle(message: AnyMessage, sender: TaskId, cluster: ClusterSpec) -> str | None:
    """Return why `sender` may not send the message; None if it may."""
    kind = type(message)
    if (deed := LEADERS.get(kind)) is not None:
        return None if sender == cluster.leader else f"only {cluster.leader} may {deed}, not {sender}"
    if kind in SERVERS and sender.role is not Role.PS:
        return f"only servers report to {cluster.control_host}, not {sender}"
    if kind in DECISIONS and sender != cluster.control_host:
        return f"only {cluster.control_host} decides, not {sender}"
    return _false_beat(message, sender) if isinstance(message, Heartbeat) else None


def _false_beat(message: Heartbeat, sender: TaskId) -> str | None:
    if not math.isfinite(message.process[1]):  # it would be neither earlier nor later than any other
        return f"{sender} reports no time at which its process began"
    if message.moved_to is not None and (reason := address_problem(message.moved_to)):
        return f"{sender} reports where it serves: {reason}"
    status = message.status
    if status is None:
        return None
    if status.task != str(sender):
        return f"{sender} reports the status of {status.task[:40]!r}"
    if status.evaluations and sender.role is not Role.EVALUATOR:
        return f"only an evaluator reports evaluations, not {sender}"
    if not all(isinstance(evaluation.get("global_step"), int) for evaluation in status.evaluations):
        return f"{sender} reports an evaluation of no step"
    return None
