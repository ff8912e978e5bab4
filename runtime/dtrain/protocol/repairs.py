"""Which batches that ps:0 has applied some other server may lack, and which replica pushes them again. Rule
5.

    1. A replica pushes a batch to every server, and goes on when all have answered. So a batch is
       *unconfirmed* from its arrival at ps:0 until the replica's next push, or until it says that all servers
       have answered.
    2. If the replica is lost before, or another process has taken its place, the push may have reached some
       servers only. Then the batch is due for repair: any replica computes it again and pushes it to every
       server; those that have it pass over it.
    3. A repair makes no step and needs no ticket of the gate. It is itself unconfirmed until all servers have
      answered.
    4. While a batch is unconfirmed or under repair, the servers may contain different batches: neither the
       end of training nor a version at which the leader holds it has come.

Kept by ps:0 where there are other servers.
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
        """Whether every server has all that ps:0 has."""
        return not (self.unconfirmed or self.due or self.given)

    @property
    def ranks(self) -> Collection[int]:
        """The replicas that are waited for."""
        return self.unconfirmed.keys() | self.given.keys()

    def pushed(self, rank: int, incarnation: int, sequence: int, batch: int) -> None:
        """Note that ps:0 has accepted a push: the one before it was answered everywhere, if the same process
        sent it.
        """
        before = self.unconfirmed.get(rank)
        if before is not None and before[0] != incarnation and before[2] != batch:
            self.due[before[2]] = None
        self.unconfirmed[rank] = incarnation, sequence, batch
        if self.given and self.given.get(rank) == batch:
            del self.given[rank]

    def confirmed(self, rank: int, sequence: int) -> None:
        """Note that all servers have answered a replica's pushes up to this one."""
        entry = self.unconfirmed.get(rank)
        if entry is not None and entry[1] <= sequence:
            del self.unconfirmed[rank]

    def lose(self, rank: int) -> None:
        """Have pushed again what a replica may have pushed to some servers only: it is lost, or its process
        was started again.
        """
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
        """Have another replica, or the same one later, push again what this one did not."""
        batch = self.given.pop(rank, None)
        if batch is not None:
            self.due[batch] = None
