"""The evaluator's machine: which checkpoint to evaluate next, and when to end. Pure.

Rule *Orderly end* (docs/design/protocol.md#orderly-end).

Always the newest that was not evaluated yet; the final one in any case. It ends when the final checkpoint has
been evaluated, or when training has ended without one (the leader died for good) and everything that is there
was evaluated.
"""

from enum import Enum

import msgspec

from dtrain.checkpoints import Pace


class Next(Enum):
    """The decision when there is nothing to evaluate."""

    WAIT = "wait"
    DONE = "done"


class EvaluationSchedule(msgspec.Struct):
    """Keeps the newest evaluated step; times are seconds since the evaluator's start."""

    pace: Pace = msgspec.field(default_factory=Pace)
    evaluated: int | None = None
    final_done: bool = False
    begun_s: float | None = None

    def next(self, newest: int | None, final: bool, training_ended: bool, now_s: float = 0.0) -> int | Next:
        """Return the step of the checkpoint to evaluate, or the decision to wait or end.

        Args:
            newest: the newest checkpoint's step; None if there is none.
            final: whether it is the final one (the same step may be written once more, as the final one).
        """
        self.final_done = self.final_done or (final and newest == self.evaluated)
        if self.final_done:
            return Next.DONE
        earliest_s = self.pace.start_delay_s if self.begun_s is None else self.begun_s + self.pace.throttle_s
        # An older one is left over: the next call of `fit` has written its first one in the place of the
        # final one.
        is_new = newest is not None and (self.evaluated is None or newest > self.evaluated)
        if newest is not None and is_new and (final or training_ended or now_s >= earliest_s):
            self.begun_s = now_s
            return newest
        return Next.DONE if training_ended else Next.WAIT

    def done(self, step: int, final: bool) -> None:
        self.evaluated = step
        self.final_done = final
