"""The step that marks where a pipeline is read ahead, and what a pipeline says about it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from dtrain.data.grouping import Batched, Mapped
from dtrain.data.node import Iteration, Node, Passing, on_inputs
from dtrain.data.options import AutotuneOptions, options_of
from dtrain.data.prefetching.threads import read_ahead
from dtrain.data.prefetching.tuning import AUTOTUNE, Tuning, default_budget_bytes, size_bytes
from dtrain.data.structure import Element
from dtrain.errors import InputError

BEGINNING = 2
"""The depth with which AUTOTUNE begins."""


class Prefetched(Passing):
    """The source, of which `buffer_size` elements are read ahead; AUTOTUNE: as many as are useful.

    An addressable pipeline is read ahead by the code that asks for its elements by number (`ReadAhead`). A
    stream is read ahead here.
    """

    def __init__(self, source: Node, buffer_size: int, autotune: AutotuneOptions | None = None) -> None:
        """Begin; `autotune` are the options of the whole pipeline, None: those of the source."""
        super().__init__(source)
        if buffer_size < AUTOTUNE:
            raise InputError(f"prefetch: expected a buffer_size >= 0 or AUTOTUNE (-1), found {buffer_size}.")
        self.buffer_size = buffer_size
        self._autotune = autotune

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        source = self._source.iterate(iteration)
        if self.buffer_size == 0:
            return source
        plan = plan_of(self, self._autotune)
        return source if plan is None else read_ahead(source, plan.tuning(), plan.budget_bytes, size_bytes)


def check_parallel_calls(number: int | None, step: str = "map") -> None:
    """Raise an `InputError` for a number of parallel calls that cannot be."""
    if number is not None and (number == 0 or number < AUTOTUNE):
        raise InputError(f"{step}: expected num_parallel_calls >= 1 or AUTOTUNE (-1), found {number}.")


@dataclass(frozen=True)
class PrefetchPlan:
    """The wishes of a pipeline about reading it ahead.

    Attributes:
        depth: of how many elements; AUTOTUNE: as many as are useful.
        threads: how many may call its functions at once.
        threads_max: how many may, where the number is left to AUTOTUNE.
        budget_bytes: of what is read ahead.
        tuned: whether AUTOTUNE may change depth and threads while it is read.
    """

    depth: int
    threads: int
    threads_max: int
    budget_bytes: int
    tuned: bool = True

    def tuning(self) -> Tuning:
        """Return the depth and the threads to begin with."""
        deeper = self.depth == AUTOTUNE and self.tuned
        depth = max(BEGINNING, self.threads) if self.depth == AUTOTUNE else self.depth
        return Tuning(depth, self.threads, deeper, self.threads_max if self.tuned else self.threads)


def with_autotune(node: Node, autotune: AutotuneOptions) -> Node:
    """Return the pipeline, of which every step `prefetch` knows these options of the whole."""
    inputs = [with_autotune(each, autotune) for each in node.inputs]
    if isinstance(node, Prefetched):
        return Prefetched(inputs[0], node.buffer_size, autotune)
    return on_inputs(node, inputs)


def plan_of(node: Node, autotune: AutotuneOptions | None = None) -> PrefetchPlan | None:
    """Return how a pipeline is to be read ahead; None where it says neither `prefetch` nor parallel calls.

    A function that is not said to be called in parallel is called by one thread at a time. `autotune` are the
    options to go by; None: those that the pipeline has been given.
    """
    depths: list[int] = []
    calls: list[int] = []
    _look(node, 1, depths, calls)
    parallel = [each for each in calls if each]
    if not depths and not parallel:
        return None
    autotune = options_of(node).autotune if autotune is None else autotune
    cores = autotune.cpu_budget or len(os.sched_getaffinity(0))
    alone = len(parallel) < len(calls) or not calls
    wanted = max(parallel, default=1)
    threads, threads_max = (1, 1) if alone else (wanted, wanted) if AUTOTUNE not in parallel else (1, cores)
    if depths:
        depth = AUTOTUNE if AUTOTUNE in depths else max(depths)
    else:
        depth = AUTOTUNE if AUTOTUNE in parallel else 2 * threads
    if depth == 0:
        return None
    budget = autotune.ram_budget or default_budget_bytes()
    return PrefetchPlan(depth, threads, threads_max, budget, autotune.enabled is not False)


def _look(node: Node, per_element: int, depths: list[int], calls: list[int]) -> None:
    """Collect the depths of reading ahead, in elements of the outermost step, and the parallel calls."""
    if isinstance(node, Prefetched):
        depths.append(node.buffer_size if node.buffer_size < 1 else -(-node.buffer_size // per_element))
    elif isinstance(node, Mapped):
        calls.append(node.parallel_calls or 0)
    if isinstance(node, Batched):
        per_element *= node.batch_size
    for each in node.inputs:
        _look(each, per_element, depths, calls)
