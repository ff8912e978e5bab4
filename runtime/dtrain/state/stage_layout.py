"""Which task computes which steps of a model, and what travels between them.

In a pipeline the segments of a model form a chain, and each has its own tasks. Where layers are placed by
hand, segments form a graph. If a stage has m replicas, replica j mod m computes, sends and receives
microbatch j.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Slot = tuple[int, int]
"""The number of a step in its graph, and which of its outputs."""


class Segment(NamedTuple):
    """Steps of a graph that are computed without waiting between them.

    Attributes:
        tasks: the places of those that compute it, among all that train: microbatches in turn.
        numbers: of the steps, in the order in which they run; inputs of the model are not among them.
        entering: outputs of steps of other segments that these read.
        leaving: outputs of these steps that other segments read.
        is_last: whether the outputs of the model belong to it.
    """

    tasks: tuple[int, ...]
    numbers: tuple[int, ...]
    entering: tuple[Slot, ...]
    leaving: tuple[Slot, ...]
    is_last: bool


class Edge(NamedTuple):
    """An output of a step, on its way from one segment to another; `source` and `target` are their places."""

    slot: Slot
    source: int
    target: int


class ArrayTag(NamedTuple):
    """The name of an array that travels, within a term; `back` is the gradient by what went forward."""

    batch: int
    microbatch: int
    edge: int
    back: bool = False


class ArrayRoute(NamedTuple):
    """The way of an array: the tasks that send it, microbatches in turn, and those that receive it."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]

    def ends(self, microbatch: int, *, back: bool = False) -> tuple[int, int]:
        """Return who sends a microbatch, and who receives it; on its way `back` it is the other way round."""
        ways = (self.targets, self.sources) if back else (self.sources, self.targets)
        sender, receiver = (tasks[microbatch % len(tasks)] for tasks in ways)
        return sender, receiver


class StageLayout:
    """The segments of a model, in an order in which they can be computed, and what travels between them.

    Attributes:
        edges: ordered by their target, and there as in `Segment.entering`.
        into: the numbers of the edges to each segment, in the order of what enters.
        out_of: for each array that leaves each segment the numbers of its edges.
        routes: of each edge; behind them come those of `starts` and `sums`.
        starts: by task, on which route it hears from the leader that a batch begins, where its first segment
            reads nothing but inputs of the model.
        sums: by task, on which route the replica of a stage sends its gradient to the first one, and the sum
            returns.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        makers = {number: place for place, each in enumerate(segments) for number in each.numbers}
        self.edges = [
            Edge(slot, makers[slot[0]], target)
            for target, each in enumerate(segments)
            for slot in each.entering
        ]
        numbered = list(enumerate(self.edges))
        self.into = [[n for n, edge in numbered if edge.target == place] for place in range(len(segments))]
        self.out_of = [
            [
                [n for n, edge in numbered if edge.source == place and edge.slot == slot]
                for slot in each.leaving
            ]
            for place, each in enumerate(segments)
        ]
        self.routes = [
            ArrayRoute(segments[edge.source].tasks, segments[edge.target].tasks) for edge in self.edges
        ]
        first = {task: each for each in reversed(segments) for task in each.tasks}
        alone = [task for task, each in sorted(first.items()) if task and not each.entering]
        self.starts = self._routed({task: ArrayRoute((0,), (task,)) for task in alone})
        self.sums = self._routed(
            {task: ArrayRoute((task,), each.tasks[:1]) for each in segments for task in each.tasks[1:]}
        )

    def _routed(self, routes: Mapping[int, ArrayRoute]) -> dict[int, int]:
        begin = len(self.routes)
        self.routes += routes.values()
        return dict(zip(routes, range(begin, len(self.routes)), strict=True))

    @property
    def n_tasks(self) -> int:
        return 1 + max(task for each in self.segments for task in each.tasks)

    def of(self, task: int) -> list[int]:
        """Return the places of a task's segments."""
        return [place for place, each in enumerate(self.segments) if task in each.tasks]

    def first_of(self, task: int, batch: int) -> ArrayTag:
        """Return what a task that does not lead hears first of a batch."""
        edges = self.into[self.of(task)[0]]
        microbatch = self.replicas_of(task).index(task) if edges else 0
        return ArrayTag(batch, microbatch, edges[0] if edges else self.starts[task])

    def replicas_of(self, task: int) -> tuple[int, ...]:
        """Return the tasks that compute what this one computes, itself among them."""
        return next(each.tasks for each in self.segments if task in each.tasks)
