"""Why an exchange with the servers has failed."""

from collections.abc import Iterator
from contextlib import contextmanager

from dtrain.errors import DtrainError
from dtrain.roles.chief.keeper.driver import Keeper
from dtrain.roles.heartbeat import HeartbeatLink


class Failures:
    """The failures that heartbeat and keeper know, which explain a broken connection."""

    def __init__(self, link: HeartbeatLink, keeper: Keeper | None) -> None:
        self._link = link
        self._keeper = keeper

    def reason_of(self, error: DtrainError) -> DtrainError:
        """Return why the keeper or the heartbeat has given up, or the error itself."""
        return self._link.failure or (self._keeper and self._keeper.failure) or error

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the reason of whatever fails within it."""
        try:
            yield
        except DtrainError as error:
            raise self.reason_of(error) from None
