"""Microbatches in flight in a stage: arrays that enter and leave with them, the versions of variables that
they use, and the boundary of steps.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.learning.graphs.networks import StepResult
from dtrain.learning.graphs.stages import Crossing, StageStep
from dtrain.parameters.store import Store
from dtrain.parameters.versions import BufferAllocator
from dtrain.roles.stage.driver import StageDriver
from dtrain.state.stage_layout import ArrayTag, StageLayout
from dtrain.types import Array, Arrays, Blocks


class StepBoundary:
    """Admits other threads of this process between two steps, each at the next moment that comes.

    Within ``with boundary:`` no step changes the variables. The thread that trains may enter it between two
    steps.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._steps = False
        self._inside = 0
        self._wanted = 0

    @property
    def wanted(self) -> bool:
        """Whether a thread waits to be admitted."""
        return self._wanted > 0

    def begin_step(self) -> None:
        """Wait until every thread that waits to be admitted has come and left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._inside and not self._wanted)
            self._steps = True

    def end_step(self) -> None:
        with self._changed:
            self._steps = False
            self._changed.notify_all()

    def __enter__(self) -> None:
        with self._changed:
            self._wanted += 1
            try:
                self._changed.wait_for(lambda: not self._steps)
            finally:
                self._wanted -= 1
                self._changed.notify_all()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()


class Images(BufferAllocator):
    """The versions of a stage's variables that are still used: each stays where it lies, and the next one is
    written beside it. A table is copied.

    Attributes:
        kept: by version, its flat values, and views of all variables by name.
    """

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Blocks, dict[str, Array]]] = {}

    def in_use(self, values: Sequence[Array]) -> bool:
        return bool(values) and any(values is flat for flat, _ in self.kept.values())

    def keep(self, version: int, store: Store) -> None:
        """Keep the newest version, which has this number."""
        if version not in self.kept:
            tables = {table.shard.name: np.array(table.values) for table in store.tables}
            self.kept[version] = store.values, {**store.variables, **tables}

    def keep_only(self, used: Callable[[int], bool]) -> None:
        self.kept = {version: each for version, each in self.kept.items() if used(version)}


class Travel:
    """The arrays that enter and leave the segments of a task in a step; what its own ones read stays here."""

    def __init__(
        self, driver: StageDriver, layout: StageLayout, batch: int, version: int | None, marks: bool
    ) -> None:
        """Begin a batch, with which two notes travel forward; see `StageTensor`."""
        self._driver = driver
        self._layout = layout
        self.batch = batch
        self._version, self._marks = version, marks
        self._place = driver.machine.stage
        self._rows: dict[int, int] = {}
        self._here: dict[ArrayTag, Crossing] = {}
        if self._place == 0:
            for edge in layout.starts.values():
                self._leave(ArrayTag(batch, 0, edge), (np.empty(0, np.float32), None))

    def entering(self, segment: int, microbatch: int, rows: int) -> list[Crossing]:
        """Return what enters a segment forward, of so many examples; raise as `StageDriver.take`."""
        self._rows[microbatch] = rows
        return [self._arrived(ArrayTag(self.batch, microbatch, edge)) for edge in self._layout.into[segment]]

    def leave(self, segment: int, microbatch: int, left: Sequence[Crossing]) -> None:
        for edges, crossing in zip(self._layout.out_of[segment], left, strict=False):
            for edge in edges:
                self._leave(ArrayTag(self.batch, microbatch, edge), crossing)

    def upstream(self, segment: int, microbatch: int) -> list[Array | None]:
        """Return the gradients by what left a segment, that of the last reader first, as a pass adds them."""
        found = [
            [self._arrived(ArrayTag(self.batch, microbatch, edge, True))[0] for edge in reversed(edges)]
            for edges in self._layout.out_of[segment]
        ]
        return [sum(others, first) for first, *others in found]

    def leave_back(self, segment: int, microbatch: int, gradients: Sequence[Array]) -> None:
        for edge, gradient in zip(self._layout.into[segment], gradients, strict=True):
            self._leave(ArrayTag(self.batch, microbatch, edge, True), (gradient, None))

    def sum_over_replicas(self, gradients: Arrays) -> None:
        """Add up the gradients of the replicas of this stage, in their order, in place in each of them."""
        sums = self._layout.sums
        edges = [sums[task] for task in self._layout.replicas_of(self._place)[1:]]
        if not edges:
            return
        flat = np.concatenate([array.reshape(-1) for array in gradients.values()])
        if self._place in sums:
            own = ArrayTag(self.batch, 0, sums[self._place])
            self._leave(own, (flat, None))
            flat = self._arrived(own._replace(back=True))[0]
        else:
            for edge in edges:
                flat += self._arrived(ArrayTag(self.batch, 0, edge))[0]
            for edge in edges:
                self._leave(ArrayTag(self.batch, 0, edge, True), (flat, None))
        start = 0
        for array in gradients.values():
            array[...] = flat[start : start + array.size].reshape(array.shape)
            start += array.size

    def _arrived(self, tag: ArrayTag) -> Crossing:
        if (found := self._here.pop(tag, None)) is not None:
            return found
        rows = self._rows.get(tag.microbatch) if tag.edge < len(self._layout.edges) else None
        array, *mask = self._driver.take(tag, rows)
        return array, mask[0] if mask else None

    def _leave(self, tag: ArrayTag, crossing: Crossing) -> None:
        source, target = self._layout.routes[tag.edge].ends(tag.microbatch)
        if source == target:
            self._here[tag] = crossing
        else:
            self._driver.send(tag, crossing, self._version, marks=self._marks)


def result_of(steps: Mapping[int, StageStep]) -> StepResult:
    """Return the result of a step of segments, as far as it has been computed; one of them at most has
    the model's outputs.
    """
    results = [step.result() for step in steps.values()]
    if len(results) == 1:
        return results[0]
    last = next((each for each in results if each.outputs is not None), results[-1])
    return last._replace(
        loss=sum(each.loss for each in results),
        state_updates={name: value for each in results for name, value in each.state_updates.items()},
        row_gradients={name: rows for each in results for name, rows in each.row_gradients.items()},
    )


@dataclass(frozen=True)
class Flight:
    """A microbatch that has passed forward, and not yet back.

    Attributes:
        steps: of the segments of this task, by their places.
        travel: of its batch.
        version: that its batch uses.
        targets: of its examples, and their weights; the last stage reads them.
        examples: of its batch, if it is the last microbatch of it; else 0.
        marks: whether a checkpoint has what comes of its batch.
    """

    steps: Mapping[int, StageStep]
    travel: Travel
    microbatch: int
    version: int
    targets: tuple[Any, Any]
    examples: int
    marks: bool
