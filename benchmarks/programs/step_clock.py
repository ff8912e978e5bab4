"""When the steps of one replica were done: for programs that are timed from outside, on the clock that all
processes share.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import dtrain as dt

HELD_AT = 30


class StepClock:
    """Sits between the data and the training loop: when a batch is asked for, the step before it is done.

    Attributes:
        hold: after `HELD_AT` steps nothing goes on until there is a file ``go`` in the run directory.
        marks: (steps done, seconds on the monotonic clock), at every `every`-th step.
    """

    def __init__(self, every: int, hold: bool = False) -> None:
        self.every = every
        self.hold = hold
        self.marks: list[tuple[int, float]] = []

    def watch(self, batches: dt.data.Dataset) -> dt.data.Dataset:
        """The same batches, watched."""

        def generate() -> Iterator[object]:
            for done, batch in enumerate(batches):
                if done % self.every == 0:
                    self.marks.append((done, time.monotonic()))
                while self.hold and done >= HELD_AT and not Path(os.environ["DTRAIN_RUN_DIR"], "go").exists():
                    time.sleep(0.01)
                yield batch

        return dt.data.Dataset.from_generator(generate)

    def report(self) -> None:
        """One line for the program that started this one."""
        print("marks", json.dumps(self.marks), flush=True)
