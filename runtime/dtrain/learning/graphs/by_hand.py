"""A model whose layers a program has placed on tasks by hand: what each task computes, and in which order.

A layer that is not placed is computed where its first input is, and where that is an input of the model by
the leader. The *level* of a step is how often an array changes its task on the way to it. The steps of one
task and one level are a segment. Every task passes each microbatch through its segments by level, so that one
that waits does so for a lower level of the same microbatch: no two wait for each other.

The outputs of the model belong to one segment, that of the output with the highest level; others enter it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from dtrain.cluster import TaskId
from dtrain.errors import SpecError
from dtrain.learning.graphs.graph import Graph
from dtrain.learning.graphs.stages import joined_segments
from dtrain.learning.layers import InputLayer, Layer
from dtrain.learning.layers.base import PLACE
from dtrain.state.stage_layout import Segment


@contextmanager
def device(name: str | TaskId | None) -> Iterator[None]:
    """Place the layers that are made within ``with`` on a task: ``dt.device("/job:worker/task:1")``.

    `training.strategy: pipeline` heeds it; a process alone computes everything. Compare `tf.device`.

    Args:
        name: a task, as TensorFlow writes it, or ``worker:1``; ``/replica:0`` and the name of a CPU may stand
            in it. None: layers that are made within are not placed.

    Raises:
        SpecError: it names no task that trains, or a device that is no CPU.
    """
    token = PLACE.set(_task_of(name))
    try:
        yield
    finally:
        PLACE.reset(token)


def _task_of(name: str | TaskId | None) -> TaskId | None:
    if name is None:
        return None
    said = re.sub(r"/replica:0|/(device:)?cpu:(\d+|\*)", "", str(name), flags=re.IGNORECASE)
    if re.search(r"gpu|tpu", said, re.IGNORECASE):
        raise SpecError(
            f"device: {name}: tasks compute on CPUs: name a task alone, such as /job:worker/task:1"
        )
    task = TaskId.parse(said if re.search(r"\d$", said) else f"{said}/task:0")
    if not task.trains:
        raise SpecError(f"device: {task} computes no layers; name the chief or a worker")
    return task


def places_by_hand(graph: Graph) -> dict[Layer, TaskId]:
    """Return the layers that a program has placed, and their tasks."""
    return {layer: layer.placed_on for layer in graph.layers if layer.placed_on is not None}


def segments_by_hand(graph: Graph, stages: Mapping[Layer, int], tasks: Sequence[str]) -> list[Segment]:
    """Return the segments of a built graph, by level, then by task.

    Args:
        stages: the place in `tasks` of each layer that a program has placed.
        tasks: the names of those that train, the leader first.

    Raises:
        SpecError: a task has no variables, or a layer, or two that are computed together, have two places.
    """
    stage_of, level_of = _places(graph, stages)
    _check(graph, stage_of, level_of, tasks)
    members: dict[tuple[int, int], list[int]] = {}
    for number, stage in stage_of.items():
        members.setdefault((level_of[number], stage), []).append(number)
    last = max((level_of[slot.step], -stage_of[slot.step]) for slot in graph.outputs)
    ordered = sorted(members, key=lambda key: (key[0], (key[0], -key[1]) == last, key[1]))
    return joined_segments(graph, [((stage,), members[level, stage]) for level, stage in ordered])


def _places(graph: Graph, stages: Mapping[Layer, int]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the task and the level of every step but the model's inputs."""
    stage_of: dict[int, int] = {}
    level_of: dict[int, int] = {}
    for number, step in enumerate(graph.steps):
        if not step.inputs:
            continue
        stage = stage_of[number] = stages.get(step.layer, stage_of.get(step.inputs[0].step, 0))
        level_of[number] = max(
            level_of[slot.step] + (stage_of[slot.step] != stage) if slot.step in level_of else 0
            for slot in step.inputs
        )
    return stage_of, level_of


def _check(
    graph: Graph, stage_of: Mapping[int, int], level_of: Mapping[int, int], tasks: Sequence[str]
) -> None:
    seen: dict[Layer, int] = {}
    for number, stage in stage_of.items():
        step = graph.steps[number]
        first = seen.setdefault(step.layer, number)
        if stage_of[first] != stage:
            raise SpecError(
                f"{step.path} is used on {tasks[stage_of[first]]} and on {tasks[stage]}, which would both "
                "update its weights: place it, or the layers around it, on one task"
            )
        if level_of[first] != level_of[number]:
            others = ", ".join(tasks[other] for other in sorted({*stage_of.values()} - {stage}))
            raise SpecError(
                f"{step.path} is used before and behind what {others} computes: make a layer for each use, "
                "or place what lies between them on the same task"
            )
        source = step.inputs[0].step
        together = source in graph.stand_ins and not isinstance(graph.stand_ins[source], InputLayer)
        if together and isinstance(graph.stand_ins.get(number), InputLayer) and stage_of[source] != stage:
            raise SpecError(
                f"{graph.steps[source].path} and {step.path} are computed together: place both on one task"
            )
    owners = {stage_of[number] for number in stage_of if graph.steps[number].weights}
    if idle := [task for stage, task in enumerate(tasks) if stage not in owners]:
        raise SpecError(
            f"no layer with variables is placed on {', '.join(idle)}: place one there with dt.device, or "
            "start fewer tasks"
        )
