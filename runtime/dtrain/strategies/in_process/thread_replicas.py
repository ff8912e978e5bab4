"""Replicas of one process, each in a thread, that make and update every step together: the step machine with
replicas that live as long as the process does.

Which thread updates a block is chance; the numbers are not: the grid of blocks is always the same.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np

from dtrain.config import SynchronousSection
from dtrain.errors import TrainingError
from dtrain.messages import Sums, Verdict
from dtrain.parameters.replica_memory import any_non_finite
from dtrain.parameters.updater import BLOCK_ELEMENTS, Contributions, run_here
from dtrain.process.clock import LOOK_S
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.part_dealer import NO_PART
from dtrain.runs.ledger import COMPUTE, INPUT, WAIT
from dtrain.steps.machine import Contribution, NextVersion, StepMachine
from dtrain.strategies.in_process.training import APPLIED, LocalReplica, LocalTraining
from dtrain.strategies.interface import Compute, NoExchangeError, Stepped
from dtrain.strategies.replicas.calls import ReplicaThreads, ThreadMeeting
from dtrain.strategies.replicas.reduction import Nest, ReduceOp, Summed
from dtrain.strategies.replicas.values import mapped
from dtrain.types import Array

SWITCH_S = 0.0002
"""A thread that has the interpreter gives it up so soon when another wants it. With Python's 5 ms a replica
often waits longer for the few lines of another, between two products of matrices, than the products take.
"""


class ThreadsTraining(LocalTraining):
    """A training of which each replica has a thread, for its part of a step.

    Callbacks run, and data are read, in the program's thread, which may also be the first replica's where
    every step waits for it. Where a step does not wait for every replica, a late one goes on with its part.

    Attributes:
        abort: ends, with an error, the waits of replicas for one that has failed.
        computing: the replicas that have a part of a step and have not contributed it; None: waits of
            replicas let no signals be handled, so that none computes in the program's thread.
    """

    abort: Callable[[str], None]
    computing: set[int] | None = None
    _threads: ReplicaThreads | None = None

    def step(self, compute: Compute) -> Stepped:
        if len(self.replicas) == 1 or self.finished:
            return super().step(compute)
        if self._threads is None:
            replicas = len(self.replicas)
            self._switch_s = sys.getswitchinterval()
            sys.setswitchinterval(min(SWITCH_S, self._switch_s))
            self._threads = ReplicaThreads(replicas, self.abort, self.activity.computes)
            self._verdicts = [Verdict.ACCEPTED] * replicas
        return self._step_together(compute, self._threads)

    def _step_together(self, compute: Compute, threads: ReplicaThreads) -> Stepped:
        before = self.global_step
        one_each = not self.cut.even and self.cut.parts <= len(self.replicas)
        dealt = {
            each: number
            for each, replica in enumerate(self.replicas)
            if (one_each or threads.is_idle(each)) and (number := replica.next_batch()) != NO_PART
        }
        sheets = self.activity.sheets
        for each in dealt:
            sheets[each % len(sheets)].to(INPUT)  # this thread reads for all
        work = {}
        for each, number in dealt.items():
            if (computes := compute(self.replicas[each], number)) is None:
                return Stepped.NOTHING
            work[each] = partial(self._commit_part, each, computes)
        meets = one_each and self.computing is not None
        own = work.pop(0, None) if meets else None
        for each, part in work.items():
            threads.start(each, part)
        if own is not None:
            threads.run(own)
        # A step is made without those whose parts are empty; all others are on their way back from it.
        if not meets or self.global_step == before or self.computing:
            threads.wait(for_all=one_each)
        if self.global_step > before:
            return Stepped.MADE
        if not threads.all_idle or Verdict.PENDING in self._verdicts:
            return Stepped.PENDING
        refused = any(self._verdicts[each] is Verdict.REFUSED for each in dealt)
        return Stepped.REFUSED if refused else Stepped.NOTHING

    def _commit_part(self, replica: int, computes: Callable[[], Outcome]) -> None:
        self._verdicts[replica] = computes().verdict

    def _conclude(self) -> bool:
        self._end_threads(in_vain=self.cut.even)
        return True

    def _end_threads(self, *, in_vain: bool) -> None:
        if self._threads is not None:
            sys.setswitchinterval(self._switch_s)
            self._threads.close(in_vain=in_vain)

    def close(self, error: BaseException | None = None) -> None:
        self._end_threads(in_vain=error is not None)
        super().close(error)


SHARED_ELEMENTS = 4 * BLOCK_ELEMENTS
"""A smaller model is updated by one thread before the others are awake."""


class Given(msgspec.Struct, eq=False):
    """The contribution of one replica: a gradient as a store takes it, the mean of its examples."""

    part: int
    blocks: Sequence[Array]
    examples: int
    sums: Sums | None
    loss: float


class NextStep(msgspec.Struct, frozen=True):
    """The contributions to the next version, in the order of their parts, and the decision for them."""

    given: Sequence[Given]
    decided: NextVersion


@dataclass(kw_only=True)
class SharedSteps(StepMachine):
    """The steps of one call of `fit`, with what the replicas have given to the next one."""

    given: dict[Contribution, Given] = field(default_factory=dict, init=False)

    @property
    def meets(self) -> bool:
        """Whether all parts of a step are computed at the same time, each by another replica."""
        return self.dealer.whole and self.dealer.parts <= self.replicas

    def offer(self, rank: int, given: Given, empty: int) -> None:
        """Note a gradient of the newest version, or a part without examples."""
        contribution = rank, 0, sum(known == rank for known, _, _ in self.contributed)
        self.given[contribution] = given
        self.contribute(contribution, given.part, given.examples, empty)

    def next_step(self) -> NextStep | None:
        """Return the next version's contents when there are enough."""
        decided = self.decided()
        if decided is None:
            return None
        return NextStep([self.given[each] for each in decided.contributors], decided)

    def made(self, step: NextStep) -> None:
        """Go on with the next version, once this one is made."""
        self.advance(step.decided)
        self.given.clear()


class UpdatingThreads:
    """The threads that make the blocks of an update, and those still to be made, guarded by `changed`."""

    def __init__(self, changed: threading.Condition, *, shared: bool) -> None:
        """Begin; unless `shared`, the thread that begins an update makes all of it."""
        self.running = False
        self._changed = changed
        self._shared = shared
        self._work: tuple[Callable[[Any], None], Iterator[Any]] | None = None
        self._helping = 0

    def run(self, do: Callable[[Any], None], blocks: Sequence[Any]) -> None:
        """Do each block once, in the thread of a replica; others may help meanwhile."""
        left = iter(blocks)  # of a list: each block goes to one thread
        if self._shared:
            self._work = do, left
            self._changed.notify_all()
            self._changed.release()
        try:
            run_here(do, left)
        finally:
            if self._shared:
                self._changed.acquire()
                self._work = None
        while self._helping:
            self._changed.wait()

    def help(self) -> bool:
        """Take part in an update, in the thread of another replica; return whether there was one."""
        if self._work is None:
            return False
        do, left = self._work
        self._helping += 1
        self._changed.release()
        try:
            run_here(do, left)
        finally:
            self._changed.acquire()
            self._work = None  # nothing is left of it
            self._helping -= 1
            if not self._helping:
                self._changed.notify_all()
        return True


STALE = Outcome(Verdict.STALE, stale=1)
PENDING = Outcome(Verdict.PENDING)
FINISHED = Outcome(Verdict.FINISHED)


class SharedTraining:
    """The work of the replicas of one call of `fit`; `changed` guards it, and is notified of versions."""

    def __init__(
        self, training: LocalTraining, section: SynchronousSection, replicas: int, *, by_one: bool = False
    ) -> None:
        self.training = training
        self.changed = threading.Condition()
        self.steps = SharedSteps(
            dealer=training.state.dealer,
            version=training.global_step,
            replicas=replicas,
            live=frozenset(range(replicas)),
            max_steps=training.store.max_steps or 0,
            retry=section.repeats_late,
        )
        self.computing: set[int] = set()
        self._replicas = replicas
        self._weighs_examples = section.weighs_examples
        self._failure: str | None = None
        self._meeting = ThreadMeeting(range(replicas))
        self._met = self.steps.batches
        self._counted: frozenset[int] = frozenset()
        shared = replicas > 1 and not by_one and training.store.elements >= SHARED_ELEMENTS
        self._threads = UpdatingThreads(self.changed, shared=shared)

    def abort(self, reason: str) -> None:
        """End the waits of all replicas."""
        with self.changed:
            self._failure = reason
            self._meeting.abort(TrainingError(reason))
            self.changed.notify_all()

    def permit(self, rank: int) -> tuple[int, int, ThreadMeeting]:
        """Return the next part of a replica, or NO_PART; the newest version; and the meeting of its step."""
        with self.changed:
            self._let_step_end()
            if self._met != self.steps.batches:
                self._met = self.steps.batches
                self._meeting = ThreadMeeting(range(self._replicas))
            part = self._permit(rank)
            if part == NO_PART:
                self._meeting.leave(rank)
            else:
                self.computing.add(rank)
            return part, self.steps.version, self._meeting

    def _permit(self, rank: int) -> int:
        self.steps.max_steps = self.training.store.max_steps or 0
        with self.training.lock:
            return self.steps.next_part(rank)

    def contribute(self, rank: int, base: int, given: Given, empty: int, *, finite: bool) -> Outcome:
        """Take a part's gradient of version `base`, and wait for its step, or for another part.

        Raises:
            TrainingError: another replica has failed.
            NonFiniteGradientError: the gradient is not finite and the spec's `nan_policy` is ``fail``.
        """
        with self.changed:
            self._let_step_end()
            self.computing.discard(rank)
            self._check()
            steps = self.steps
            if base < steps.version:
                return self._late(rank, given)
            turns = steps.batches
            with self.training.lock:
                if finite or not given.examples:
                    steps.offer(rank, given, empty)
                else:
                    steps.refuse(rank, given.part)
                step = steps.next_step()
            if step is not None:
                self.training.activity.sheet.to(COMPUTE)
                self._make(step)
                self.training.activity.sheet.to(WAIT)
            if steps.batches != turns:
                self.changed.notify_all()
            if given.examples and not finite:
                return self.training.refuse(given.loss)
            return self._outcome(rank, given, turns)

    def _late(self, rank: int, given: Given) -> Outcome:
        with self.training.lock:
            self.steps.came_too_late(rank, given.part)
        if self.steps.version >= (self.training.store.max_steps or 0):
            return FINISHED
        self.training.count_stale()
        return STALE if given.examples else APPLIED

    def _outcome(self, rank: int, given: Given, turns: int) -> Outcome:
        """Wait for the step of a contribution; return what became of it."""
        while self.steps.batches == turns:
            self._let_step_end()
            if self.steps.batches == turns:
                if self._permit(rank) != NO_PART:
                    return PENDING
                self.changed.wait(LOOK_S)  # lets signals be handled in the program's own thread
            self._check()
        return APPLIED if not given.examples or given.part in self._counted else STALE

    def _let_step_end(self) -> None:
        """Wait while a version is being made, and help."""
        while self._threads.running and self._failure is None:
            if not self._threads.help():
                self.changed.wait(LOOK_S)

    def _check(self) -> None:
        if self._failure is not None:
            raise TrainingError(self._failure)

    def _make(self, step: NextStep) -> None:
        given = step.given
        examples = [each.examples for each in given]
        blocks = [each.blocks for each in given]
        weights = examples if self._weighs_examples else None
        empty = step.decided.parts - len(blocks)
        contributions = Contributions.of(blocks, empty, weights, self.steps.version)
        threads = self._threads

        def update() -> None:
            threads.running = True
            try:
                self.training.store.make(contributions, threads.run)
            finally:
                threads.running = False
            self.steps.made(step)

        loss = sum(each.loss for each in given) / len(given)
        self._counted = frozenset(each.part for each in given)
        self.training.advance(update, [each.sums for each in given], loss, sum(examples))


class ThreadReplica(LocalReplica):
    """One of several replicas of a process, in a thread of its own."""

    def __init__(self, shared: SharedTraining, rank: int) -> None:
        super().__init__(shared.training, rank)
        self._shared = shared
        self._part = NO_PART
        self._base = 0
        self._begun_s = 0.0

    def next_batch(self) -> int:
        """Return the part that was dealt last, until its gradient is committed."""
        if self._part == NO_PART:
            self._part, self._base, self._meeting = self._shared.permit(self.rank)
        reporter = self.training.reporter
        self._begun_s = 0.0 if reporter is None else reporter.begins()
        return self._part

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        if self.training.reporter is not None:
            self.training.reporter.slow_down(self._begun_s)
        self.training.activity.sheet.to(WAIT)
        self._meeting.ended(self.rank) if examples else self._meeting.leave(self.rank)
        blocks: Sequence[Array] = self.blocks() if examples else ()
        given = Given(self._part, blocks, examples, sums, loss)
        finite = not any_non_finite(blocks)
        self._part = NO_PART
        outcome = self._shared.contribute(self.rank, self._base, given, empty, finite=finite)
        if outcome is PENDING:  # it waits for its step while this memory is written again
            given.blocks = [np.array(block) for block in given.blocks]
        return outcome

    def all_reduce(self, op: ReduceOp, value: Nest) -> Nest:
        """Reduce over the replicas.

        Raises:
            NoExchangeError: not all parts of a step are computed at the same time.
            CallsDifferError: the replicas make different calls; it is raised in all of them.
        """
        if not self._shared.steps.meets:
            raise NoExchangeError(
                "all_reduce: not all parts of a step are computed at the same time; expected no backup "
                "workers, and a replica for each part"
            )
        summed = Summed.of(op, value)
        result = self._meeting.call(self.rank, *summed.given, summed.result)
        own: Nest = mapped(lambda leaf: leaf, result)
        return own
