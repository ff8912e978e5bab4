"""The arrays of one step of a pipeline that enter and leave what one task computes."""

from collections.abc import Sequence

import numpy as np

from dtrain.learning.graphs.networks import StepResult
from dtrain.learning.graphs.stages import Crossing
from dtrain.roles.stage.driver import StageDriver
from dtrain.state.stage_layout import StageLayout
from dtrain.types import Array, Arrays


class Travel:
    """The arrays that enter and leave the segments of a task in a step; what its own ones read stays here."""

    def __init__(
        self, driver: StageDriver, layout: StageLayout, batch: int, version: int | None, marks: bool
    ) -> None:
        """Begin a batch, with which two notes travel forward; see `StageTensor`."""
        self._driver = driver
        self._layout = layout
        self.batch = batch
        self._noted = version, marks
        self._place = driver.machine.stage
        self._rows: dict[int, int] = {}
        self._here: dict[tuple[int, int, bool], Crossing] = {}
        if self._place == 0:
            for edge in layout.starts.values():
                self._leave(0, edge, (np.empty(0, np.float32), None), back=False)

    def entering(self, segment: int, microbatch: int, rows: int) -> list[Crossing]:
        """Return what enters a segment forward, of so many examples; raise as `StageDriver.take`."""
        self._rows[microbatch] = rows
        return [self._arrived(microbatch, edge, back=False) for edge in self._layout.into[segment]]

    def leave(self, segment: int, microbatch: int, left: Sequence[Crossing]) -> None:
        for edges, crossing in zip(self._layout.out_of[segment], left, strict=False):
            for edge in edges:
                self._leave(microbatch, edge, crossing, back=False)

    def upstream(self, segment: int, microbatch: int) -> list[Array | None]:
        """Return the gradients by what left a segment, that of the last reader first, as a pass adds them."""
        found = [
            [self._arrived(microbatch, edge, back=True)[0] for edge in reversed(edges)]
            for edges in self._layout.out_of[segment]
        ]
        return [sum(others, first) for first, *others in found]

    def leave_back(self, segment: int, microbatch: int, gradients: Sequence[Array]) -> None:
        for edge, gradient in zip(self._layout.into[segment], gradients, strict=True):
            self._leave(microbatch, edge, (gradient, None), back=True)

    def sum_over_replicas(self, gradients: Arrays) -> None:
        """Add up the gradients of the replicas of this stage, in their order, in place in each of them."""
        sums = self._layout.sums
        edges = [sums[task] for task in self._layout.replicas_of(self._place)[1:]]
        if not edges:
            return
        flat = np.concatenate([array.reshape(-1) for array in gradients.values()])
        if self._place in sums:
            self._leave(0, sums[self._place], (flat, None), back=False)
            flat = self._arrived(0, sums[self._place], back=True)[0]
        else:
            for edge in edges:
                flat += self._arrived(0, edge, back=False)[0]
            for edge in edges:
                self._leave(0, edge, (flat, None), back=True)
        start = 0
        for array in gradients.values():
            array[...] = flat[start : start + array.size].reshape(array.shape)
            start += array.size

    def _arrived(self, microbatch: int, edge: int, *, back: bool) -> Crossing:
        if (found := self._here.pop((microbatch, edge, back), None)) is not None:
            return found
        rows = self._rows.get(microbatch) if edge < len(self._layout.edges) else None
        array, *mask = self._driver.take(self.batch, microbatch, edge, back=back, rows=rows)
        return array, mask[0] if mask else None

    def _leave(self, microbatch: int, edge: int, crossing: Crossing, *, back: bool) -> None:
        source, target = self._layout.routes[edge].ends(microbatch)
        if source == target:
            self._here[microbatch, edge, back] = crossing
        else:
            self._driver.send(self.batch, microbatch, edge, back=back, arrays=crossing, noted=self._noted)


def joined(results: Sequence[StepResult]) -> StepResult:
    """Return the result of a step of several segments; one of them at most has the model's outputs."""
    if len(results) == 1:
        return results[0]
    last = next((each for each in results if each.outputs is not None), results[-1])
    return last._replace(
        loss=sum(each.loss for each in results),
        state_updates={name: value for each in results for name, value in each.state_updates.items()},
        row_gradients={name: rows for each in results for name, rows in each.row_gradients.items()},
    )
