"""Questions to a parameter server: values, rows of tables, and its state for a checkpoint. Machine.

Rule *Consistent checkpoints* (docs/design/protocol.md#consistent-checkpoints).

In sync a checkpoint is one version, and nothing waits. In async every server counts its own versions; a
checkpoint is one cut when all servers have applied the same batches. So the leader marks every server: from
then on new pushes wait. What any of them had applied when it was marked is on its way to the others, who let
it pass; when a server has all of it, it remembers its state, and the pushes that waited are dealt with. It
waits for no replica that computes, only for a push to arrive everywhere. One that never does, of a replica
that died halfway, is not waited for long, nor is a leader that is gone: the mark runs out. Then the
checkpoint is no cut, but says of every server which batches it contains; see `protocol.applied_batches`.
"""

import heapq
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import msgspec
import numpy as np

from dtrain.cluster import TaskId
from dtrain.control.interface import Caller, NextTurn, Note, Send
from dtrain.control.machine import ControlPlane
from dtrain.errors import InputError
from dtrain.messages import (
    AnyMessage,
    Conclude,
    Load,
    Loaded,
    LookupRows,
    Mark,
    NotReady,
    Pull,
    Push,
    Refusal,
    Rows,
    Snapshot,
    SnapshotReply,
    SnapshotRows,
    Values,
)
from dtrain.protocol.applied_batches import AppliedBatches
from dtrain.roles.parameter_server.term_state import TermState
from dtrain.runs.events import CutTaken
from dtrain.types import Blocks

Question = Pull | LookupRows | Snapshot


class PendingRequest(msgspec.Struct, frozen=True):
    """A request, which is answered at its deadline at the latest."""

    caller: Caller
    task: str
    message: Question
    deadline_s: float
    blocks: Sequence[np.ndarray[Any, Any]] = ()


def table_answer(
    held: TermState | None,
    message: Load | LookupRows | SnapshotRows,
    blocks: Blocks,
    rank: int | None = None,
    whole: bool = True,
) -> tuple[AnyMessage, Blocks]:
    """Return the answer and its blocks, or a refusal; rows are compressed unless they are to be `whole`."""
    if held is None:
        return Refusal(reason=f"there are no tables for {type(message).__name__} in this term"), ()
    try:
        match message:
            case Load():
                held.store.table(message.table).load(message.array, message.start, message.stop, *blocks)
                return Loaded(), ()
            case LookupRows():
                rows = held.rule.rows_for(rank, message.tables, blocks)
                rows = rows if whole else held.store.compressed_rows(message.tables, rows)
            case SnapshotRows():
                rows = [held.store.read_snapshot(message.part, message.array, message.start, message.stop)]
        return Rows(), rows
    except (InputError, ValueError, TypeError) as error:
        return Refusal(reason=f"{type(message).__name__} does not fit: {error}"), ()


Delivery = tuple[Caller, TaskId, Push, Blocks]
"""A push as it arrived."""

UNREAD_S = 60.0
"""A snapshot that has not been read for so long is dropped: its leader is gone, or its disk is full."""


class Snapshots(msgspec.Struct):
    """One server's part in checkpoints.

    Attributes:
        number: of the question that was answered last: what is remembered was meant for it.
        marked_until_s: until then pushes wait, in async, for a snapshot to be taken.
    """

    number: int = 0
    taken: CutTaken = msgspec.field(default_factory=lambda: CutTaken(step=0, whole=True))
    waiting: list[Delivery] = msgspec.field(default_factory=list)
    marked_until_s: float = -math.inf
    _forget_at_s: float = math.inf
    _covers_more: bool = False
    _covers: AppliedBatches = msgspec.field(default_factory=AppliedBatches)

    def mark(self, question: Mark, now: float) -> None:
        self.marked_until_s, self._covers = now + question.wait_s, AppliedBatches()

    def asked(self, question: Snapshot, now: float) -> None:
        """Record that the state is wanted: pushes that it is to contain need not wait."""
        self._covers = AppliedBatches(*question.covers)
        if now < self.marked_until_s:
            self.marked_until_s = now + question.wait_s
            self._covers_more = True
        self._forget_at_s = now + question.wait_s + UNREAD_S

    def read(self, now: float) -> None:
        self._forget_at_s = now + UNREAD_S

    def tick(self, held: TermState | None, now: float) -> None:
        if now >= self._forget_at_s and held is not None:
            self._forget_at_s = math.inf
            held.store.forget_snapshots()

    def keeps(self, delivery: Delivery) -> bool:
        """Keep a push that comes while the server is marked, unless the snapshot is to contain it."""
        waits = delivery[2].part not in self._covers
        if waits:
            self.waiting.append(delivery)
        return waits

    def released(self, now: float) -> list[Delivery]:
        """Return the pushes that need not wait any more, to be handled as if they came now."""
        if now < self.marked_until_s and not self._covers_more:
            return []
        self._covers_more = False
        waiting, self.waiting = self.waiting, []
        return [each for each in waiting if now >= self.marked_until_s or not self.keeps(each)]

    def disconnected(self, caller: Caller) -> None:
        """Drop the waiting pushes of a lost connection, which will come again."""
        self.waiting = [delivery for delivery in self.waiting if delivery[0] != caller]

    def answer(self, held: TermState, question: Snapshot, late: bool) -> SnapshotReply | None:
        """Return the state, once it is what was asked for, or late; pushes need not wait any more."""
        applied = held.applied
        whole = held.version >= question.at_least and (applied is None or applied.covers(question.covers))
        if not (whole or late):
            return None
        if applied is not None:
            applied.forget_below(question.settled)
        self.marked_until_s, self.number = -math.inf, question.number
        self.taken = CutTaken(step=held.version, whole=whole)
        held.store.mark()
        return SnapshotReply(state=held.state, slots=held.store.slot_names, assigned=held.store.assigned)


FEW = 3
"""Up to this number, all open questions are checked each time: finding out what has changed costs more."""
NOT_KNOWN = object()
OPEN_MAX = 16
"""The limit of open questions on one connection. A task asks one and waits for its answer."""


class Questions:
    """The open questions to one server, in the order in which they were asked.

    While nothing has changed on which answers depend, only those are looked at that are new, that have
    reached their deadline, or that want a snapshot. So a message costs the same however many replicas wait.

    Attributes:
        open: by number, the ones that are not answered yet.
        wakes_at: while nothing but steps happens, none has an answer before this version.
    """

    def __init__(self, control: ControlPlane, snapshots: Snapshots) -> None:
        self._control = control
        self._roster = control.roster
        self._snapshots = snapshots
        self.open: dict[int, PendingRequest] = {}
        self.wakes_at = math.inf
        self._asked = 0
        self._open_of: Counter[Caller] = Counter()
        self._look_at: list[int] = []
        self._deadlines: list[tuple[float, int]] = []
        self._last_fingerprint: Hashable = None
        self._next_version = math.inf
        self._waits_for_more = False

    def ask(self, request: PendingRequest) -> str | None:
        """Take a question; return why not, if too many of its connection are open."""
        if self._open_of[request.caller] >= OPEN_MAX:
            return f"{request.task} asks again and again: {OPEN_MAX} of its questions are open already"
        self._open_of[request.caller] += 1
        self._asked += 1
        self.wakes_at = -math.inf
        self.open[self._asked] = request
        self._look_at.append(self._asked)
        heapq.heappush(self._deadlines, (request.deadline_s, self._asked))
        return None

    def disconnected(self, caller: Caller) -> None:
        """Drop the questions of a connection that is gone."""
        self.open = {number: request for number, request in self.open.items() if request.caller != caller}
        self._open_of.pop(caller, None)

    def answers(self, held: TermState | None, now: float) -> list[Send | Note]:
        answers: list[Send | Note] = []
        for number in self._to_look_at(held, now):
            request = self.open[number]
            answer = self._answer(request, held, late=now >= request.deadline_s)
            if answer is not None:
                del self.open[number]
                self._open_of[request.caller] -= 1
                answers.append(answer)
                if isinstance(answer.message, SnapshotReply):
                    answers.append(Note(self._snapshots.taken))
            else:
                self._wait(number, request.message, held)
        self._last_fingerprint = self._fingerprint(held) if len(self.open) > FEW else NOT_KNOWN
        self.wakes_at = -math.inf if self._waits_for_more else self._next_version
        return answers

    def _wait(self, number: int, question: Question, held: TermState | None) -> None:
        if isinstance(question, Snapshot):
            self._look_at.append(number)
            self._waits_for_more = True
        elif held is None or held.generation < question.generation or held.term < question.term:
            return  # it waits for the leader
        elif isinstance(question, Pull) and held.version < question.at_least:
            self._next_version = min(self._next_version, question.at_least)
        elif not (isinstance(question, Pull) and question.concluded):
            self._waits_for_more = True

    def _to_look_at(self, held: TermState | None, now: float) -> Sequence[int]:
        numbers, self._look_at = self._look_at, []
        while self._deadlines and self._deadlines[0][0] <= now:
            numbers.append(heapq.heappop(self._deadlines)[1])
        if len(self.open) <= FEW or self._fingerprint(held) != self._last_fingerprint:
            self._next_version = math.inf
            self._waits_for_more = False
            return list(self.open)
        return sorted(self.open.keys() & numbers)

    def _fingerprint(self, held: TermState | None) -> Hashable:
        """Return all, but for snapshots and deadlines, on which the answer to a question depends."""
        ended = self._roster.farewell, self._roster.concluded_generation
        if held is None:
            return ended
        steps = held.steps
        reached = held.version >= self._next_version, held.finished, held.held_back
        permits = held.version if steps is None else steps.fingerprint
        return ended, held.generation, held.term, held.failed, reached, permits

    def _answer(self, request: PendingRequest, held: TermState | None, late: bool) -> Send | None:
        message, roster = request.message, self._roster
        later = (
            held is not None and held.generation > message.generation if isinstance(message, Pull) else False
        )
        if (
            isinstance(message, Pull)
            and message.concluded
            and (later or roster.concluded(message.generation))
        ):
            history = held.history if held is not None else {}  # a server that was started again holds none
            rows = history.get(message.generation) or roster.rows.get(message.generation, {})
            return Send(request.caller, Conclude(generation=message.generation, rows=rows))
        asked = 0 if isinstance(message, Snapshot) else message.generation
        if held is None or held.term < message.term or held.generation < asked:
            reason = f"{self._control.task} waits for {roster.leader} to initialise the variables"
            return (
                Send(request.caller, NotReady(reason=reason))
                if late or isinstance(message, Snapshot)
                else None
            )
        if asked and (held.generation > asked or 0 < message.term < held.term):
            return moved_on(request.caller, held)
        if held.failed:
            return Send(request.caller, held.failed)
        if isinstance(message, Snapshot):
            answer = self._snapshots.answer(held, message, late)
            return Send(request.caller, answer) if answer else None
        if isinstance(message, LookupRows):
            rank, leads = roster.ranks.get(request.task), request.task == roster.leader
            return Send(request.caller, *table_answer(held, message, request.blocks, rank, whole=leads))
        if held.version < message.at_least and not late:
            return None
        if message.concluded:
            return (
                Send(request.caller, NotReady(reason=f"{roster.leader} has not saved the last step"))
                if late
                else None
            )
        return self._values(request, message, held, late)

    def _values(self, request: PendingRequest, message: Pull, held: TermState, late: bool) -> Send | None:
        rank = self._roster.ranks.get(request.task)
        finished = held.finished
        if rank is None and self._control.hosts and held.version < message.at_least:
            # A leader that does not train waits for this version; values on the way would be one more copy.
            return Send(request.caller, NotReady(reason="training goes on"))
        if rank is None and held.awaits_others and not late:
            return None
        turn: NextTurn = {"ticket": False} if rank is None or finished else held.next_turn(rank)
        leads = request.task == self._roster.leader
        held_back = held.held_back and leads
        if rank is not None and not (turn.get("ticket", True) or finished or held_back or late):
            return None
        if leads and held.steps is not None:
            turn["tally"] = held.steps.tally.open()
        values = Values(
            generation=held.generation,
            version=held.version,
            max_steps=held.max_steps,
            term=held.term,
            first_step=held.lineage.first_step,
            held=held_back,
            parts=held.cut.parts,
            settled=not held.awaits_others,
            even=held.cut.even,
            rest=held.cut.rest,
            inner=held.store.optimizer.inner,
            **turn,
        )
        return Send(
            request.caller, values, held.store.values if rank is None else held.rule.shown_to(rank, leads)
        )


def moved_on(caller: Caller, held: TermState) -> Send:
    """Tell a task in an earlier generation or term of the present one. Its values may be of another shape."""
    return Send(
        caller,
        Values(
            generation=held.generation,
            version=held.version,
            max_steps=held.max_steps,
            ticket=False,
            term=held.term,
        ),
    )
