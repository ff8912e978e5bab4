"""The training loop: one task's part of a call of `fit`, from the first batch to the last global step.

It reads top to bottom: take a part of a batch, compute a gradient, commit it, note what came of it. Several
replicas in one task take turns, or have a thread each (`Training.threads`), and then all compute their
parts of a step at the same time. A gradient that is not finite is traced to the first place on its way that
is not.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from dtrain.errors import NonFiniteGradientError
from dtrain.learning.graphs.networks import Network
from dtrain.messages import Verdict
from dtrain.process.clock import LOOK_S
from dtrain.protocol.part_dealer import NO_PART
from dtrain.runs.ledger import COMPUTE, INPUT
from dtrain.runs.self_report import NO_ACTIVITY, Activity
from dtrain.strategies.interface import Leader, Replica, StepClock, Training
from dtrain.training.evaluation import Totals
from dtrain.training.fits.leading import Epochs, Leading
from dtrain.training.parts import Batch, Part
from dtrain.training.steps import Logs, TrainingStep

Work = Callable[[], None]
SWITCH_S = 0.0002
"""A thread that has the interpreter gives it up so soon when another wants it. With Python's 5 ms a replica
often waits longer for the few lines of another, between two products of matrices, than the products take.
"""


class ReplicaThreads:
    """The threads of the replicas of one training; the program's own thread starts their parts.

    A thread that is still on its way back from a step may be given its next part: it wakes up once for both.
    `abort` ends the waits of replicas for one that has failed, for a reason.
    """

    def __init__(self, replicas: int, abort: Callable[[str], None]) -> None:
        self._abort = abort
        self._given: list[SimpleQueue[Work | None]] = [SimpleQueue() for _ in range(replicas)]
        self._threads: dict[int, threading.Thread] = {}
        self._changed = threading.Condition()
        self._left = [0] * replicas
        self._ended = self._told = 0
        self._error: BaseException | None = None
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_S, self._switch_s))

    def is_idle(self, replica: int) -> bool:
        with self._changed:
            return not self._left[replica]

    @property
    def all_idle(self) -> bool:
        with self._changed:
            return not any(self._left)

    def start(self, replica: int, part: Work) -> None:
        with self._changed:
            self._left[replica] += 1
        if replica not in self._threads:
            thread = threading.Thread(target=self._work, args=(replica,), name=f"replica {replica}")
            self._threads[replica] = thread
            thread.start()
        self._given[replica].put(part)

    def run(self, part: Work) -> None:
        """Compute a part in this thread; raise the error of the part that failed first, when no part runs any
        more.
        """
        try:
            part()
        except BaseException as error:
            self._give_up(error)
            raise self._error or error from None

    def wait(self, *, for_all: bool) -> None:
        """Return when all parts have ended, or one has since the last wait.

        Raises:
            BaseException: the error of the part that failed first, or what interrupts this thread; when it
                is raised no part runs any more.
        """
        try:
            with self._changed:
                while self._error is None and any(self._left) and (for_all or self._ended == self._told):
                    # A signal that came just before a wait without end would be handled only at its end.
                    self._changed.wait(LOOK_S)
                self._told = self._ended
            if self._error is not None:
                raise self._error
        except BaseException as error:
            self._give_up(error)
            raise

    def close(self, *, in_vain: bool) -> None:
        """End the threads after their parts; if those are `in_vain`, waits in them end at once."""
        sys.setswitchinterval(self._switch_s)
        if in_vain and not self.all_idle:
            self._abort("training has ended")
        for replica, thread in self._threads.items():
            self._given[replica].put(None)
            thread.join()
        self._threads.clear()

    def _work(self, replica: int) -> None:
        while (part := self._given[replica].get()) is not None:
            try:
                if self._error is None:
                    part()
            except BaseException as error:
                self._give_up(error, join=False)
            finally:
                with self._changed:
                    self._left[replica] -= 1
                    self._ended += 1
                    self._changed.notify_all()

    def _give_up(self, error: BaseException, *, join: bool = True) -> None:
        """Keep the first error, and end the parts of all others; with `join` no part runs any more then."""
        with self._changed:
            first = self._error is None
            self._error = self._error or error
        if first:
            self._abort(f"another replica has failed: {type(error).__name__}: {error}")
        if join:
            self.close(in_vain=False)


MAX_REFUSED = 100
"""Gradients in a row that are not finite, after which training has failed: it would never reach its last
step.
"""

PartOf = Callable[[int], Part]
"""Reads the part of a number."""


@dataclass
class TrainingLoop:
    """The parts of a task's training; `run` is the loop.

    Attributes:
        train_step: computes the gradients of a step and returns numbers, the loss among them.
        explain: names the reason why a step's gradients are not finite.
        make_totals: makes what sums up loss and metrics; each thread has its own.
        lead: makes the leader's part of the loop, also in the midst of training; None in the thread of one
            of several replicas.
        leading: the leader's part; None in a task that does not lead.
        refused: how many gradients in a row were not finite.
        explained: the reason why the first of all was not.
        pending: whether this replica is computing another part of the same step.
        warned: whether the warning about parts without examples was printed.
        activity: the task's account of its time.
        replica: the number of the replica in this task, where each has a thread.
    """

    training: Training
    epochs: Epochs
    make_step: Callable[[Replica, int, Part, Batch], TrainingStep]
    train_step: Callable[[TrainingStep], Logs]
    explain: Callable[[TrainingStep], str]
    make_totals: Callable[[], Totals]
    lead: Callable[[Leader], Leading] | None
    leading: Leading | None = None
    refused: int = 0
    explained: str = ""
    pending: bool = False
    warned: bool = False
    activity: Activity = NO_ACTIVITY
    replica: int = 0

    def __post_init__(self) -> None:
        self._totals = self.make_totals()

    def begin(self) -> None:
        """Begin the leader's part, if this task leads now: before its data are read."""
        leader = self.training.leader
        if self._has_to_lead and self.lead is not None and leader is not None:
            self.leading = self.lead(leader)
            self.leading.begin()

    @property
    def _has_to_lead(self) -> bool:
        """Whether the leader has died, so that this task has to end epochs in its place before it goes on."""
        return self.leading is None and self.lead is not None and self.training.leader is not None

    def run(self, streams: Sequence[PartOf]) -> None:
        """Train until the strategy has finished, each replica on its stream of parts.

        A task may begin to lead at any step, when the leader has died.
        """
        sheets = self.activity.sheets
        for sheet in sheets:
            sheet.begins(self.training.clock.global_step)
        try:
            self._run_all(streams)
        finally:
            for sheet in sheets:
                sheet.ends()

    def _run_all(self, streams: Sequence[PartOf]) -> None:
        if not (len(streams) > 1 and self.training.threads):
            if streams:
                self.training.let_compute(partial(self._beside, streams[0]))
            self._run(self._way_to_advance(streams))
            return
        threads = ReplicaThreads(len(streams), self.training.abort)
        try:
            self._run(self._way_to_advance_together(streams, threads))
        except BaseException:
            threads.close(in_vain=True)
            raise
        threads.close(in_vain=self.training.cut.even)

    def _beside(self, part_of: PartOf, replica: Replica, number: int) -> Callable[[], None]:
        """Read a part, and return what computes it in any thread."""
        loop = replace(self, lead=None, leading=None, warned=True)
        return partial(loop._contribute, replica, {number: part_of(number)}.__getitem__)

    def _run(self, advance: Callable[[], None]) -> None:
        """Train, a step with each call of `advance`, until the strategy has finished."""
        clock = self.training.clock
        leads = False
        epoch = self.epochs.epoch_at(clock.global_step, clock)
        while True:
            self.begin()
            leading = self.leading
            if leading is not None and not leads:
                leads = True
                epoch = leading.go_on()
            # An epoch has not ended while some server may lack a part of it.
            reached = epoch if clock.repairs else self.epochs.epoch_at(clock.global_step, clock)
            if leading is not None and (lost := leading.log.lost) is not None:
                leading.go_back_to(lost)
                reached = lost
            elif clock.finished:
                if leading is not None and leading.open:  # stopped in the middle of an epoch, perhaps
                    leading.end_epochs(epoch, max(reached, epoch + 1))
                if self._is_concluded():
                    return
            elif reached <= epoch:
                advance()
            elif leading is not None:
                leading.end_epochs(epoch, reached)
            epoch = reached

    def _way_to_advance(self, streams: Sequence[PartOf]) -> Callable[[], None]:
        """Return what makes the next step: the one replica, several by turns, or only waiting for others."""
        turns = [
            partial(self._contribute, replica, part_of)
            for replica, part_of in zip(self.training.replicas, streams, strict=True)
        ]
        if len(turns) == 1:
            return turns[0]
        return partial(self._take_turns, turns) if turns else self._wait

    def _take_turns(self, turns: Sequence[Callable[[], None]]) -> None:
        for contribute in turns:
            if not self.training.clock.finished:
                contribute()

    def _way_to_advance_together(
        self, streams: Sequence[PartOf], threads: ReplicaThreads
    ) -> Callable[[], None]:
        """Return what makes the next step with all replicas at once, or lets them compute more parts of it.

        Callbacks run, and data are read, in this thread, which may also be the first replica's where every
        step waits for it. Where a step does not wait for every replica, a late one goes on with its part.
        """
        replicas = self.training.replicas
        clock = self.training.clock
        cut = self.training.cut
        one_each = not cut.even and cut.parts <= len(replicas)
        loops = [
            replace(self, lead=None, leading=None, warned=number > 0, replica=number)
            for number in range(len(replicas))
        ]
        sheets = self.activity.sheets

        def deal() -> dict[int, int]:
            numbers = {
                each: replica.next_batch()
                for each, replica in enumerate(replicas)
                if one_each or threads.is_idle(each)
            }
            return {each: number for each, number in numbers.items() if number != NO_PART}

        def advance() -> None:
            before = clock.global_step
            dealt = deal()
            for each in dealt:
                sheets[each % len(sheets)].to(INPUT)  # this thread reads for all
            read = {number: streams[each](number) for each, number in dealt.items()}
            last = next(reversed(dealt), None)
            leading = self.leading
            begins = leading if last is not None and not self.pending else None
            if begins is not None and not begins.begin_batch(replicas[last or 0], dealt[last or 0]):
                return
            work = {
                each: partial(loops[each]._contribute, replicas[each], read.__getitem__) for each in dealt
            }
            meets = one_each and self.training.interruptible
            own = work.pop(0, None) if meets else None
            for each, compute in work.items():
                threads.start(each, compute)
            if own is not None:
                threads.run(own)
            # A step is made without those whose parts are empty; all others are on their way back from it.
            early = meets and all(part.batch is not None for part in read.values())
            if not early or clock.global_step == before:
                threads.wait(for_all=one_each)
            made = clock.global_step > before
            waiting = not made and (not threads.all_idle or any(loop.pending for loop in loops))
            self.pending = waiting
            if leading is not None and (made or (loops[0].refused and not waiting)):
                leading.call_batch("on_train_batch_end", clock.global_step)

        return advance

    def _wait(self) -> None:
        clock = self.training.clock
        if self.training.leader is not None:
            epoch = self.epochs.epoch_at(clock.global_step, clock)
            self.training.leader.wait(self.epochs.last_step(epoch, clock))

    def _is_concluded(self) -> bool:
        """Return whether nothing is left to do; a leader asks whether the last step is saved."""
        if self.leading is not None and self.leading.log.lost is not None:
            return False
        if self.training.leader is None:
            return self.training.wait_for_end()
        return self.leading is not None and self.leading.conclude()

    def _contribute(self, replica: Replica, part_of: PartOf) -> None:
        """Compute one part: a gradient, a verdict. The next part may be the same again (`on_stale`)."""
        clock = self.training.clock
        number = replica.next_batch()
        leading = None if clock.repairs else self.leading
        before = clock.global_step
        begins = leading if not self.pending else None
        sits_out = number == NO_PART or self._has_to_lead
        if sits_out or (begins is not None and not begins.begin_batch(replica, number)):
            return
        sheet = self.activity.computes(self.replica)
        part = part_of(number)
        sheet.to(COMPUTE)
        if part.empty and not self.warned:
            self._warn_of_empty_parts(part)
        if part.batch is None:
            verdict = replica.commit(0.0, 0, None, part.empty).verdict
            sheet.judged(verdict, 0, clock.global_step)
            self.pending = verdict is Verdict.PENDING
            if leading is not None and clock.global_step > before:
                leading.call_batch("on_train_batch_end", clock.global_step)
            return
        step = self.make_step(replica, number, part, part.batch)
        logs = self.train_step(step)
        loss = step.contribute(logs)
        sums = self._totals.of_one(part.batch, step, logs)
        try:
            outcome = replica.commit(loss, part.batch.size, sums, part.empty)
        except NonFiniteGradientError as error:
            raise NonFiniteGradientError(f"{error}; {self.explain(step)}") from error
        sheet.judged(outcome.verdict, outcome.accepted, clock.global_step)
        self.pending = outcome.verdict is Verdict.PENDING
        if outcome.verdict is Verdict.REFUSED:
            if self.leading is not None:
                self.leading.refuse_batch(loss)
            self._note_refusal(step)
            return
        self.refused = 0
        if leading is None or self.pending or clock.global_step <= before:  # no step was made of it yet
            return
        if clock.finished or replica.next_batch() != number:
            leading.call_batch("on_train_batch_end", clock.global_step)

    def _warn_of_empty_parts(self, part: Part) -> None:
        """Warn once of a batch with fewer examples than parts, if that changes the gradients."""
        if self.training.weighs_examples or all(replica.rank != 0 for replica in self.training.replicas):
            return
        self.warned = True
        share = (part.parts - part.empty) / part.parts
        has = "has" if part.empty == 1 else "have"
        what = f"batches of {part.batch_size}" if part.batch_size else "the last step of a pass"
        print(
            f"fit: {what} over {part.parts} replicas: {part.empty} of {part.parts} "
            f"parts {has} no examples, so gradients are {share:.2f} times those of one process; "
            "see training.weighting",
            file=sys.stderr,
            flush=True,
        )

    def _note_refusal(self, step: TrainingStep) -> None:
        """Print, once, why a gradient held NaN or infinity; give up after too many of them in a row."""
        self.refused += 1
        if not self.explained:
            self.explained = self.explain(step)
            where = step_in_work(self.training.clock)
            print(
                f"dtrain: {where}: a gradient was not applied: {self.explained}", file=sys.stderr, flush=True
            )
        if self.refused == MAX_REFUSED:
            raise NonFiniteGradientError(
                f"{MAX_REFUSED} gradients in a row held NaN or infinity; the first: {self.explained}"
            )


def why_not_finite(network: Network | None, step: TrainingStep) -> str:
    """Return one line that says where a step's numbers stop being finite, and what was found there."""
    with np.errstate(all="ignore"):
        for place, given in _places(network, step):
            array = np.asarray(given)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                found = "NaN" if np.isnan(array).any() else "infinity"
                at = np.argwhere(~np.isfinite(array))[0].tolist()
                return (
                    f"{place}: expected finite numbers, found {found}, first at {at} of shape {array.shape}"
                )
    return "the loss alone is not finite"


def step_in_work(clock: StepClock) -> str:
    """Return the name of the next step: its number in this call of `fit`, and in all if that differs."""
    step = clock.global_step + 1
    done = clock.first_step
    return f"step {step - done} of this fit (global step {step})" if done else f"step {step}"


def _places(network: Network | None, step: TrainingStep) -> Iterator[tuple[str, Any]]:
    """Yield everything of which a gradient is made, causes before effects."""
    for place, given in (("inputs", step.x), ("targets", step.y), ("sample weights", step.sample_weight)):
        parts = list(given.values()) if isinstance(given, Mapping) else given
        yield from ((place, part) for part in (parts if isinstance(parts, list | tuple) else [parts]))
    yield from ((f"variable {name}", weight) for name, weight in step.weights.items())
    if network is not None:
        for label, outputs in network.outputs_of_layers(step.weights, step.x):
            yield from ((f"outputs of {label}", output) for output in outputs)
    yield from ((f"gradient of {name}", gradient) for name, gradient in step.gradients.items())
