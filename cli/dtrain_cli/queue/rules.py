"""The rules of the queue: who starts, why each other one waits, and until about when. Pure.

The first in line that fits starts. One that does not fit is the *head*: a later ticket passes it only if it
fits into what is free, and its own time limit ends before the head could start at the latest. A run without
a time limit may end at any moment, so no ticket passes a head that waits for one. Every plan is made from
the time limits alone: a run that ends earlier brings all later starts forward.

Times are seconds of the monotonic clock, which all processes of a machine share; infinity stands for an
unknown time. Memory is in bytes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec.structs import replace

from dtrain.errors import SpecError
from dtrain.process.plain_text import bytes_text

Amount = Annotated[int, msgspec.Meta(ge=0)]
DRAINING = "the end of the draining (`dtrain queue drain --off`)"


class Ticket(msgspec.Struct, frozen=True):
    """The claim of one launch, as its file has it.

    Attributes:
        pid: of its launcher.
        longest_s: within how many seconds from its start it has surely ended; None: it has no time limit.
        place: the lowest is first in line.
        started_s: when it got what it claims; None: it waits.
        uid, file: whose it is, and its file's name, whatever stands in the file.
    """

    run: str
    name: str
    pid: int
    cores: Amount
    memory: Amount = 0
    ports: tuple[int, ...] = ()
    longest_s: float | None = None
    place: int = 0
    started_s: float | None = None
    uid: int = -1
    file: str = ""

    def end_s(self, now_s: float) -> float:
        """Return when it has ended at the latest, if it starts now unless it has started before."""
        since_s = now_s if self.started_s is None else self.started_s
        end_s = math.inf if self.longest_s is None else since_s + self.longest_s
        return end_s if end_s > now_s else math.inf  # it is late


class Capacity(msgspec.Struct, frozen=True):
    """The cores and the memory that there are to claim."""

    cores: int
    memory: int

    def lacks(self, ticket: Ticket, busy: Sequence[Ticket]) -> str:
        """Return in words what a ticket lacks beside those that are busy; empty: it fits."""
        free = self.cores - sum(each.cores for each in busy)
        memory = self.memory - sum(each.memory for each in busy)
        wanted = {port for each in busy for port in each.ports}.intersection(ticket.ports)
        texts = [f"port {port}" for port in sorted(wanted)]
        if ticket.memory > memory:
            texts.insert(0, f"{bytes_text(ticket.memory)} of memory; {bytes_text(max(0, memory))} free")
        if ticket.cores > free:
            texts.insert(0, f"{ticket.cores} core{'s'[: ticket.cores - 1]}; {max(0, free)} free")
        return ", ".join(texts)


class Turn(msgspec.Struct, frozen=True):
    """The answer to a ticket that waits.

    Attributes:
        lacks: what is not free for it now.
        until_s: when it can start at the latest.
        awaited: the run whose end it waits for.
        head: the first that does not fit, behind which it waits.
    """

    ticket: Ticket
    starts: bool
    lacks: str = ""
    until_s: float = math.inf
    awaited: Ticket | None = None
    head: Ticket | None = None

    def why(self, name_of: Callable[[Ticket], str], clock_text: Callable[[float], str]) -> str:
        """Return for example ``waits for 6 cores; 4 free until about 14:10 (digits-3 of another user)``."""
        known = self.until_s < math.inf
        text = f"waits for {self.lacks or 'its turn'}"
        if known:
            text += f" until about {clock_text(self.until_s)}"
        if self.awaited is not None:
            text += f" ({name_of(self.awaited)}{'' if known else ' has no --timeout, or is late'})"
        return f"{text}; behind {name_of(self.head)}" if self.head is not None else text


def turns(tickets: Sequence[Ticket], capacity: Capacity, now_s: float, drained: bool) -> list[Turn]:
    """Return the turn of each ticket that waits, in the order of the line; `drained`: none starts."""
    busy = [each for each in tickets if each.started_s is not None]
    plan = [(each.end_s(now_s), each) for each in busy]
    found: list[Turn] = []
    head: Turn | None = None
    at_s = math.inf if drained else now_s
    for ticket in waiting(tickets):
        lacks = DRAINING if drained else capacity.lacks(ticket, busy)
        end_s = ticket.end_s(now_s)
        if not lacks and (head is None or end_s <= head.until_s < math.inf):
            found.append(Turn(ticket, True))
            busy.append(ticket)
            plan.append((end_s, ticket))
            continue
        # It is planned for the first moment at which it fits and no earlier one is still in line.
        for moment_s in (at_s, *sorted(end for end, _ in plan if end > at_s)):
            at_s = moment_s
            if not capacity.lacks(ticket, [each for end, each in plan if end > at_s]):
                break
        awaited = next((each for end, each in plan if end == at_s), None)
        plan = [each for each in plan if each[0] > at_s] + [(ticket.end_s(at_s), ticket)]
        found.append(Turn(ticket, False, lacks, at_s, awaited, head.ticket if head else None))
        head = head or found[-1]
    return found


def waiting(tickets: Sequence[Ticket]) -> list[Ticket]:
    return sorted((each for each in tickets if each.started_s is None), key=lambda each: each.place)


def named(tickets: Sequence[Ticket], reference: str) -> Ticket:
    """Return the ticket that waits of an id, a name or a prefix of an id, else raise a `SpecError`."""
    found = (
        [each for each in tickets if each.run == reference]
        or [each for each in tickets if each.name == reference]
        or [each for each in tickets if each.run.startswith(reference)]
    )
    if len(found) != 1:
        runs = ", ".join(each.run for each in found) or "none"
        raise SpecError(f"{reference!r}: expected one launch in the queue, found {runs}; see `dtrain queue`")
    if found[0].started_s is not None:
        raise SpecError(f"{found[0].run} does not wait: it runs; `dtrain stop` ends it")
    return found[0]


def moved(
    tickets: Sequence[Ticket], ticket: Ticket, where: str, other: Ticket | None, uid: int
) -> list[Ticket]:
    """Return the tickets that get another place, with it, if a user moves one of his own.

    The places that he holds are dealt anew among his own tickets: nobody else waits longer for it. Root
    holds all. Raise a `SpecError` where a ticket is not his.
    """
    own = [each for each in waiting(tickets) if uid in (0, each.uid)]
    order = [each for each in own if each != ticket]
    if ticket not in own or other not in (None, *order):
        raise SpecError("you can move your own launches, before your own others")
    order.insert(order.index(other) if other else len(order) if where == "last" else 0, ticket)
    return [replace(each, place=before.place) for each, before in zip(order, own, strict=True)]
