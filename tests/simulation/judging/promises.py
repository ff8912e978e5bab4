"""What is promised of a run, and which of these promises are known not to be kept yet."""

from enum import Enum


class Promise(Enum):
    """One sentence each; the judge names it when it is broken."""

    ONCE = "no example counts twice in what a server holds"
    ALL = "no example is passed over"
    SAME = "all servers contain the same examples"
    STEP = "a step consumes one batch, and training ends with the last step"
    KEPT = "what a term contains, it contains from then on"
    IMAGE = "a version of a server is one state, never a mixture"
    VERDICT = "what a replica is told of its gradient is true"
    BITS = "values are, to the bit, what their examples make of them"
    HISTORY = "the numbers of epochs are those of what counted, in every task"
    WHOLE = "values that a callback assigns are on all servers in a checkpoint, or on none"
    ASSIGNED = "values that a callback assigned are not lost"
    ORDER = "an order in force stays in force in a new term"
    AVERAGES = "with use_ema the trained values are the averages, on all servers"
    EVALUATED = "the evaluator evaluates the final checkpoint of every fit, once, and then ends by itself"
    RULE = "staleness and warm-up are within the limits that the spec sets"


class Broken(AssertionError):
    """A promise was broken."""


OPEN: frozenset[tuple[str, Promise]] = frozenset()
"""Promises that are not kept yet, of runs that train `sync` or `async`: the judge is silent about them. Empty it
as they are mended.
"""
