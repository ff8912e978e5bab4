"""Sums over the parts of a step in several processes, taken while the parts are computed.

The rule is *Calls* (docs/design/collectives.md#calls). Where the replica of a part is gone, another one
computes it beside its own, as both meet within the step. Where a step does not wait for every replica, such
calls are refused.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import NoReturn

from dtrain.errors import InputError, ProgramError
from dtrain.exchange.calls import GivenCall
from dtrain.exchange.machine import Exchange
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Sums, Verdict
from dtrain.process.clock import LOOK_S
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.part_dealer import NO_PART
from dtrain.roles.collective.calls_over_hosts import STEP_CALL_MAX
from dtrain.roles.collective.member_driver import MemberDriver
from dtrain.roles.collective.rules import Waits
from dtrain.strategies.interface import Compute, NoExchangeError, Replica
from dtrain.strategies.replicas.reduction import Nest, ReduceOp, Summed
from dtrain.types import Array

Places = Callable[[int], tuple[dict[str, Array], dict[str, Array]]]
"""From the place of a part to the memory of its gradients and of new values of untrained variables."""


class StepCalls:
    """The collective calls of one replica within the steps of a call of `fit`.

    A replica that has two parts of a step, its own and that of a dead one, computes both side by side, by
    `compute`, which the loop sets.
    """

    def __init__(self, log: Exchange, driver: MemberDriver, notify: Callable[[], None], waits: Waits) -> None:
        self.compute: Compute | None = None
        self._log = log
        self._driver = driver
        self._notify = notify
        self._waits = waits
        self._round = self._own = -1
        self._calls = 0
        self._beside: dict[int, Substitute] = {}

    def all_reduce(self, place: int, places: Places, op: ReduceOp, value: Nest) -> Nest:
        """Return the sum or mean of what all parts with examples give, added up in their order.

        In a round that the leader makes void, the result is that of this part alone, without a wait: what is
        computed of it counts for nothing. The own part is at `place`; `value` has the same form, shapes and
        dtypes in every part.

        Raises:
            CallsDifferError: the parts make different calls.
            InputError: the value is no array of numbers.
            PeerError: this host does not go on with the others.
            WaitTimeoutError: a replica that is alive did not make the call in time.
        """
        summed = Summed.of(op, value, dense=True)
        self._begin(place)
        number = self._calls
        if number == 0:
            self._log.members = self._driver.slots()
        self._calls += 1
        self._give(place, number, summed.given)
        self._wait(lambda: number if self._log.wanted(number) else None, places)
        if self._driver.is_void:
            return summed.result([summed.given.arrays])
        given = self._given(number)
        for beside in self._beside.values():
            if not beside.ended and beside.calls == number + 1 and beside.asked() is not None:
                beside.answer(given)  # so that it goes on while this thread does
        return summed.result(given)

    def finish(self, place: int, examples: int, places: Places) -> None:
        """Complete the parts beside the own one, which has made its last call; raise the error of one."""
        self._begin(place)
        if not (self._calls and self._driver.is_void):  # else others may wait for calls that it left out
            self._log.end(place, examples)
        if self._beside:
            parts = self._beside.values()
            self._wait(
                lambda: min((each.calls - 1 for each in parts if not each.ended), default=None), places
            )
            self._beside.clear()

    def close(self) -> None:
        for beside in self._beside.values():
            if not beside.ended:
                beside.abandon(ProgramError("the step was given up: another part of it has failed"))
        self._beside.clear()

    def _begin(self, place: int) -> None:
        base = self._driver.base
        if (self._round, self._own) != (base, place):
            self._round, self._own, self._calls = base, place, 0
            if self._log.round != base:
                self._log.begin(base)

    def _wait(self, awaited: Callable[[], int | None], places: Places) -> None:
        """Wait until `awaited` returns None, or the round is void."""
        since_s: float | None = None
        while True:
            self._go_on_beside(places)
            if self._driver.is_void or (number := awaited()) is None:
                break
            since_s = self._waits.clock.now() if since_s is None else since_s
            what = f"call {number + 1} within step {self._driver.version + 1}"
            self._driver.await_others(since_s, self._driver.awaited(what))
        if since_s is not None:
            self._waits.waiting(None)

    def _give(self, place: int, number: int, given: GivenCall) -> None:
        """Add a call of a part, unless another replica that computed the part before has made it already."""
        nbytes = sum(each.nbytes for each in given.arrays)
        if self._driver.over_hosts is not None and nbytes > STEP_CALL_MAX:
            raise InputError(
                f"all_reduce within a step, of {nbytes} bytes; expected at most {STEP_CALL_MAX} over several "
                "hosts: give less at a time"
            )
        if not self._driver.is_void:
            self._log.give(place, number, given)
            self._notify()

    def _given(self, number: int) -> list[Sequence[Array]]:
        return [given.arrays for given in self._log.given(number)]

    # Parts beside the own one

    def _go_on_beside(self, places: Places) -> None:
        """Begin the parts that this replica has taken over, and answer calls that all have made."""
        driver = self._driver
        for place in () if driver.is_void else self._log.members:
            number = driver.number_of(place)
            if number != NO_PART and place != self._own and place not in self._beside:
                assert self.compute is not None, "the loop says how a part is computed"
                self._beside[place] = Substitute(
                    driver.rank, number, driver.store.variables, places(place), self.compute
                )
        for place, beside in self._beside.items():
            while not beside.ended:
                given = beside.asked()
                if given is None:
                    beside.ended = True
                    if not driver.is_void:
                        self._log.end(place, beside.examples)
                        finite = not beside.examples or driver.give(driver.place_in(place), beside.rows)
                        driver.complete(place, beside.examples, beside.sums, finite)
                        self._notify()
                    break
                number = beside.calls - 1
                self._give(place, number, given)
                if driver.is_void:
                    beside.answer([given.arrays])
                elif self._log.wanted(number):
                    break
                else:
                    beside.answer(self._given(number))


ACCEPTED = Outcome(Verdict.ACCEPTED)


class Substitute(Replica):
    """Computes one part in a thread of its own, up to its next call; the program's thread answers the calls.

    Attributes:
        calls: how many it has made.
        examples, sums: of the part, when it has ended.
        ended: whether `StepCalls` has completed the part.
    """

    def __init__(
        self,
        rank: int,
        number: int,
        weights: Mapping[str, Array],
        places: tuple[dict[str, Array], dict[str, Array]],
        compute: Compute,
    ) -> None:
        """Begin part `number` of the batch; the data are read in this thread."""
        self.rank = rank
        self.weights = weights
        self.gradients, self.updates = places
        self.rows: dict[str, SparseRows] = {}
        self.calls = self.examples = 0
        self.sums: Sums | None = None
        self.ended = False
        self._asked: GivenCall | None = None
        self._told: SimpleQueue[GivenCall | BaseException | None] = SimpleQueue()
        self._answers: SimpleQueue[Sequence[Sequence[Array]] | BaseException] = SimpleQueue()
        work = compute(self, number)
        assert work is not None, "callbacks see a step only as its first part begins"
        self._thread = threading.Thread(target=self._run, args=(work,), name=f"part {number}")
        self._thread.start()

    # In its thread

    def _run(self, work: Callable[[], Outcome]) -> None:
        try:
            work()
        except BaseException as error:
            self._told.put(error)
        else:
            self._told.put(None)

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        """Keep the result of the part; the program's thread contributes it."""
        self.examples, self.sums = examples, sums
        return ACCEPTED

    def all_reduce(self, op: ReduceOp, value: Nest) -> Nest:
        summed = Summed.of(op, value, dense=True)
        self._told.put(summed.given)
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return summed.result(answer)

    # In the program's thread

    def asked(self) -> GivenCall | None:
        """Wait for the next call of the part; None: it is complete. Raise the part's own error."""
        while self._asked is None:
            try:
                told = self._told.get(timeout=LOOK_S)  # in pieces: signals are handled between them
            except Empty:
                continue
            if isinstance(told, BaseException):
                raise told
            if told is None:
                self._thread.join()
                return None
            self.calls += 1
            self._asked = told
        return self._asked

    def answer(self, given: Sequence[Sequence[Array]] | BaseException) -> None:
        """Let the part go on with what all parts have given to the call, or let it fail."""
        self._asked = None
        self._answers.put(given)

    def abandon(self, error: BaseException) -> None:
        while self._thread.is_alive():
            self._answers.put(error)
            self._thread.join(LOOK_S)


class NoStepCalls:
    """Refuses calls within a step, where not all of its parts are computed at the same time."""

    compute: Compute | None = None

    def all_reduce(self, place: int, places: Callable[[int], object], op: ReduceOp, value: Nest) -> NoReturn:
        raise NoExchangeError(
            "all_reduce within a step: not all parts of a step are computed at the same time; expected no "
            "backup workers (training.backup_workers: 0)"
        )

    def finish(self, place: int, examples: int, places: Callable[[int], object]) -> None:
        """Do nothing: no other part is computed here."""

    def close(self) -> None:
        """Do nothing."""
