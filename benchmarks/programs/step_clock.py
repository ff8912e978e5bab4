"""When the steps of one replica were done: for programs that are timed from outside, on the clock that all
processes share.
"""

import json
import time
from collections.abc import Iterator

import dtrain as dt


class StepClock:
    """Sits between the data and the training loop: when a batch is asked for, the step before it is done.

    Attributes:
        marks: (steps done, seconds on the monotonic clock), at every `every`-th step.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.marks: list[tuple[int, float]] = []
        self._cpu_s: list[float] = []

    def watch(self, batches: dt.data.Dataset) -> dt.data.Dataset:
        """The same batches, watched."""

        def generate() -> Iterator[object]:
            for done, batch in enumerate(batches):
                if done % self.every == 0:
                    self.marks.append((done, time.monotonic()))
                    self._cpu_s.append(time.process_time())
                yield batch

        return dt.data.Dataset.from_generator(generate)

    def report(self) -> None:
        """Lines for the program that started this one: the marks, and the CPU time of a step after the first mark.

        A replica that takes over an earlier batch of another one reads the data from the front again. If a short run
        ends with that, no step lies between the marks, and there is no such figure.
        """
        print("marks", json.dumps(self.marks), flush=True)
        steps = self.marks[-1][0] - self.marks[1][0] if len(self.marks) > 2 else 0
        if steps > 0:
            print("step_cpu_ms", (self._cpu_s[-1] - self._cpu_s[1]) / steps * 1000, flush=True)
