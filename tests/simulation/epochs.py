"""The simulated leader's account of epochs: what the training loop and `order_driver` do with the sums of
ps:0.
"""

from simulation.data import row_of

from dtrain.messages import Record, Recorded, Row
from dtrain.roles.worker.machine import Phase, Replica


class Epochs:
    """Says what is to be recorded next, if anything; the rows are also what the leader ends with.

    Attributes:
        rows: by epoch, as ps:0 has them.
    """

    def __init__(self, generation: int, steps_per_epoch: int) -> None:
        self.rows: dict[int, Row] = {}
        self._generation = generation
        self._steps_per_epoch = steps_per_epoch
        self._term = 0
        self._asked: Record | None = None
        self._heard = 0

    def next_record(self, machine: Replica) -> Record | None:
        """What to tell ps:0, or ask it, before training goes on from the values at hand."""
        self._asked, self._heard = None, machine.term
        if machine.term != self._term:
            self._asked = Record(generation=self._generation)
        else:
            steps, epoch = machine.global_step - machine.first_step, len(self.rows)
            stopped_within = machine.phase is Phase.FINISHED and epoch * self._steps_per_epoch < steps
            if stopped_within or (epoch + 1) * self._steps_per_epoch <= steps:
                row = row_of([sums for each, sums in machine.tally if each == epoch])
                self._asked = Record(
                    generation=self._generation, term=machine.term, epoch=epoch + 1, rows={epoch: dict(row)}
                )
        return self._asked

    def told(self, answer: Recorded) -> bool:
        """Note ps:0's answer; return whether it is in the term of the values at hand."""
        assert self._asked is not None
        if self._asked.epoch is None:
            self.rows, self._term = dict(answer.rows), answer.term
        elif answer.term == self._heard:
            self.rows |= self._asked.rows
        return answer.term == self._heard
