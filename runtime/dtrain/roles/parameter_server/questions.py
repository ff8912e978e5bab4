"""What is asked of a parameter server, each question answered as soon as it can be and at its deadline at the latest. Machine."""

from collections.abc import Iterator

from dtrain.messages import Conclude, Lookup, NotReady, Pull, Refusal, Snapshot, Values
from dtrain.protocol.membership import MemberState
from dtrain.roles.parameter_server.actions import Caller, Send
from dtrain.roles.parameter_server.attendance import Attendance
from dtrain.roles.parameter_server.held import Held
from dtrain.roles.parameter_server.request import Request
from dtrain.roles.parameter_server.snapshots import Snapshots
from dtrain.roles.parameter_server.table_answers import table_answer


class Questions:
    """Those of one server.

    Attributes:
        open: the ones that are not answered yet.
    """

    def __init__(self, attendance: Attendance, snapshots: Snapshots) -> None:
        self._attendance = attendance
        self._snapshots = snapshots
        self.open: list[Request] = []

    def ask(self, request: Request) -> None:
        """Somebody wants to know."""
        self.open.append(request)

    def forget(self, caller: Caller) -> None:
        """Nobody listens any more on a connection that is gone."""
        self.open = [request for request in self.open if request.caller != caller]

    def answers(self, held: Held | None, now: float) -> Iterator[Send]:
        """To whatever can be answered now."""
        requests, self.open = self.open, []
        for request in requests:
            answer = self._answer(request, held, late=now >= request.deadline_s)
            if answer is None:
                self.open.append(request)
            else:
                yield answer

    def _answer(self, request: Request, held: Held | None, late: bool) -> Send | None:
        message, attendance = request.message, self._attendance
        if isinstance(message, Pull) and message.concluded and attendance.concluded(message.generation):
            return Send(request.caller, Conclude(message.generation))
        asked = 0 if isinstance(message, Snapshot) else message.generation
        if held is None or held.term < message.term or held.generation < asked:
            reason = f"ps:{attendance.index} waits for {attendance.leader} to initialise the variables"
            return Send(request.caller, NotReady(reason)) if late or isinstance(message, Snapshot) else None
        if asked and (held.generation > asked or 0 < message.term < held.term):
            return moved_on(request.caller, held)
        if held.pushes.failed:
            return Send(request.caller, Refusal(held.pushes.failed))
        if isinstance(message, Snapshot):
            answer = self._snapshots.answer(held, message, attendance.membership.tasks(MemberState.LIVE), late)
            return Send(request.caller, answer) if answer else None
        if isinstance(message, Lookup):
            rank, leads = attendance.ranks.get(request.task), request.task == attendance.leader
            return Send(request.caller, *table_answer(held, message, request.blocks, rank, whole=leads))
        if held.pushes.version < message.at_least and not late:
            return None
        if message.concluded:
            return Send(request.caller, NotReady(f"{attendance.leader} has not saved the last step")) if late else None
        return self._values(request, message, held, late)

    def _values(self, request: Request, message: Pull, held: Held, late: bool) -> Send | None:
        rank = self._attendance.ranks.get(request.task)
        finished = held.pushes.version >= held.max_steps
        if rank is None and self._attendance.index == 0 and held.pushes.version < message.at_least:
            # A leader that does not train waits for this version; values on the way would be one more copy.
            return Send(request.caller, NotReady("training goes on"))
        ticket = not finished and rank is not None and held.pushes.ticket(rank)
        leads = request.task == self._attendance.leader
        held_back = held.pushes.held_back and leads
        if rank is not None and not (ticket or finished or held_back or late):
            return None
        batch = held.dealer.give(rank) if rank is not None and ticket else -1
        step, plan, first_step = held.pushes.version, held.plan.to_dict(), held.lineage.first_step
        values = Values(held.generation, step, held.max_steps, plan, ticket, batch, held.term, first_step, held_back)
        return Send(request.caller, values, held.store.values if rank is None else held.pushes.values_for(rank, leads))


def moved_on(caller: Caller, held: Held) -> Send:
    """To one who is a generation or a term behind: there is another one now. Its values may be of another shape."""
    return Send(caller, Values(held.generation, held.pushes.version, held.max_steps, {}, ticket=False, term=held.term))
