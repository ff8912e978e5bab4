"""The members of a run: heartbeats, leases, incarnations. ps:0 keeps them; every server keeps the leader's.

The rule *No silent wait* (docs/design/protocol.md#no-silent-wait) needs:

1. A member renews its lease with every heartbeat; without one for `lease_s` it is lost.
2. A member has an incarnation. A process that is new, or comes back after it was lost, gets the next one.
3. Of two processes of one task the later one is the task: messages of the earlier one are refused, however
   late they arrive.
4. A member that says goodbye has left; no task waits for it, and it is not lost.
5. An expected member that was never seen is awaited for `join_s` after the start, and then counts as lost;
   one that the server before this one had seen is awaited for a lease.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class MemberState(StrEnum):
    """The state of a member."""

    EXPECTED = "expected"
    LIVE = "live"
    LEFT = "left"
    LOST = "lost"


LEASE_S = 5.0
NO_PROCESS = (-1, 0.0)


class Member(msgspec.Struct):
    """One task, as ps:0 knows it.

    Attributes:
        deadline_s: the time at which it counts as lost without another heartbeat.
        process: the newest one known; later ones are larger.
    """

    state: MemberState
    incarnation: int
    deadline_s: float
    process: tuple[int, float] = NO_PROCESS


class Membership:
    """The table of members, written ``worker:0``; `gone` are those that are lost or have left."""

    def __init__(self, expected: Iterable[str], *, lease_s: float, join_s: float, now: float) -> None:
        self.lease_s = lease_s
        self.gone: set[str] = set()
        self.members = {task: Member(MemberState.EXPECTED, 0, now + join_s) for task in expected}

    def heartbeat(self, task: str, process: tuple[int, float], incarnation: int, now: float) -> int | None:
        """Renew a lease; return the task's incarnation from now on, None if the process is refused (law 3).
        `incarnation` is the one that it was given before (by a server that may have forgotten), or 0.
        """
        member = self.members.setdefault(task, Member(MemberState.EXPECTED, 0, now))
        if process < member.process and member.state is MemberState.LIVE:
            return None
        if incarnation > member.incarnation:
            member.incarnation = incarnation
        elif process != member.process or member.state is MemberState.LOST:
            member.incarnation += 1
        member.state = MemberState.LIVE
        member.process = process
        self.gone.discard(task)
        member.deadline_s = now + self.lease_s
        return member.incarnation

    def expect(self, task: str, deadline_s: float) -> None:
        """Add a task of which no heartbeat has come yet; by the deadline it is lost."""
        self.members.setdefault(task, Member(MemberState.EXPECTED, 0, deadline_s))

    def heard_before(self, tasks: Iterable[str], now: float) -> None:
        """Expect these tasks within a lease, which the server that kept this table before had known."""
        for member in (self.members[task] for task in tasks if task in self.members):
            if member.state is MemberState.EXPECTED:
                member.deadline_s = min(member.deadline_s, now + self.lease_s)

    def leave(self, task: str) -> None:
        if task in self.members:
            self.members[task].state = MemberState.LEFT
            self.gone.add(task)

    def expire(self, now: float) -> list[str]:
        waiting = (MemberState.LIVE, MemberState.EXPECTED)
        lost = [
            task
            for task, member in self.members.items()
            if member.state in waiting and now > member.deadline_s
        ]
        for task in lost:
            self.members[task].state = MemberState.LOST
        self.gone.update(lost)
        return lost

    def state(self, task: str) -> MemberState | None:
        member = self.members.get(task)
        return member.state if member else None

    def incarnation(self, task: str) -> int:
        member = self.members.get(task)
        return member.incarnation if member else 0

    def tasks(self, *states: MemberState) -> tuple[str, ...]:
        return tuple(task for task, member in self.members.items() if member.state in states)
