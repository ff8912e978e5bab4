"""The order in which Keras lists the parts of a model, and so their weights.

Keras 2.15 (`keras/src/engine/functional.py`, `_map_graph_network`) sorts layers by depth, the deepest first.

- The depth of a use is the longest way from it to an output. A layer that is used several times is as deep as
  its deepest use, and so are the uses that are found after that one.
- Layers of the same depth come in the order in which a walk back from the outputs first meets them: a use
  before what it reads, and its inputs in their order.
- Inputs that no output needs have depth 0, and are the first of that depth.
- A model within another is one layer: its own layers stay together, in its own order.
"""

from collections.abc import Sequence

from dtrain.learning.graphs.wiring import Part, Slot, Use


def by_depth(uses: Sequence[Use], inputs: Sequence[int], outputs: Sequence[Slot]) -> list[Part]:
    """Return every part of `uses` once; `inputs` are the numbers of the uses at which data enter."""
    left, met = _walk(uses, outputs)
    depths = dict.fromkeys(left, 0)
    deepest: dict[Part, int] = {}
    for number in reversed(left):
        use = uses[number]
        depth = deepest[use.part] = max(depths[number], deepest.get(use.part, 0))
        for slot in use.inputs:
            depths[slot.step] = max(depths[slot.step], depth + 1)
    for number in inputs:
        if uses[number].part not in deepest:
            deepest[uses[number].part] = 0
            met[uses[number].part] = -1
    return sorted(deepest, key=lambda part: (-deepest[part], met[part]))


def _walk(uses: Sequence[Use], outputs: Sequence[Slot]) -> tuple[list[int], dict[Part, int]]:
    """Return the uses in the order in which a walk back from the outputs leaves them, and first visits."""
    left: list[int] = []
    met: dict[Part, int] = {}
    seen: set[int] = set()
    ahead = [(slot.step, False) for slot in reversed(outputs)]
    while ahead:
        number, done = ahead.pop()
        if done:
            left.append(number)
        elif number not in seen:
            seen.add(number)
            met.setdefault(uses[number].part, len(met))
            ahead.append((number, True))
            ahead += [(slot.step, False) for slot in reversed(uses[number].inputs)]
    return left, met
