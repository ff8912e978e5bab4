"""Microbatches in flight in a stage, the versions of variables that they use, and its boundary of steps."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from dtrain.learning.graphs.networks import StepResult
from dtrain.learning.graphs.stages import StageStep
from dtrain.parameters.store import Store
from dtrain.parameters.versions import BufferAllocator
from dtrain.strategies.pipeline.travel import Travel, joined
from dtrain.types import Array, Blocks


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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

    @property
    def result(self) -> StepResult:
        """The result of its batch, as far as that has been computed here."""
        return joined([step.result() for step in self.steps.values()])
