"""The settings of a replica among those of its host, and how it waits."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from dtrain.config.choices import NanPolicy, TooFew, Weighting
from dtrain.errors import WaitTimeoutError
from dtrain.process.clock import SYSTEM, Clock
from dtrain.steps.machine import quota
from dtrain.wire.one_host.synchronization import NotifySockets

LOOK_S = 1.0
"""A wait looks at the words at least this often, though no notification has come."""
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
        self, notify_sockets: NotifySockets, since_s: float, whom: Awaited | str, at_most_s: float = LOOK_S
    ) -> None:
        """Wait for a notification or a death, or raise a WaitTimeoutError if that has lasted too long."""
        left_s = self.check(since_s, whom)
        notify_sockets.wait(min(left_s, at_most_s))

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
