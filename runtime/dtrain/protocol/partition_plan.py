"""Where a pipeline is cut, by measured costs: rule *Cuts* (docs/design/pipelines.md#cuts).

1. A model is a chain of parts, between any two of which it may be cut. Each stage takes parts that follow
   each other, and has variables.
2. The slowest stage, or the slowest link, bounds how many microbatches pass in a second. The best cut makes
   its time as short as it can be. A link takes an array forward and the gradient by it back.
3. A stage keeps as many microbatches as the schedule has in flight there, and fits into a given memory.
4. The same costs always give the same cut.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from dtrain.config.choices import Schedule
from dtrain.protocol.pipeline_schedule import FLUSHES, in_flight, order, versions_kept
from dtrain.state.model_cost import ModelCost


class StageLink(NamedTuple):
    """The connection of two neighbouring stages."""

    bytes_per_s: float
    latency_s: float = 0.0

    def seconds(self, cost: ModelCost) -> float:
        """Return how long an array takes that leaves a part of the model."""
        return (cost.leaving_bytes or 0) / self.bytes_per_s + self.latency_s


class PipelineShape(NamedTuple):
    """How stages work together.

    Attributes:
        links: between the stages, one less than these.
        trained_s: for each byte that is trained: in a step its gradients are added, and it is updated.
        slots: how many the optimizer has for each variable.
        replicas: of each stage, which take microbatches in turn; none: each has one.
    """

    schedule: Schedule
    microbatches: int
    links: Sequence[StageLink]
    trained_s: float = 0.0
    slots: int = 0
    replicas: Sequence[int] = ()

    def replicas_of(self, stage: int) -> int:
        return self.replicas[stage] if self.replicas else 1

    @property
    def stage_of_task(self) -> list[int]:
        """The stage of each task, in the order of the tasks."""
        stages = range(len(self.links) + 1)
        return [stage for stage in stages for _ in range(self.replicas_of(stage))]

    def in_flight(self, stage: int) -> int:
        stages = len(self.links) + 1
        if self.schedule not in FLUSHES:
            return stages - stage
        return in_flight(self.schedule, stages, stage, self.microbatches)

    def versions(self, stage: int) -> int:
        return versions_kept(self.schedule, len(self.links) + 1, stage)

    def memory(self, cost: ModelCost, stage: int) -> int:
        """Return the bytes of all versions of the variables that are used, slots, a gradient and the sum of
        those before, and activations.
        """
        of_trained = (self.slots + 2) * cost.trained_bytes
        return (
            self.versions(stage) * cost.parameter_bytes + of_trained + self.in_flight(stage) * cost.kept_bytes
        )


def best_cut(
    costs: Sequence[ModelCost], pipeline: PipelineShape, memory_max: float = inf
) -> list[int] | None:
    """Return with which part each stage begins; None: there is no cut with stages of at most `memory_max`."""
    last, n = len(pipeline.links), len(costs)
    trained_s = pipeline.trained_s / pipeline.microbatches
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for stage in range(last + 1):
        found: dict[int, tuple[float, list[int]]] = {}
        replicas = pipeline.replicas_of(stage)
        for stop in range(stage + 1, n) if stage < last else (n,):
            link_s = 2 * pipeline.links[stage].seconds(costs[stop - 1]) if stage < last else 0.0
            work_s, memory, variables = 0.0, 0, 0
            for start in range(stop - 1, stage - 1, -1):
                cost = costs[start]
                work_s += (cost.forward_s + cost.backward_s) / replicas + trained_s * cost.trained_bytes
                memory += pipeline.memory(cost, stage)
                variables += cost.parameter_bytes
                if (stop in found and work_s > found[stop][0]) or memory > memory_max:
                    break  # more parts only make it worse
                if start in best and variables:
                    before_s, begins = best[start]
                    tried = max(before_s, work_s, link_s), [*begins, start]
                    found[stop] = min(found.get(stop, tried), tried)
        best = found
    return best[n][1] if n in best else None


def predicted_step_s(stages: Sequence[ModelCost], pipeline: PipelineShape) -> float:
    """Return how long a step takes where each stage has its own cores, and waits for nothing but arrays."""
    stages = [
        each._replace(forward_s=each.forward_s / n, backward_s=each.backward_s / n)
        for stage, each in enumerate(stages)
        for n in [pipeline.replicas_of(stage)]
    ]
    if pipeline.schedule not in FLUSHES:
        return _asynchronous_step_s(stages, pipeline)
    last, count = len(stages) - 1, pipeline.microbatches
    left = [[*order(pipeline.schedule, last + 1, each, count)][::-1] for each in range(last + 1)]
    ready_s = {(False, number, 0): 0.0 for number in range(count)}
    idle_s = [0.0] * (last + 1)
    free_s: dict[tuple[bool, int], float] = {}
    while any(left):
        for stage, works in enumerate(left):
            while works and (place := (*works[-1], stage)) in ready_s:
                back, number = works.pop()
                took_s = stages[stage].backward_s if back else stages[stage].forward_s
                idle_s[stage] = end_s = max(idle_s[stage], ready_s[place]) + took_s
                target = stage - 1 if back else stage + 1
                if 0 <= target <= last:
                    edge = min(stage, target)
                    link = pipeline.links[edge]
                    there_s = max(end_s, free_s.get((back, edge), 0.0)) + link.seconds(stages[edge])
                    ready_s[back, number, target] = there_s
                    free_s[back, edge] = there_s - link.latency_s
                elif not back:
                    ready_s[True, number, stage] = end_s
    return max(s + pipeline.trained_s * each.trained_bytes for s, each in zip(idle_s, stages, strict=True))


def _asynchronous_step_s(stages: Sequence[ModelCost], pipeline: PipelineShape) -> float:
    """Return the time of a step once the pipeline is full: that of its slowest stage or link."""
    count = pipeline.microbatches
    links_s = [count * 2 * link.seconds(each) for link, each in zip(pipeline.links, stages, strict=False)]
    works_s = (
        count * (each.forward_s + each.backward_s) + pipeline.trained_s * each.trained_bytes
        for each in stages
    )
    return max(*works_s, *links_s)
