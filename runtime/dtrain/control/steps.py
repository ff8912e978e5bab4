"""The control plane's part in the steps of one term, whatever the rule of updates: deal, permit, decide."""

from collections.abc import Collection, Hashable, Set
from typing import Protocol

from dtrain.control.actions import Action
from dtrain.messages import Refusal
from dtrain.protocol.part_dealer import PartDealer
from dtrain.protocol.tally import Tally
from dtrain.state.fit_state import Open


class Steps(Protocol):
    """The host's part in making versions; `AsyncSteps` and `SyncSteps` have it.

    Attributes:
        dealer: deals the parts of batches.
        tally: sums up loss and metrics of what counts.
        failed: says why training cannot go on; None while it can.
    """

    dealer: PartDealer
    tally: Tally
    failed: Refusal | None

    @property
    def version(self) -> int:
        """The newest version that is decided."""

    @property
    def held_back(self) -> bool:
        """Whether the next version waits for the leader, and this one has been made on every server."""

    @property
    def too_few(self) -> bool:
        """Whether the replicas that are alive cannot make the next version."""

    @property
    def awaits_others(self) -> bool:
        """Whether another server may not have reached the version at which training stands."""

    @property
    def standing(self) -> Hashable:
        """All that `permit` depends on beside what each rank has done: while it stays, those who were refused
        would be again.
        """

    def permit(self, rank: int) -> tuple[bool, int]:
        """Return whether a replica may push next, and the part that it is to compute."""

    def refused(self, rank: int, part: int) -> tuple[bool, int]:
        """Note that the gradient of a part was not finite; return what the replica may push next."""

    def repairs_next(self, rank: int) -> bool:
        """Return whether the part that a replica is to push next makes no step."""

    def confirm(self, rank: int, sequence: int) -> None:
        """Note that all servers have answered a replica's pushes up to this one."""

    def told_to(self, rank: int) -> Open:
        """Return the sums of the epochs that have not ended, which an answer brings to the leader alone."""

    def awaited(self) -> tuple[Collection[int], Collection[int]]:
        """Return the ranks and the servers without which the next version cannot be made."""

    def members_changed(self, live: Set[int], anew: Collection[int], now: float) -> list[Action]:
        """Note that only these ranks are alive or still expected; of those in `anew` another process has
        come.
        """

    def share_out(self, now: float) -> list[Action]:
        """Deal what has become free to replicas that wait."""

    def judge(self, now: float) -> list[Action]:
        """Decide, or give up waiting for replicas that are not there: time has passed (`now`, seconds)."""

    def hold(self) -> int:
        """Let no version be made but those under way; return the one after them."""

    def release(self, until: int | None) -> None:
        """Go on, to this version; None: to the end."""

    def end_at(self, version: int) -> None:
        """Make this version the last one."""
