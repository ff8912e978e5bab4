"""Messages by which one more worker joins a run of which it knows a server's address and the secret."""

from dtrain.config import RunSpec
from dtrain.messages.message import Message


class Join(Message, frozen=True, gc=False, kw_only=True):
    """A worker without an index to any server: it would like to join the run.

    The answer is a `Place`, a `Refusal`, or `NotReady` while the leader of a cluster by hand has not begun to
    train.
    """


class Place(Message, frozen=True, gc=False, kw_only=True):
    """Server to a worker that joins: what it must know to be a task of the run.

    Attributes:
        run_id: of the run.
        launched: whether a launcher owns the run's other tasks.
        cluster: the addresses, as TF_CONFIG has them.
        spec: of the run, with `training` as the leader has it; without the sections that a worker does not
            need and that may hold passwords or paths.
        index: of the worker; -1: the control host alone gives them.
    """

    run_id: str
    launched: bool
    cluster: dict[str, list[str] | dict[str, str]]
    spec: RunSpec
    index: int = -1
