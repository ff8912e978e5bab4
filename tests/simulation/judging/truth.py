"""What values must be, to the bit: computed by the obvious lines from the examples that they contain."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from simulation.data import Cut
from simulation.model import Model, State
from simulation.setup import Setup

from dtrain.learning import optimizers
from dtrain.learning.optimizers import Optimizer
from dtrain.parameters.table import VALUES

Array = np.ndarray[Any, Any]


class Gradient:
    """A server's dense blocks of a gradient, and all rows of it, by number."""

    def __init__(self, dense: Sequence[Array], rows: Mapping[int, Array]) -> None:
        self.dense = list(dense)
        self.rows = dict(rows)

    @classmethod
    def of_round(
        cls,
        model: Model,
        server: int,
        setup: Setup,
        cut: Cut,
        part: int,
        held: State,
        rule: Optimizer,
        steps: int,
    ) -> "Gradient":
        """What a part of a round contributes: a replica begins with the server's values, and makes a step of
        its own on each batch, of which the first is number `steps` of this call of `fit`.
        """
        parts = cut.steps(part)
        unit = setup.unit(cut.data.size(part // cut.parts), sum(len(rows) for _, rows in parts))
        batches = len(cut.data.batches_in(part // cut.parts))
        inner = optimizers.from_config({**rule.inner, "config": {**rule.inner["config"], "use_ema": False}})
        groups = model.plan.layout(server).groups
        own = [value.copy() for value in held.values]
        for number, (each, rows) in enumerate(parts):
            if not len(rows):
                continue
            step = replace(
                inner,
                learning_rate=inner.learning_rate_at(
                    rule.inner["updates"] + steps + number * batches // len(parts)
                ),
            )
            blocks = model.gradient_of(server, each, np.array(rows, np.int64), unit)
            for group, value, block in zip(groups, own, blocks, strict=True):
                if group.trainable:
                    step.update(value, block, {}, 0)
                else:
                    value[...] = block
        pushed = [
            value if rule.values or not group.trainable else before - value
            for group, value, before in zip(groups, own, held.values, strict=True)
        ]
        return cls(pushed, {})

    @classmethod
    def of(cls, model: Model, server: int, cut: Cut, part: int, by_examples: bool) -> "Gradient":
        """What a part contributes to a server."""
        ids = model.chosen_rows(part).get("words", np.zeros(0, np.int64))
        rows = model.row_gradient(ids, part).rows
        return cls(model.gradient(server, cut, part, by_examples), dict(zip(ids.tolist(), rows, strict=True)))


def mean(
    gradients: Sequence[Gradient], weights: Sequence[int], empty: int, state: Mapping[int, Array]
) -> Gradient:
    """Return the weighted mean, summed up in the given order; a row that one does not list counts as zero
    there.

    Args:
        gradients: of parts, in their order.
        weights: as many; if all are equal they are none.
        empty: how many parts without examples follow, of weight one: they count as zero, and for state as it
            is.
        state: of dense blocks that are no gradients, what is held at present.
    """
    if len(gradients) == 1 and not empty:
        return gradients[0]
    factors = weights if len(set(weights)) > 1 else [1] * len(weights)
    total = sum(factors) + empty
    dense = []
    for index, blocks in enumerate(zip(*(gradient.dense for gradient in gradients), strict=True)):
        absent = [state[index]] * empty if index in state else []
        terms = [
            block * factor
            for block, factor in zip([*blocks, *absent], [*factors, *[1] * len(absent)], strict=True)
        ]
        found = sum(terms[1:], start=terms[0]) / total
        same = [block == blocks[0] for block in [*blocks, *absent]]
        dense.append(np.where(np.all(same, axis=0), blocks[0], found) if index in state else found)
    rows: dict[int, Array] = {}
    for gradient, factor in zip(gradients, factors, strict=True):
        for row, values in gradient.rows.items():
            weighted = values * np.float32(factor)
            rows[row] = rows[row] + weighted if row in rows else weighted
    return Gradient(dense, {row: values / np.float32(total) for row, values in rows.items()})


def step_mean(
    model: Model,
    server: int,
    setup: Setup,
    cut: Cut,
    parts: Sequence[int],
    gradients: Sequence[Gradient],
    state: State,
    rule: Optimizer,
) -> Gradient:
    """What these parts together contribute to a server in one synchronous step: the mean over parts, or over
    examples.

    Where batches are made whole, their parts without examples count as parts. `gradients` are of the parts, or
    the values to which rounds have brought them, where the `rule` of the servers takes these.
    """
    by_examples, values = setup.by_examples, setup.rounds is not None and rule.values
    empty = 0 if by_examples or cut.even else cut.empty(parts[0])
    groups = model.plan.layout(server).groups
    held = {
        index: value
        for index, (group, value) in enumerate(zip(groups, state.values, strict=True))
        if values or not group.trainable
    }
    return mean(gradients, [len(cut.rows(part)) if by_examples else 1 for part in parts], empty, held)


def updated(
    model: Model,
    server: int,
    before: State,
    gradient: Gradient,
    rule: Optimizer,
    step: int,
    *,
    scale: float = 1.0,
    last: bool,
) -> State:
    """A server's state after one update; `step` counts the optimizer's own, and after the last one averages
    are taken.
    """
    state, layout = before.copy(), model.plan.layout(server)
    position = 0
    for group, value, block in zip(layout.groups, state.values, gradient.dense, strict=True):
        if group.trainable and not getattr(rule, "values", False):
            slots = {name: arrays[position] for name, arrays in state.slots.items()}
            rule.update(value, block, slots, step, rate_scale=scale)
            if last:
                rule.finalize(value, slots)
            position += 1
        else:
            value[...] = block
    for shard, arrays in zip(layout.tables, state.tables, strict=True):
        if shard.trainable:
            mine = {
                row - shard.row_start: g
                for row, g in gradient.rows.items()
                if shard.row_start <= row < shard.row_stop
            }
            for row in mine if rule.touches_listed_rows_only else range(len(arrays[VALUES])):
                slots = {name: array[row] for name, array in arrays.items() if name != VALUES}
                rule.update(
                    arrays[VALUES][row], mine.get(row, np.zeros(2, np.float32)), slots, step, rate_scale=scale
                )
            if last:
                rule.finalize(
                    arrays[VALUES], {name: array for name, array in arrays.items() if name != VALUES}
                )
    return state
