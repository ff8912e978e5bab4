"""The training loop: one task's part of a call of `fit`, from the first batch to the last global step.

It reads top to bottom: let the strategy make a step, which asks for parts of a batch to be computed; begin to
lead, where the leader has died. A gradient that is not finite is traced to the first place on its way that is
not.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from dtrain.errors import NonFiniteGradientError
from dtrain.learning.graphs.networks import Network
from dtrain.messages import Verdict
from dtrain.protocol.contributions import Outcome
from dtrain.runs.ledger import COMPUTE, NO_ACTIVITY, Activity, Timesheet
from dtrain.strategies.interface import Replica, Stepped, Training
from dtrain.training.fits.leading import Leading
from dtrain.training.parts import Batch, Part
from dtrain.training.steps import Logs, Totals, TrainingStep

MAX_REFUSED = 100
"""Gradients in a row that are not finite, after which training has failed: it would never reach its last
step.
"""

PartOf = Callable[[int], Part]
"""Reads the part of a number."""


@dataclass
class _ReplicaOfTask:
    """The belongings of one replica of this task.

    Attributes:
        refused: how many gradients in a row were not finite.
        explained: the reason why the first of all was not.
    """

    part_of: PartOf
    totals: Totals
    sheet: Timesheet
    refused: int = 0
    explained: str = ""


@dataclass
class TrainingLoop:
    """The parts of a task's training; `run` is the loop.

    Attributes:
        train_step: computes the gradients of a step and returns numbers, the loss among them.
        explain: names the reason why a step's gradients are not finite.
        make_totals: makes what sums up loss and metrics; each replica has its own.
        lead: makes the leader's part of the loop, also in the midst of training.
        leading: the leader's part; None in a task that does not lead.
        weighs_examples: whether a step is the mean over its examples.
        activity: the task's account of its time.
    """

    training: Training
    make_step: Callable[[Replica, int, Part, Batch], TrainingStep]
    train_step: Callable[[TrainingStep], Logs]
    explain: Callable[[TrainingStep], str]
    make_totals: Callable[[], Totals]
    lead: Callable[[], Leading]
    leading: Leading | None = None
    weighs_examples: bool = False
    activity: Activity = NO_ACTIVITY
    _places: dict[Replica, _ReplicaOfTask] = field(default_factory=dict)
    _begun: bool = False
    _warned: bool = False
    _refused_loss: float = 0.0

    def begin(self) -> None:
        """Begin the leader's part, if this task leads now: before its data are read."""
        if self.leading is None and self.training.leads:
            self.leading = self.lead()
            self.leading.begin()

    def run(self, streams: Sequence[PartOf]) -> None:
        """Train until the strategy has finished, each replica on its stream of parts.

        A task may begin to lead at any step, when the leader has died; then it ends epochs in its place.
        """
        sheets = self.activity.sheets
        for number, (replica, part_of) in enumerate(zip(self.training.replicas, streams, strict=True)):
            self._places[replica] = _ReplicaOfTask(part_of, self.make_totals(), sheets[number % len(sheets)])
        for sheet in sheets:
            sheet.begins(self.training.global_step)
        try:
            self._run()
        finally:
            for sheet in sheets:
                sheet.ends()

    def _run(self) -> None:
        training = self.training
        while True:
            self.begin()
            leading = self.leading
            if leading is not None and not leading.goes_on():
                continue
            if not training.finished:
                self._step()
            elif (training.step if leading is None else leading.conclude)(self._compute) is Stepped.ENDED:
                return

    def _step(self) -> None:
        """Let the strategy make a step, and end the batch in the leader's callbacks if it has begun there."""
        result = self.training.step(self._compute)
        begun, self._begun = self._begun, self._begun and result is Stepped.PENDING
        if self.leading is None or not begun:
            return
        if result is Stepped.MADE:
            self.leading.call_batch("on_train_batch_end", self.training.global_step)
        elif result is Stepped.REFUSED:
            self.leading.refuse_batch(self._refused_loss)

    def _compute(self, replica: Replica, number: int) -> Callable[[], Outcome] | None:
        """Read a part, and return what computes and commits it; None: callbacks have changed training.

        A replica that is not one of the training's computes the part of another one that is gone.
        """
        training, leading = self.training, self.leading
        if leading is None and training.leads:
            return None
        if leading is not None and not self._begun and not training.repairs:
            self._begun = True
            leading.call_batch("on_train_batch_begin", training.global_step + 1, {})
            if training.finished:
                return None
        place = self._places.get(replica)
        if place is None:
            place = _ReplicaOfTask(
                next(iter(self._places.values())).part_of, self.make_totals(), NO_ACTIVITY.sheet
            )
        part = place.part_of(number)
        if part.empty and not self._warned:
            self._warn_of_empty_parts(part)
        return partial(self._contribute, replica, number, part, place)

    def _contribute(self, replica: Replica, number: int, part: Part, place: _ReplicaOfTask) -> Outcome:
        """Compute one part: a gradient, a verdict. The next part may be the same again (`on_stale`).

        A part of a round of local steps is computed batch by batch, until there is a verdict on all of it.
        """
        place.sheet.to(COMPUTE)
        step, loss = None, 0.0
        for each, of_batch in part.steps or ((number, part),):
            if of_batch.batch is None:
                outcome = replica.commit(0.0, 0, None, of_batch.empty)
                continue
            step = self.make_step(replica, each, of_batch, of_batch.batch)
            logs = self.train_step(step)
            loss = step.contribute(logs)
            sums = place.totals.of_one(of_batch.batch, step, logs) if step.sees_outputs else None
            try:
                outcome = replica.commit(loss, of_batch.batch.size, sums, of_batch.empty)
            except NonFiniteGradientError as error:
                raise NonFiniteGradientError(f"{error}; {self.explain(step)}") from error
            if outcome.verdict is not Verdict.PENDING:
                break
        place.sheet.judged(outcome.verdict, outcome.accepted if step else 0, self.training.global_step)
        if step is None:
            return outcome
        if outcome.verdict is Verdict.REFUSED:
            self._refused_loss = loss
            self._note_refusal(step, place)
        elif outcome.verdict is not Verdict.PENDING:
            place.refused = 0
        return outcome

    def _warn_of_empty_parts(self, part: Part) -> None:
        """Warn once of a batch with fewer examples than parts, if that changes the gradients."""
        if self.weighs_examples or all(replica.rank != 0 for replica in self.training.replicas):
            return
        self._warned = True
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

    def _note_refusal(self, step: TrainingStep, place: _ReplicaOfTask) -> None:
        """Print, once, why a gradient held NaN or infinity; give up after too many of them in a row."""
        place.refused += 1
        if not place.explained:
            place.explained = self.explain(step)
            where = step_in_work(self.training)
            print(
                f"dtrain: {where}: a gradient was not applied: {place.explained}", file=sys.stderr, flush=True
            )
        if place.refused == MAX_REFUSED:
            raise NonFiniteGradientError(
                f"{MAX_REFUSED} gradients in a row held NaN or infinity; the first: {place.explained}"
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


def step_in_work(training: Training) -> str:
    """Return the name of the next step: its number in this call of `fit`, and in all if that differs."""
    step = training.global_step + 1
    done = training.first_step
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
