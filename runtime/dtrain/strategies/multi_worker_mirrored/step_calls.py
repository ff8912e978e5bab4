"""Sums over the parts of a step in several processes, taken while the parts are computed.

The rule *Calls within a step* (docs/design/collectives.md#calls-within-a-step).
"""

from collections.abc import Callable, Sequence

from dtrain.errors import CallsDifferError, InputError, ProgramError
from dtrain.parameters.finite import any_non_finite
from dtrain.roles.collective.between_hosts.step_calls import LARGEST_BYTES
from dtrain.roles.collective.call_log import CallLog, GivenCall
from dtrain.roles.collective.driver import CollectiveDriver
from dtrain.roles.collective.rules import Waits
from dtrain.strategies.interface import Compute
from dtrain.strategies.multi_worker_mirrored.substitute import Substitute
from dtrain.strategies.multi_worker_mirrored.summed import Summed
from dtrain.strategies.replicas.calls import check
from dtrain.strategies.replicas.reduction import Nest, ReduceOp
from dtrain.types import Array
from dtrain.wire.one_host.bells import Bells

Places = Callable[[int], tuple[dict[str, Array], dict[str, Array]]]
"""From the place of a part to the memory of its gradients and of new values of untrained variables."""


class StepCalls:
    """The collective calls of one replica within the steps of a call of `fit`.

    A replica that has two parts of a step, as its own and that of a dead one, computes both side by side.

    Attributes:
        compute: how a part is computed; None: nothing has said so.
    """

    def __init__(self, log: CallLog, driver: CollectiveDriver, bells: Bells, waits: Waits) -> None:
        """Call in the rounds of `driver`, which uses the same bells in the same thread."""
        self.compute: Compute | None = None
        self._log = log
        self._driver = driver
        self._bells = bells
        self._waits = waits
        self._round = self._own = -1
        self._calls = 0
        self._own_ended = False
        self._beside: dict[int, Substitute] = {}

    def all_reduce(self, place: int, places: Places, op: ReduceOp, value: Nest) -> Nest:
        """Return the sum or mean of what all parts with examples give, added up in their order.

        In a round that the leader makes void nobody waits, and the result is that of this part alone: what is
        computed of it counts for nothing.

        Args:
            place: of the part that this replica computes, in its batch.
            places: the memory of parts.
            op: the sum or the mean.
            value: of the same form, shapes and dtypes in every part.

        Raises:
            CallsDifferError: the parts make different calls.
            InputError: the value is no array of numbers.
            PeerError: this host does not go on with the others.
            WaitTimeoutError: a replica that is alive did not make the call in time.
        """
        summed = Summed.of(op, value)
        now = self._driver.now
        if (self._round, self._own) != (now.number, place):
            self._round, self._own, self._calls, self._own_ended = now.number, place, 0, False
        number = self._calls
        self._calls += 1
        self._give(place, number, summed.call)
        self._wait(lambda: number if self._late(number) else None, places)
        if now.is_void:
            return summed.result([summed.call.arrays])
        given = self._given(number)
        for beside in self._beside.values():
            if not beside.ended and beside.calls == number + 1 and beside.asked() is not None:
                beside.answer(given)  # so that it goes on while this thread does
        return summed.result(given)

    def finish(self, places: Places) -> None:
        """Complete the parts that were computed beside the own one, which has made its last call.

        Raises: as `all_reduce`, and the error of such a part.
        """
        if self._beside:
            self._own_ended = True
            self._wait(lambda: min(self._calls_beside(), default=None), places)
            self._beside.clear()

    def close(self) -> None:
        """Give up what is computed beside."""
        for beside in self._beside.values():
            if not beside.ended:
                beside.abandon(ProgramError("the step was given up: another part of it has failed"))
        self._beside.clear()

    # Waits

    def _calls_beside(self) -> list[int]:
        """Return the calls in which parts beside the own one wait."""
        return [each.calls - 1 for each in self._beside.values() if not each.ended]

    def _wait(self, awaited: Callable[[], int | None], places: Places) -> None:
        """Wait until no call is `awaited` any more, or the round is void."""
        since_s: float | None = None
        while True:
            self._go_on_beside(places)
            number = awaited()
            if number is None or self._driver.now.is_void:
                break
            late = self._late(number)
            self._check_ended(late, number)
            since_s = self._waits.clock.now() if since_s is None else since_s
            what = f"{self._driver.owners(late)}, call {number + 1} within step {self._driver.version + 1}"
            self._driver.await_others(since_s, what)
        if since_s is not None:
            self._waits.waiting(None)

    def _late(self, number: int) -> list[int]:
        """Return the places whose parts have not made a call, and have examples as far as is known."""
        now = self._driver.now
        if now.is_void:
            return []
        return [
            each
            for each in now.places
            if self._log.made(each, now.number) <= number and not self._is_empty(each)
        ]

    def _is_empty(self, place: int) -> bool:
        """Return whether the part of a place is known to have no examples."""
        now = self._driver.now
        return now.is_empty(place) or self._log.is_empty(place, now.number)

    def _check_ended(self, late: Sequence[int], number: int) -> None:
        now = self._driver.now
        for each in late:
            elsewhere = self._log.has_ended(each, now.number)
            ended = elsewhere or now.is_ready(each) or (each == self._own and self._own_ended)
            if ended and self._log.made(each, now.number) <= number and not self._is_empty(each):
                raise CallsDifferError(
                    f"some parts of step {now.version + 1} made a different number of calls: one waits in "
                    f"its all_reduce {number + 1}, and part {each} has ended without that call; every "
                    "replica must make the same calls in the same order"
                )

    # Calls

    def _give(self, place: int, number: int, call: GivenCall) -> None:
        """Add a call of a part, unless who has computed it before has made it already."""
        now = self._driver.now
        nbytes = sum(each.nbytes for each in call.arrays)
        if self._driver.across is not None and nbytes > LARGEST_BYTES:
            raise InputError(
                f"all_reduce within a step, of {nbytes} bytes; expected at most {LARGEST_BYTES} over several "
                "hosts: give less at a time"
            )
        if not now.is_void and self._log.made(place, now.number) == number:
            self._log.give(place, now.number, call)
            self._bells.ring()

    def _given(self, number: int) -> list[Sequence[Array]]:
        """Return what all parts have given to a call; raise a `CallsDifferError` if they do not agree."""
        now = self._driver.now
        found = {
            each: self._log.read(each, now.number, number) for each in now.places if not self._is_empty(each)
        }
        said = {each: call.said for each, call in found.items()}
        if len(set(said.values())) > 1:
            check(said)
        return [call.arrays for call in found.values()]

    # Parts beside the own one

    def _go_on_beside(self, places: Places) -> None:
        """Begin the parts that have come to this replica, and answer calls that all have made."""
        driver = self._driver
        now = driver.now
        for place in now.places:
            mine = driver.owes(place) and not (now.is_ready(place) or now.is_void)
            if mine and place != self._own and place not in self._beside:
                assert self.compute is not None, "the loop says how a part is computed"
                number = driver.number_of(place)
                self._beside[place] = Substitute(
                    driver.rank, number, driver.values.variables, places(place), self.compute
                )
        for place, beside in self._beside.items():
            while not beside.ended:
                call = beside.asked()
                if call is None:
                    beside.ended = True
                    if not now.is_void:
                        driver.give_rows(place, beside.rows)
                        finite = not beside.examples or not any_non_finite(driver.given(place))
                        driver.complete(place, beside.examples, beside.sums, finite)
                        self._bells.ring()
                    break
                self._give(place, beside.calls - 1, call)
                if now.is_void:
                    beside.answer([call.arrays])
                elif self._late(beside.calls - 1):
                    break
                else:
                    beside.answer(self._given(beside.calls - 1))
