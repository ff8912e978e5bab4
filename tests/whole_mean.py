"""The mean of contributions over whole arrays, against which tests hold updates that are made block by block."""

import numpy as np

from dtrain.parameters.updater import mean_of_floats, mean_of_state, row_mean


def mean(gradients, trainable, parts=None, weights=None, present=()):
    """Return the sum in the given order, divided by the number of parts; with `weights` the weighted mean.

    A gradient is `[block]`, flat arrays. The first blocks are those of the groups, which are `trainable` or
    not. Whole numbers (and truth values, as 0 and 1) are added up in 64 bits, and their mean is rounded down.
    A group that is not trained and is the same in all, such as a frozen layer's, stays exactly that. The blocks after them are pairs of row numbers
    and rows: the mean has every row that any contribution lists, and one that does not list it counts as
    zero.

    Args:
        gradients: at least one.
        parts: at least as many as gradients: those without examples have no gradient, and count as zero; for
            groups that are not trained, as their `present` value. Default: as many.
        weights: numbers of examples; parts without examples then do not count.
        present: values of all groups.
    """
    count = len(gradients) if parts is None or weights is not None else parts
    if weights is not None and len(set(weights)) == 1:
        weights = None
    if count == 1:
        return gradients[0]
    dense = len(trainable)
    means = []
    for index, trained in enumerate(trainable):
        blocks = [gradient[index] for gradient in gradients]
        means.append(
            mean_of_floats(blocks, count, weights, np.empty_like(blocks[0]))
            if trained
            else mean_of_state(blocks, count, weights, present[index] if count > len(blocks) else blocks[0])
        )
    for position in range(dense, len(gradients[0]), 2):
        pairs = [(gradient[position], gradient[position + 1]) for gradient in gradients]
        union = np.unique(np.concatenate([ids for ids, _ in pairs]))
        width = max((rows.size // ids.size for ids, rows in pairs if ids.size), default=0)
        pairs = [(ids, rows.reshape(len(ids), width)) for ids, rows in pairs]
        means += [union, row_mean(pairs, count, weights, union).reshape(-1)]
    return means
