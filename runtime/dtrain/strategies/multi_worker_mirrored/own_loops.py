"""How the replicas of a loop of one's own meet, at its first collective call."""

import os
import socket
from collections.abc import Callable, Mapping
from threading import Condition

from dtrain.errors import PeerRefusedError
from dtrain.messages import Enter, Entered, FitState, Refusal
from dtrain.roles.collective.calls import CallMemory, Calls
from dtrain.roles.collective.meeting import Meeting, Shared, descriptors_of
from dtrain.roles.collective.rules import Waits
from dtrain.state.batch_cut import Dealt
from dtrain.strategies.interface import Strategy
from dtrain.strategies.multi_worker_mirrored.opening import Doors, asked
from dtrain.strategies.replicas.calls import CollectiveCalls, PeerProcesses, check
from dtrain.strategies.replicas.loops import Loops
from dtrain.wire.one_host.bells import Bells, pairs

LOOPS = 0
"""Calls of `fit` are numbered from 1; this is the number of what is not one of them."""


def begin_calls(
    meeting: Meeting, rank: int, ranks: int, wait: Callable[[Mapping[int, str], Condition], bool]
) -> tuple[CallMemory, Bells]:
    """Make the memory of the calls, as the leader, and let all others in.

    Args:
        meeting: of the loops of this task.
        rank: of this replica.
        ranks: how many there are.
        wait: see `Meeting.gather`; returns True when all are there.

    Raises:
        SharedMemoryError: the machine has not that much memory.
        TooFewReplicasError: raised by `wait`.
    """
    memory = CallMemory.make(ranks)
    meeting.gather(enter_message(), wait)
    ends = pairs(range(ranks))
    bells = Bells(ends.pop(rank))
    terms = terms_of_loops(rank, ranks)
    meeting.begin(Shared(terms, (os.dup(memory.fd),), bells, lambda: (rank, False)), ends)
    return memory, bells


def enter_calls(doors: Doors, ranks: int) -> tuple[CallMemory, Bells]:
    """Map the memory that the leader has made.

    Raises:
        PeerError: the leader is gone, or the others have begun without this task.
    """
    frame = asked(doors, enter_message())
    terms = frame.message
    if not isinstance(terms, Entered):
        said = terms.reason if isinstance(terms, Refusal) else f"answered {type(terms).__name__}"
        raise PeerRefusedError(f"{doors.leader.name}: {said}")
    memory_fd, *sockets = descriptors_of(frame)
    pairs_of = zip(terms.bells, sockets, strict=True)
    ends = {other: socket.socket(fileno=descriptor) for other, descriptor in pairs_of}
    if len(ends) < ranks - 1:
        for each in ends.values():
            each.close()
        os.close(memory_fd)
        raise late(doors.leader.name)
    return CallMemory.received(memory_fd, ranks), Bells(ends)


def make_loops(strategy: Strategy, rank: int, ranks: int, meet: Callable[[], CollectiveCalls]) -> Loops:
    """Return the replicas of a task's loops, which `meet` at their first call; an evaluator has none."""
    if rank < 0:
        return Loops(strategy, ends="the evaluator ends: a loop of the program's own evaluates for itself")
    return Loops(strategy, 1, rank, PeerProcesses(ranks, rank, meet) if ranks > 1 else None)


def calls_of(way: tuple[CallMemory, Bells], rank: int, ranks: int, waits: Waits) -> Calls:
    """Return the calls of a replica that has met the others."""
    memory, bells = way
    return Calls(memory, bells, rank, range(ranks), check, waits)


def enter_message() -> Enter:
    """Return what a replica says that comes to a loop."""
    return Enter(generation=LOOPS, plan_hash="")


def terms_of_loops(leader: int, ranks: int) -> Entered:
    """Return what the leader answers."""
    state = FitState(generation=LOOPS, dealt=Dealt(ranks))
    return Entered(state=state, leader=leader, ranks=ranks)


def late(leader: str) -> PeerRefusedError:
    """Return the error of a task that comes when the others have begun."""
    return PeerRefusedError(
        f"{leader}: the program's own loop has begun without this task, which was started again; such a loop "
        "has no recovery: start the whole run again"
    )
