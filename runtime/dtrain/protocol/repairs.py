"""Batches that ps:0 has applied and another server may lack, and the replicas that push them again.

The rule *Exactly once* (docs/design/protocol.md#exactly-once); ps:0 keeps this where there are other servers:

1. A replica pushes a batch to every server, and goes on when all have answered. So a batch is *unconfirmed*
   from its arrival at ps:0 until the replica's next push, or until it says that all servers have answered.
2. If the replica is lost before, or another process has taken its place, the push may have reached some
   servers only. Then the batch is due for repair: any replica computes it again and pushes it to every
   server; those that have it pass over it.
3. A repair makes no step and needs no ticket of the gate. It is itself unconfirmed until all servers have
   answered.
4. While a batch is unconfirmed or under repair, servers may contain different batches: training has not
   ended, and has not reached a version at which the leader holds it.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from dtrain.protocol.part_dealer import NO_PART


@dataclass
class Repairs:
    """The batches of one term that are not known to be on every server.

    Attributes:
        due: to be pushed again, in the order in which they are given out.
        unconfirmed: by rank the incarnation and sequence of its newest accepted push, and its batch.
        given: by rank, the batch that it is to push again.
    """

    due: dict[int, None] = field(default_factory=dict)
    unconfirmed: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    given: dict[int, int] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """True if every server has all that ps:0 has."""
        return not (self.unconfirmed or self.due or self.given)

    @property
    def ranks(self) -> Collection[int]:
        """Ranks of the replicas that are waited for."""
        return self.unconfirmed.keys() | self.given.keys()

    def pushed(self, rank: int, incarnation: int, sequence: int, batch: int) -> None:
        """Record that ps:0 accepted a push, so the same process's earlier push was answered everywhere."""
        before = self.unconfirmed.get(rank)
        if before is not None and before[0] != incarnation and before[2] != batch:
            self.due[before[2]] = None
        self.unconfirmed[rank] = incarnation, sequence, batch
        if self.given and self.given.get(rank) == batch:
            del self.given[rank]

    def confirmed(self, rank: int, sequence: int) -> None:
        """Record that all servers have answered a replica's pushes up to this one."""
        entry = self.unconfirmed.get(rank)
        if entry is not None and entry[1] <= sequence:
            del self.unconfirmed[rank]

    def lose(self, rank: int) -> None:
        """Repair what a replica, lost or started again, may have pushed to some servers only."""
        entry = self.unconfirmed.pop(rank, None)
        if entry is not None:
            self.due[entry[2]] = None
        self.give_back(rank)

    def give(self, rank: int) -> int:
        """Return the batch that a replica is to push again; NO_PART if there is none."""
        if rank not in self.given and self.due:
            batch = next(iter(self.due))
            del self.due[batch]
            self.given[rank] = batch
        return self.given.get(rank, NO_PART)

    def give_back(self, rank: int) -> None:
        """Let another replica, or the same one later, push again what this one did not."""
        batch = self.given.pop(rank, None)
        if batch is not None:
            self.due[batch] = None
