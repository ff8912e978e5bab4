"""What is asked of a parameter server, each question answered as soon as it can be and at its deadline at the
latest. Machine.
"""

import heapq
import math
from collections.abc import Hashable, Iterator, Sequence

from dtrain.messages import Conclude, Lookup, NotReady, Pull, Snapshot, Values
from dtrain.protocol.part_dealer import NO_PART
from dtrain.roles.parameter_server.actions import Caller, Send
from dtrain.roles.parameter_server.attendance import Attendance
from dtrain.roles.parameter_server.held import Held
from dtrain.roles.parameter_server.request import Request
from dtrain.roles.parameter_server.snapshots import Snapshots
from dtrain.roles.parameter_server.table_answers import table_answer

FEW = 3
"""So many open questions are looked at each time: that costs less than to find out whether anything has
changed.
"""
NOT_KNOWN = object()


class Questions:
    """Those of one server, by the order in which they were asked.

    While nothing has changed on which answers depend, only those are looked at that are new, that have
    reached their deadline, or that want a snapshot. So a message costs the same however many replicas wait.

    Attributes:
        open: by number, the ones that are not answered yet.
    """

    def __init__(self, attendance: Attendance, snapshots: Snapshots) -> None:
        self._attendance = attendance
        self._snapshots = snapshots
        self.open: dict[int, Request] = {}
        self._asked = 0
        self._look_at: list[int] = []
        self._deadlines: list[tuple[float, int]] = []
        self._standing_then: Hashable = None
        self._next_version = math.inf

    def ask(self, request: Request) -> None:
        """Take a question."""
        self._asked += 1
        self.open[self._asked] = request
        self._look_at.append(self._asked)
        heapq.heappush(self._deadlines, (request.deadline_s, self._asked))

    def forget(self, caller: Caller) -> None:
        """Drop the questions of a connection that is gone."""
        self.open = {number: request for number, request in self.open.items() if request.caller != caller}

    def answers(self, held: Held | None, now: float) -> Iterator[Send]:
        """To whatever can be answered now."""
        for number in self._to_look_at(held, now):
            request = self.open[number]
            answer = self._answer(request, held, late=now >= request.deadline_s)
            if answer is not None:
                del self.open[number]
                yield answer
            elif isinstance(request.message, Snapshot):
                self._look_at.append(number)
            elif (
                isinstance(request.message, Pull)
                and held is not None
                and held.pushes.version < request.message.at_least
            ):
                self._next_version = min(self._next_version, request.message.at_least)
        self._standing_then = self._standing(held) if len(self.open) > FEW else NOT_KNOWN

    def _to_look_at(self, held: Held | None, now: float) -> Sequence[int]:
        """Numbers of the questions that may have an answer that they did not have before."""
        numbers, self._look_at = self._look_at, []
        while self._deadlines and self._deadlines[0][0] <= now:
            numbers.append(heapq.heappop(self._deadlines)[1])
        if len(self.open) <= FEW or self._standing(held) != self._standing_then:
            self._next_version = math.inf
            return list(self.open)
        return sorted(self.open.keys() & numbers)

    def _standing(self, held: Held | None) -> Hashable:
        """All on which the answer to a question depends that is neither a snapshot nor late."""
        ended = self._attendance.farewell, self._attendance.concluded_generation
        if held is None:
            return ended
        pushes = held.pushes
        reached = pushes.version >= self._next_version, held.finished, pushes.held_back
        return ended, held.generation, held.term, pushes.failed, reached, pushes.standing

    def _answer(self, request: Request, held: Held | None, late: bool) -> Send | None:
        message, attendance = request.message, self._attendance
        later = (
            held is not None and held.generation > message.generation if isinstance(message, Pull) else False
        )
        if (
            isinstance(message, Pull)
            and message.concluded
            and (later or attendance.concluded(message.generation))
        ):
            history = held.history if held is not None else {}  # a server that was started again holds none
            rows = history.get(message.generation) or attendance.rows.get(message.generation, {})
            return Send(request.caller, Conclude(generation=message.generation, rows=rows))
        asked = 0 if isinstance(message, Snapshot) else message.generation
        if held is None or held.term < message.term or held.generation < asked:
            reason = f"ps:{attendance.index} waits for {attendance.leader} to initialise the variables"
            return (
                Send(request.caller, NotReady(reason=reason))
                if late or isinstance(message, Snapshot)
                else None
            )
        if asked and (held.generation > asked or 0 < message.term < held.term):
            return moved_on(request.caller, held)
        if held.pushes.failed:
            return Send(request.caller, held.pushes.failed)
        if isinstance(message, Snapshot):
            answer = self._snapshots.answer(held, message, late)
            return Send(request.caller, answer) if answer else None
        if isinstance(message, Lookup):
            rank, leads = attendance.ranks.get(request.task), request.task == attendance.leader
            return Send(request.caller, *table_answer(held, message, request.blocks, rank, whole=leads))
        if held.pushes.version < message.at_least and not late:
            return None
        if message.concluded:
            return (
                Send(request.caller, NotReady(reason=f"{attendance.leader} has not saved the last step"))
                if late
                else None
            )
        return self._values(request, message, held, late)

    def _values(self, request: Request, message: Pull, held: Held, late: bool) -> Send | None:
        rank = self._attendance.ranks.get(request.task)
        finished = held.finished
        if rank is None and self._attendance.index == 0 and held.pushes.version < message.at_least:
            # A leader that does not train waits for this version; values on the way would be one more copy.
            return Send(request.caller, NotReady(reason="training goes on"))
        if rank is None and held.awaits_others and not late:
            return None
        ticket, part = held.pushes.permit(rank) if rank is not None and not finished else (False, NO_PART)
        leads = request.task == self._attendance.leader
        held_back = held.pushes.held_back and leads
        if rank is not None and not (ticket or finished or held_back or late):
            return None
        values = Values(
            generation=held.generation,
            version=held.pushes.version,
            max_steps=held.max_steps,
            ticket=ticket,
            part=part,
            term=held.term,
            first_step=held.lineage.first_step,
            held=held_back,
            parts=held.cut.parts,
            tally=held.pushes.told() if leads else (),
            repairs=rank is not None and held.repairs(rank),
            settled=not held.awaits_others,
            even=held.cut.even,
        )
        return Send(
            request.caller, values, held.store.values if rank is None else held.pushes.values_for(rank, leads)
        )


def moved_on(caller: Caller, held: Held) -> Send:
    """To one who is a generation or a term behind: there is another one now. Its values may be of another
    shape.
    """
    return Send(
        caller,
        Values(
            generation=held.generation,
            version=held.pushes.version,
            max_steps=held.max_steps,
            ticket=False,
            term=held.term,
        ),
    )
