"""What the weights of a run that counts examples say: how often each example was applied. Arithmetic
alone.
"""

import numpy as np

from dtrain import checkpoints

NEAR = 0.02
"""How far from a whole number a sum of whole numbers and their fractions may be."""


def read(run_dir):
    """Return the final weights, a row an example, a column an output, all variables side by side."""
    with checkpoints.open_checkpoint(run_dir / "checkpoints") as saved:
        return np.concatenate([np.asarray(saved.read(name), np.float64) for name in saved.variables], axis=1)


def wrong(weights, story):
    """Return what is wrong with the weights of a story, a line each."""
    assert len(weights) == story.rows
    whole = abs(weights - weights.round()) < NEAR
    if story.averages:
        averaged = ~whole.all(axis=0)
        return (
            []
            if averaged.all()
            else [f"of {len(averaged)} columns {averaged.sum()} hold averages, the others weights"]
        )
    counts = weights.round()
    faults = (
        []
        if whole.all()
        else [
            f"no whole number: example {row}: {weights[row].min():g} to {weights[row].max():g}"
            for row in _rows(~whole)
        ]
    )
    faults += [
        f"example {row} counts {_range(counts[row])} times"
        for row in _rows(_unexpected(counts, story.passes))
    ]
    differing = _rows(counts != counts[:, :1])
    faults += [f"the variables differ over the examples {differing}"] if differing else []
    total = counts[:, 0].sum()
    return faults + (
        [f"all examples together count {total:g} times, expected {story.total}"]
        if total != story.total
        else []
    )


def _unexpected(counts, passes):
    return (counts < 0) | (counts > 1) if passes is None else counts != passes


def _rows(where):
    return np.flatnonzero(where.any(axis=1)).tolist()


def _range(counts):
    return (
        f"{counts.min():g}"
        if counts.min() == counts.max()
        else f"{counts.min():g} on one server and {counts.max():g} on another"
    )
