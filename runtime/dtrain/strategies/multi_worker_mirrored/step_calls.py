"""Sums over the parts of a step in several processes, taken while the parts are computed.

The rule is *Calls within a step* (docs/design/collectives.md#calls-within-a-step). Where the replica of a
part is gone, another one computes it beside its own, as both meet within the step. Where a step does not
wait for every replica, such calls are refused.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import NoReturn, Self

import msgspec
import numpy as np

from dtrain.errors import CallsDifferError, InputError, ProgramError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Sums, Verdict
from dtrain.parameters.means import any_non_finite
from dtrain.process.clock import LOOK_S
from dtrain.protocol.contributions import Outcome
from dtrain.roles.collective.between_hosts.calls import STEP_CALL_MAX
from dtrain.roles.collective.calls import CallLog, GivenCall
from dtrain.roles.collective.driver import CollectiveDriver
from dtrain.roles.collective.rules import Waits
from dtrain.strategies.interface import Compute, NoExchangeError, Replica
from dtrain.strategies.replicas import reduction
from dtrain.strategies.replicas.calls import ReplicaCall, call_site, check, contiguous, said_of
from dtrain.strategies.replicas.reduction import Nest, ReduceOp
from dtrain.strategies.replicas.values import form, leaves, mapped
from dtrain.types import Array
from dtrain.wire.one_host.synchronization import Doorbells

Places = Callable[[int], tuple[dict[str, Array], dict[str, Array]]]
"""From the place of a part to the memory of its gradients and of new values of untrained variables."""


class StepCalls:
    """The collective calls of one replica within the steps of a call of `fit`.

    A replica that has two parts of a step, its own and that of a dead one, computes both side by side, by
    `compute`, which the loop sets.
    """

    def __init__(self, log: CallLog, driver: CollectiveDriver, doorbells: Doorbells, waits: Waits) -> None:
        self.compute: Compute | None = None
        self._log = log
        self._driver = driver
        self._doorbells = doorbells
        self._waits = waits
        self._round = self._own = -1
        self._calls = 0
        self._own_ended = False
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
        """Complete the parts beside the own one, which has made its last call; raise the error of one."""
        if self._beside:
            self._own_ended = True
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

    # Waits

    def _wait(self, awaited: Callable[[], int | None], places: Places) -> None:
        """Wait until `awaited` returns None, or the round is void."""
        since_s: float | None = None
        while True:
            self._go_on_beside(places)
            number = awaited()
            if number is None or self._driver.now.is_void:
                break
            late = self._late(number)
            self._check_ended(late, number)
            since_s = self._waits.clock.now() if since_s is None else since_s
            what = f"call {number + 1} within step {self._driver.version + 1}"
            self._driver.await_others(since_s, self._driver.owners(late, what))
        if since_s is not None:
            self._waits.waiting(None)

    def _late(self, number: int) -> list[int]:
        """Return the places whose parts have not made a call, unless they are known to have no examples."""
        now = self._driver.now
        if now.is_void:
            return []
        return [
            each
            for each in now.places
            if self._log.made(each, now.number) <= number and not self._is_empty(each)
        ]

    def _is_empty(self, place: int) -> bool:
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
        """Add a call of a part, unless another replica that computed the part before has made it already."""
        now = self._driver.now
        nbytes = sum(each.nbytes for each in call.arrays)
        if self._driver.across is not None and nbytes > STEP_CALL_MAX:
            raise InputError(
                f"all_reduce within a step, of {nbytes} bytes; expected at most {STEP_CALL_MAX} over several "
                "hosts: give less at a time"
            )
        if not now.is_void and self._log.made(place, now.number) == number:
            self._log.give(place, now.number, call)
            self._doorbells.ring()

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
        """Begin the parts that this replica has taken over, and answer calls that all have made."""
        driver = self._driver
        now = driver.now
        for place in now.places:
            mine = driver.owes(place) and not (now.is_ready(place) or now.is_void)
            if mine and place != self._own and place not in self._beside:
                assert self.compute is not None, "the loop says how a part is computed"
                number = driver.number_of(place)
                self._beside[place] = Substitute(
                    driver.rank, number, driver.store.variables, places(place), self.compute
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
                        self._doorbells.ring()
                    break
                self._give(place, beside.calls - 1, call)
                if now.is_void:
                    beside.answer([call.arrays])
                elif self._late(beside.calls - 1):
                    break
                else:
                    beside.answer(self._given(beside.calls - 1))


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
        summed = Summed.of(op, value)
        self._told.put(summed.call)
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


class Summed(msgspec.Struct, frozen=True):
    """A call of `all_reduce` within a step: its value, and what the other parts see of it."""

    op: ReduceOp
    value: Nest
    call: GivenCall

    @classmethod
    def of(cls, op: ReduceOp, value: Nest) -> Self:
        """Return the call, named by the calling line; raise an `InputError` if a leaf is not numeric."""
        given = [_summand(leaf) for leaf in leaves(value)]
        what = f"{op.name} of {form(value)} {', '.join(map(reduction.described, given))}"
        said = said_of(ReplicaCall("all_reduce", what, call_site()))
        return cls(op, value, GivenCall(said, contiguous(given)))

    def result(self, given: Sequence[Sequence[Array]]) -> Nest:
        found = iter([reduction.reduced(self.op, each) for each in zip(*given, strict=True)])
        result: Nest = mapped(lambda leaf: next(found), self.value)
        return result


def _summand(leaf: object) -> Array:
    summand = reduction.as_summand(leaf, "all_reduce")
    if not isinstance(summand, np.ndarray):
        raise InputError("all_reduce: expected arrays within a step, found SparseRows")
    return summand


class NoStepCalls:
    """Refuses calls within a step, where not all of its parts are computed at the same time."""

    compute: Compute | None = None

    def all_reduce(self, place: int, places: Callable[[int], object], op: ReduceOp, value: Nest) -> NoReturn:
        raise NoExchangeError(
            "all_reduce within a step: not all parts of a step are computed at the same time; expected no "
            "backup workers (training.backup_workers: 0)"
        )

    def finish(self, places: Callable[[int], object]) -> None:
        """Do nothing: no other part is computed here."""

    def close(self) -> None:
        """Do nothing."""
