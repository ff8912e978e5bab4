"""The settings of a replica among those of its host, and how it waits."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

import msgspec

from dtrain.collectives.board import Board
from dtrain.config.choices import NanPolicy, TooFew, Weighting
from dtrain.errors import TooFewReplicasError, WaitTimeoutError
from dtrain.messages import Sums
from dtrain.process.clock import SYSTEM, Clock
from dtrain.protocol.sync_round import quota
from dtrain.state.fit_state import Open
from dtrain.wire.one_host.synchronization import Doorbells

LOOK_S = 1.0
"""A wait looks at the words at least this often, though no doorbell was heard."""
PATIENCE_S = 600.0


class Rules(msgspec.Struct, frozen=True):
    """The settings by which gradients make versions; the same in every replica.

    Attributes:
        too_few: what happens while fewer replicas are left than the parts of a step need.
        replicas: how many train at the start; None: as many as there are parts.
        alone: whether the first member computes every part of every batch.
    """

    weighting: Weighting = Weighting.REPLICAS
    nan_policy: NanPolicy = NanPolicy.REFUSE
    too_few: TooFew = TooFew.SHRINK
    too_few_timeout_s: float = 60.0
    replicas: int | None = None
    alone: bool = False

    def needed(self, parts: int, open_parts: int) -> int:
        return -(-open_parts // quota(parts, self.replicas or parts))


class Orders(Protocol):
    """The leader's orders, as every replica finds them."""

    def heed(self, version: int) -> None:
        """Let what is ordered hold from this version on: every replica has arrived in the round that it
        begins, so that all find the same.
        """

    def carry_out(self) -> None:
        """Write the orders into the memory of all; another replica may write them again."""

    def sums_after(self, version: int, given: Sequence[Sums]) -> Open:
        """Return the sums of the epochs that have not ended, with those given for the step that is being made
        from this version; they are not counted by that.
        """


class Book(Protocol):
    """The leader's ledger at this host, as the replica that speaks for the host uses it."""

    @property
    def entries(self) -> Mapping[str, bytes]: ...

    @property
    def concluded(self) -> bool:
        """Whether the leader has ended training, as far as this replica has read."""

    def receive(self, entries: Mapping[str, bytes], *, whole: bool) -> None:
        """Write what the leader, at another host, has written; with `whole` nothing else counts any more."""


class Across(Protocol):
    """One replica's part in the agreement of its host with others."""

    def poll(self, number: int, dead: Set[int]) -> bool:
        """Receive what other hosts have done; return whether the words of the board have changed. Raises a
        PeerError if this host does not go on with the others.
        """

    def over(self, number: int) -> None: ...

    @property
    def leads(self) -> bool: ...

    @property
    def elsewhere(self) -> Set[int]:
        """The ranks of live replicas at other hosts, as far as the leader knows them."""

    @property
    def awaited(self) -> str:
        """The tasks for which this one waits while other hosts are late, or ""."""

    @property
    def has_newcomers(self) -> bool:
        """Whether hosts join in this round, which this replica, as the leader, has to welcome."""

    def welcome(self) -> None:
        """Send them the variables, which stay as they are until these hosts have them."""

    def set_book(self, book: Book) -> None: ...

    def record(self, entries: Mapping[str, bytes]) -> None:
        """Send the other hosts what this replica has written into its ledger, where it leads."""

    def close(self) -> None: ...


class NoOrders:
    """A leader that orders nothing."""

    def heed(self, version: int) -> None: ...

    def carry_out(self) -> None: ...

    def sums_after(self, version: int, given: Sequence[Sums]) -> Open:
        return ()


class Awaited(NamedTuple):
    """The ranks for which a replica waits. The text, which names every rank, is made only where it is shown.

    Attributes:
        elsewhere: the tasks of other hosts that are awaited as well.
    """

    name_of: Callable[[int], str]
    ranks: Sequence[int]
    what: str
    elsewhere: str = ""

    def __str__(self) -> str:
        names = [*map(self.name_of, self.ranks), *([self.elsewhere] if self.elsewhere else [])]
        return f"{', '.join(names)}, {self.what}"


class Waits(msgspec.Struct, frozen=True):
    """How a replica waits.

    Attributes:
        waiting: called at every look with whom this replica waits for, and with None when the wait is over.
        patience_s: how long it waits for the same ranks.
    """

    name_of: Callable[[int], str] = "replica {}".format
    waiting: Callable[[Awaited | str | None], None] = lambda _: None
    patience_s: float = PATIENCE_S
    clock: Clock = SYSTEM

    def wait(
        self, doorbells: Doorbells, since_s: float, whom: Awaited | str, at_most_s: float = LOOK_S
    ) -> None:
        """Wait for a notification or a death, or raise a WaitTimeoutError if that has lasted too long."""
        left_s = self.check(since_s, whom)
        doorbells.wait(min(left_s, at_most_s))

    def check(self, since_s: float, whom: Awaited | str) -> float:
        """Say for whom this replica waits; return how long it may, or raise a WaitTimeoutError."""
        left_s = since_s + self.patience_s - self.clock.now()
        if left_s <= 0:
            raise WaitTimeoutError(
                f"waited {self.patience_s:g} s for {whom}; expected it within that time: see what these "
                "tasks do, or end them, and the others go on"
            )
        self.waiting(whom)
        return left_s


class Shortage:
    """The time for which too few replicas live, as one of them measures it."""

    def __init__(self, board: Board, rules: Rules, clock: Clock) -> None:
        self._board = board
        self._rules = rules
        self._clock = clock
        self._since_s: float | None = None

    def goes_on(self, number: int, version: int, needed: int, live: int) -> float:
        """Return since when too few replicas live for round `number`, or raise a TooFewReplicasError."""
        rules, now_s = self._rules, self._clock.now()
        if self._since_s is None:
            self._since_s = now_s
        waited_s = now_s - self._since_s
        is_over = rules.too_few == TooFew.FAIL or waited_s >= rules.too_few_timeout_s
        if is_over or self._board.gave_up[0] == number:
            self._board.gave_up[0] = number  # else the other members might only find that it has ended
            raise TooFewReplicasError(
                f"too few replicas: {needed} are needed for version {version + 1} and {live} are left, for "
                f"{waited_s:.1f} s (training.too_few: {rules.too_few})"
            )
        return self._since_s

    def ends(self) -> None:
        self._since_s = None
