"""The step that marks where a pipeline is read ahead, and what a pipeline says about it."""

import os
from collections.abc import Iterator

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

    An addressable pipeline is read ahead by who asks for its elements by number (`ReadAhead`), a stream here.
    `autotune` are the options of the whole pipeline; None: those of the source.
    """

    def __init__(self, source: Node, buffer_size: int, autotune: AutotuneOptions | None = None) -> None:
        super().__init__(source)
        if buffer_size < AUTOTUNE:
            raise InputError(f"prefetch: expected a buffer_size >= 0 or AUTOTUNE (-1), found {buffer_size}.")
        self.buffer_size = buffer_size
        self._autotune = autotune

    def iterate(self, iteration: Iteration) -> Iterator[Element]:
        return self._ahead(self._source.iterate(iteration))

    def behind(self, number: int, iteration: Iteration) -> tuple[int, Iterator[Element]]:
        found, elements = self._source.behind(number, iteration)
        return found, self._ahead(elements)

    def _ahead(self, source: Iterator[Element]) -> Iterator[Element]:
        if self.buffer_size == 0:
            return source
        tuning = tuning_of(self, self._autotune)
        return source if tuning is None else read_ahead(source, size_bytes, tuning)


def check_parallel_calls(number: int | None, step: str = "map") -> None:
    if number is not None and (number == 0 or number < AUTOTUNE):
        raise InputError(f"{step}: expected num_parallel_calls >= 1 or AUTOTUNE (-1), found {number}.")


def with_autotune(node: Node, autotune: AutotuneOptions) -> Node:
    """Return the pipeline, of which every step `prefetch` knows these options of the whole."""
    inputs = [with_autotune(each, autotune) for each in node.inputs]
    if isinstance(node, Prefetched):
        return Prefetched(inputs[0], node.buffer_size, autotune)
    return on_inputs(node, inputs)


def tuning_of(node: Node, autotune: AutotuneOptions | None = None) -> Tuning | None:
    """Return how a pipeline is to be read ahead; None where it says neither `prefetch` nor parallel calls.

    A function that is not said to be called in parallel is called by one thread at a time.
    """
    depths: list[int] = []
    calls: list[int] = []
    steps = [(node, 1)]
    while steps:
        step, per_element = steps.pop()
        if isinstance(step, Prefetched):
            depths.append(step.buffer_size if step.buffer_size < 1 else -(-step.buffer_size // per_element))
        elif isinstance(step, Mapped):
            calls.append(step.parallel_calls or 0)
        elif isinstance(step, Batched):
            per_element *= step.batch_size
        steps += [(each, per_element) for each in step.inputs]
    parallel = [each for each in calls if each]
    if not depths and not parallel:
        return None
    autotune = options_of(node).autotune if autotune is None else autotune
    tuned = autotune.enabled is not False
    threads = threads_max = 1
    if 0 not in calls and parallel:
        threads = threads_max = max(parallel)
        if AUTOTUNE in parallel:
            threads, threads_max = 1, autotune.cpu_budget or len(os.sched_getaffinity(0))
    deeper = AUTOTUNE in (depths or parallel)
    depth = max(BEGINNING, threads) if deeper else max(depths, default=2 * threads)
    if depth == 0:
        return None
    budget_bytes = autotune.ram_budget or default_budget_bytes()
    return Tuning(depth, threads, deeper and tuned, threads_max if tuned else threads, budget_bytes)
