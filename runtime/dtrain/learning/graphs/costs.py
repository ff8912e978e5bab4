"""The costs of a model's layers, measured by passes over one batch: seconds, parameters, and memory.

Gradients go to memory that all layers share, so that a model needs little more than its weights and one pass.
"""

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from dtrain.learning.graphs.graph import Graph
from dtrain.learning.graphs.networks import Network
from dtrain.learning.graphs.passes import Going
from dtrain.learning.graphs.stages import leaving_at, positions
from dtrain.process.plain_text import bytes_text, plain_line
from dtrain.state.model_cost import ModelCost, joined
from dtrain.types import Arrays
from dtrain.variables import VariableSpec

PASSES_MIN, PASSES_MAX = 3, 9
"""Passes without which a median means little, and beyond which it changes little."""
WITHIN_S = 1.0, 3.0
"""When no further pass begins, and when none does of those without which a median means little."""
NAME_END = 21


class Profile(NamedTuple):
    """The costs of a model; printed, it is a table.

    Attributes:
        examples: of the batch.
        layers: in the order in which they run.
    """

    examples: int
    layers: tuple[ModelCost, ...]

    def __str__(self) -> str:
        total = joined(self.layers)._replace(layers=("all layers",))
        rows = [["layer", "forward", "backward", "parameters", "kept", "leaves"]]
        for each in (*self.layers, total):
            leaves = "-" if each.leaving_bytes is None else bytes_text(each.leaving_bytes)
            held = bytes_text(each.parameter_bytes), bytes_text(each.kept_bytes)
            rows.append([each.layers[0], ms(each.forward_s), ms(each.backward_s), *held, leaves])
        return "\n".join([f"costs of a batch of {self.examples}", *aligned(rows)])


def ms(taken_s: float) -> str:
    return f"{1e3 * taken_s:.3g} ms" if taken_s < 1 else f"{taken_s:.3g} s"


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return lines of cells below each other; the first one of each row is a name, perhaps a long one."""
    cut = [[plain_line(name[:NAME_END]) + (name[NAME_END:] and "…"), *rest] for name, *rest in rows]
    first, *widths = (max(map(len, column)) for column in zip(*cut, strict=True))
    return [
        name.ljust(first) + "".join(f"  {cell:>{width}}" for cell, width in zip(rest, widths, strict=True))
        for name, *rest in cut
    ]


def measure(
    graph: Graph, variables: Iterable[VariableSpec], weights: Arrays, x: Any, clock: Callable[[], float]
) -> Profile:
    """Pass a batch forward and back, until there are enough passes or the time is over; once at least.

    Args:
        variables: those of which sparse ones have gradients by rows.
        x: the batch; a list, or a mapping by input name, if there are several inputs.
        clock: in seconds.

    Raises:
        InputError: x does not fit.
    """
    specs = {spec.name: spec for spec in variables}
    dense = [spec for spec in specs.values() if spec.trainable and not spec.sparse]
    memory = np.zeros(max((spec.nbytes for spec in dense), default=0), np.uint8)
    gradients = {spec.name: memory[: spec.nbytes].view(spec.dtype).reshape(spec.shape) for spec in dense}
    taken: list[tuple[list[float], list[float]]] = [([], []) for _ in graph.steps]
    layers: Any = {
        number: SimpleNamespace(
            **{name: getattr(layer, name) for name in ("any_dtype", "takes_list", "label")},
            forward=_timed(layer.forward, taken[number][0], clock),
            backward=_timed(layer.backward, taken[number][1], clock),
        )
        for number, step in enumerate(graph.steps)
        for layer in [graph.stand_ins.get(number, step.layer)]
    }
    network, begun_s, passes = Network(graph), clock(), 0
    with np.errstate(all="ignore"):  # gradients that share memory mean nothing
        while not passes or (passes < PASSES_MAX and clock() - begun_s < WITHIN_S[passes < PASSES_MIN]):
            run = network.forward(weights, x, Going(True, np.random.default_rng(0)), layers)
            kept, outputs = run.kept_bytes(), [of_step for _, of_step in run.values()]
            run.backward([np.ones_like(y) for y in run.outputs], gradients)
            passes += 1
    order, costs = positions(graph), []
    for number, behind in zip(order, [*order[1:], len(graph.steps)], strict=True):
        own = [specs[name] for _, name in graph.steps[number].weights]
        leaving = leaving_at(graph, behind)
        # The first pass has allocated memory.
        forward_s, backward_s = (float(np.median(each[1:] or each or [0.0])) for each in taken[number])
        nbytes = sum(spec.nbytes for spec in own), sum(spec.nbytes for spec in own if spec.trainable)
        sent = None if leaving is None else outputs[leaving.step][leaving.output].nbytes
        layer = (graph.steps[number].path,)
        costs.append(ModelCost(layer, forward_s, backward_s, *nbytes, kept[number], sent))
    return Profile(len(outputs[order[0]][0]), tuple(costs))


def _timed(work: Callable[..., Any], taken: list[float], clock: Callable[[], float]) -> Callable[..., Any]:
    def run(*given: Any) -> Any:
        begun_s = clock()
        found = work(*given)
        taken.append(clock() - begun_s)
        return found

    return run
