"""Where a pipeline is cut, by what its layers cost here, and what its stages then need: the leader's decision
before the first step, and what `dtrain plan` prints.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dtrain.cluster import TaskId
from dtrain.cluster.hosts import host_of
from dtrain.config import PipelineSection, SingleSection
from dtrain.errors import DtrainError, SpecError
from dtrain.learning import optimizers
from dtrain.learning.graphs.by_hand import places_by_hand
from dtrain.learning.graphs.costs import Profile, aligned, measure, ms
from dtrain.learning.graphs.networks import Network
from dtrain.learning.graphs.stages import cut_before
from dtrain.parameters import placement
from dtrain.parameters.store import Store
from dtrain.parameters.updater import Contributions
from dtrain.process.assignment import PLANNED, TaskAssignment
from dtrain.process.clock import SYSTEM
from dtrain.process.plain_text import bytes_text
from dtrain.process.resources import own_limits
from dtrain.protocol.partition_plan import PipelineShape, StageLink, best_cut, predicted_step_s
from dtrain.protocol.pipeline_schedule import FLUSHES, bubble
from dtrain.state.batch_cut import BatchCut
from dtrain.state.model_cost import ModelCost, joined
from dtrain.strategies.in_process.training import LocalStrategy
from dtrain.strategies.interface import Problem, Training
from dtrain.variables import VariableSpec

ONE_HOST_BYTES_PER_S, TWO_HOSTS_BYTES_PER_S = 1e9, 1.25e8
"""Of a socket, and of 1 Gbit/s, which is assumed between hosts where `simulate.network` says nothing."""
EXAMPLES, LENGTH = 32, 32
"""What is measured where the examples of a batch, or the length of an axis, are not known before training."""
UPDATED = 1 << 20
"""The elements of the variable with which the optimizer is timed."""


class PlannedStages(NamedTuple):
    """The costs of each stage, for a microbatch of so many examples, and how they work together."""

    stages: list[ModelCost]
    pipeline: PipelineShape
    examples: int

    def to_dict(self, tasks: Sequence[TaskId]) -> dict[str, Any]:
        """Return everything in JSON types, and as lines of at most 80 columns for a person."""
        pipeline, count = self.pipeline, self.pipeline.microbatches
        rows = [["task: layers", "params", "slots", "kept", "forward", "back", "sends"]]
        stages = []
        for task, stage in zip(tasks, pipeline.stage_of_task, strict=True):
            each = self.stages[stage]
            flying, slots = pipeline.in_flight(stage), pipeline.slots * each.trained_bytes
            sizes = {"slot_bytes": slots, "activation_bytes": flying * each.kept_bytes}
            sizes["memory_bytes"] = pipeline.memory(each, stage)
            stages.append({"task": str(task), "in_flight": flying, **each._asdict(), **sizes})
            name = f"{task}: {'..'.join(dict.fromkeys((each.layers[0], each.layers[-1])))}"
            held = map(bytes_text, (each.parameter_bytes, slots, flying * each.kept_bytes))
            sends = bytes_text(each.leaving_bytes or 0)
            rows.append([name, *held, ms(each.forward_s), ms(each.backward_s), sends])
        flushes = pipeline.schedule in FLUSHES
        steps_per_s = 1 / predicted_step_s(self.stages, pipeline)
        wait = bubble(len(self.stages), count) if flushes else 0.0
        versions = ", ".join(str(pipeline.versions(stage)) for stage in range(len(self.stages)))
        cores = len(os.sched_getaffinity(0))
        lines = [
            *aligned(rows),
            f"forward, back, sends: of a microbatch of {self.examples}, of which a step has {count}",
            f"kept: activations by {pipeline.schedule}; gradients take twice what is trained besides",
            f"predicted: {float(f'{steps_per_s:.3g}'):g} steps/s; "
            + (
                f"bubble (S-1)/(m+S-1): {wait:.0%} of a step"
                if flushes
                else "a bubble at ends of epochs alone"
            ),
            *[f"params are of one version; the stages keep {versions} of them"] * (not flushes),
            *[f"that is with a core for each stage: with {cores} it is slower"] * (cores < len(stages)),
        ]
        said = {"schedule": pipeline.schedule, "microbatches": count, "examples": self.examples}
        return {**said, "steps_per_s": steps_per_s, "bubble": wait, "stages": stages, "lines": lines}


def checked_network(problem: Problem, stages: int) -> Network:
    """Return the network that is cut; raise a `SpecError` if it is none, or needs what no stage has."""
    network = problem.computing.network
    if network is None:
        raise SpecError(
            "training.strategy: pipeline cuts a model of layers (dt.Sequential, dt.Model), found one of "
            "functions: train it with another strategy"
        )
    if network.sums_over_replicas:
        layer = next(layer for layer in network.layers if layer.sums_over_replicas)
        raise SpecError(
            f"{layer.label}: synchronized=True sums over all of a batch, which a pipeline computes "
            "microbatch by microbatch: leave it out, or choose another strategy"
        )
    if optimizers.from_config(problem.optimizer).global_clipnorm is not None and stages > 1:
        raise SpecError(
            "global_clipnorm needs the gradients of all stages at once, and each updates its own: use "
            "clipnorm or clipvalue"
        )
    return network


def hash_of(problem: Problem) -> str:
    """Return the hash of the variables, however they are cut."""
    return placement.plan(problem.variables, servers=1).hash


def planned_stages(
    problem: Problem,
    assignment: TaskAssignment,
    section: PipelineSection,
    measured: Mapping[int, StageLink] | None = None,
) -> PlannedStages:
    """Measure a model, and cut it; where the section names layers, there.

    Args:
        measured: the connection of the leader with each other task that trains; None: see `_assumed`.

    Raises:
        SpecError: it cannot be cut so or measured, no cut fits into this task's memory, or its layers are
            placed by hand.
    """
    tasks = assignment.cluster.replicas()
    network = checked_network(problem, len(tasks))
    if places_by_hand(network.graph):
        raise SpecError("the program places layers by hand (dt.device): a plan is made of chains of stages")
    size, cut = problem.feed.batch_size or EXAMPLES, BatchCut(section.blocks)
    profile, count = _measured(problem, network, len(cut.rows(0, size))), cut.filled(size)
    replicas = section.replicas_by_stage(len(tasks))
    first = [sum(replicas[:stage]) for stage in range(len(replicas))]
    links = [
        _assumed(assignment, tasks[one], tasks[other])
        if measured is None
        else _between(assignment, measured, one, other)
        for one, other in pairwise(first)
    ]
    slots = len(optimizers.from_config(problem.optimizer).initial_slots(np.zeros(1, np.float32)))
    pipeline = PipelineShape(
        section.schedule, count, links, _trained_s(problem.optimizer, count), slots, replicas
    )
    parts: Sequence[ModelCost] = profile.layers
    if isinstance(section.stages, tuple):
        cut_before(network.graph, section.stages)
        names = [each.layers[0] for each in parts]
        return PlannedStages(_split(parts, map(names.index, section.stages)), pipeline, profile.examples)
    ends = [number for number, each in enumerate(parts, 1) if each.leaving_bytes is not None]
    parts = _split(parts, [0, *ends])
    memory_max = min((float(words[0]) for words in own_limits("memory.max")), default=inf)
    if (begins := best_cut(parts, pipeline, memory_max)) is None:
        most = max(1, sum(each.parameter_bytes > 0 for each in parts))
        raise SpecError(
            f"stages: {len(replicas)}: this model can be cut into at most {most} stages that have variables "
            f"(where one array crosses, and not between two uses of a layer): take --stages {most}"
            + f"; none may need more than this process, {bytes_text(memory_max)}"
            * (memory_max < inf)
        )
    return PlannedStages(_split(parts, begins), pipeline, profile.examples)


def _split(costs: Sequence[ModelCost], starts: Iterable[int]) -> list[ModelCost]:
    return [joined(costs[start:stop]) for start, stop in pairwise([*starts, len(costs)])]


def _measured(problem: Problem, network: Network, examples: int) -> Profile:
    """Measure passes of a batch of ones: the program's data are read by nobody before their time."""
    weights = {name: np.asarray(value) for name, value in problem.initial_values().items()}
    x = {}
    for step in network.graph.inputs:
        dtype = getattr(step.layer, "dtype", None) or "float32"
        shape = examples, *(length or LENGTH for length in step.shapes[0])
        x[step.path] = np.ones(shape, "str" if dtype == "string" else dtype)
    try:
        return measure(network.graph, problem.variables, weights, x, SYSTEM.now)
    except Exception as error:  # of a layer of the program's own
        shapes = ", ".join(str(array.shape) for array in x.values())
        raise SpecError(
            f"stages: the layers cannot be measured with ones of shape {shapes}: {type(error).__name__}: "
            f"{error}; name the layers that begin the stages (training.stages)"
        ) from error


def _trained_s(optimizer: dict[str, Any], microbatches: int) -> float:
    """Return the time of a step for each byte that is trained, by a second update: the first takes memory."""
    layout = placement.plan([VariableSpec("timed", (UPDATED,))], servers=1).layout(0)
    total, gradient = np.zeros((2, UPDATED), np.float32)
    store, times_s = Store(layout, optimizer, [total]), []
    for version in range(2):
        store.make(Contributions.of([[gradient]], 0, None, version))
        times_s.append(SYSTEM.now())
    np.add(total, gradient, out=total)
    added_s = SYSTEM.now() - times_s[1]
    return (times_s[1] - times_s[0] + (microbatches - 1) * added_s) / total.nbytes


def _between(
    assignment: TaskAssignment, measured: Mapping[int, StageLink], one: int, other: int
) -> StageLink:
    """Return the connection of two tasks; but on one host it is that of the slower one with the leader."""
    tasks = assignment.cluster.replicas()
    if one and _share_a_host(assignment, tasks[one], tasks[other]):
        return _assumed(assignment, tasks[one], tasks[other])
    links = [measured[each] for each in (one, other) if each]
    return StageLink(min(each.bytes_per_s for each in links), max(each.latency_s for each in links))


def _share_a_host(assignment: TaskAssignment, *tasks: TaskId) -> bool:
    hosts = {host_of(assignment.cluster.address(task)) for task in tasks}
    return assignment.on_one_host or len(hosts) == 1


def _assumed(assignment: TaskAssignment, one: TaskId, other: TaskId) -> StageLink:
    """Return the connection of two tasks as `simulate.network` says, or as it usually is."""
    usual = ONE_HOST_BYTES_PER_S if _share_a_host(assignment, one, other) else TWO_HOSTS_BYTES_PER_S
    if (fault := assignment.spec.simulate.link(str(one), str(other))) is None:
        return StageLink(usual)
    bandwidth = fault.bandwidth_mbit_s
    return StageLink(bandwidth * 1.25e5 if bandwidth else usual, fault.latency_ms / 1000)


class PlanningStrategy(LocalStrategy):
    """Answers `dtrain plan`: the program runs to its first `fit`, and the process ends there."""

    def __init__(self, assignment: TaskAssignment) -> None:
        super().__init__(SingleSection(seed=assignment.spec.training.seed))
        self._assignment = assignment

    def open(self, problem: Problem) -> Training:
        """Write the plan, or why there is none, behind all that the program has written to stdout."""
        assignment, section = self._assignment, self._assignment.spec.training
        answer: dict[str, Any]
        try:
            for path, reason in assignment.spec.program_problems():
                raise SpecError(f"{'.'.join(map(str, path))}: {reason}")
            assert isinstance(section, PipelineSection), "no other strategy is planned so"
            found = planned_stages(problem, assignment, section)
            answer = found.to_dict(assignment.cluster.replicas())
        except DtrainError as error:
            answer = {"error": str(error)}
        sys.stdout.flush()
        os.write(1, f"\n{PLANNED} ".encode() + msgspec.json.encode(answer))
        os._exit(0)  # nothing of the program runs on, not even what it has registered for its end
