"""The program of a trial of `dtrain tune`: what it says of itself, and is told.

Outside of a trial both functions do nothing, so that the same program runs alone and under `dtrain launch`.
"""

import os
from numbers import Real

from dtrain.errors import InputError
from dtrain.process.assignment import TF_CONFIG
from dtrain.process.tensorflow import read_tf_config
from dtrain.runs.trial_reports import append_report, prune_is_ordered
from dtrain.strategies.interface import mark_used

_reports = 0


def report(step: int | None = None, **metrics: float) -> None:
    """Report metrics of a trial to `dtrain tune`; the last value of the study's metric is the trial's.

    Every task may call it: the leader's reports count. `fit` reports evaluations by itself.

    Args:
        step: the global step at which they were measured; by default how often this process has reported.
        metrics: numbers by their names, such as ``accuracy=0.97``. NaN or infinity makes the trial fail if it
            is the last one.

    Raises:
        InputError: a metric is not a number, or the step is not a whole number of at least 0.
    """
    global _reports
    for name, value in metrics.items():
        if not isinstance(value, Real) and getattr(value, "shape", None) != ():
            raise InputError(f"dt.tuning.report: {name}: expected a number, found {value!r:.80}")
    if step is not None and int(step) < 0:
        raise InputError(f"dt.tuning.report: step: expected a whole number of at least 0, found {step}")
    _reports += 1
    mark_used()  # a program that trains with another library does its part by what it reports
    if _leads():
        numbers = {name: float(value) for name, value in metrics.items()}
        append_report(_reports if step is None else int(step), numbers)


def should_prune() -> bool:
    """Return whether `dtrain tune` has ordered this trial to end, because others do better.

    `fit` obeys by itself. A program with a loop of its own saves what it wants to keep, and ends with exit
    code 0. Replicas that train together must end at the same step: let one ask and tell the others.

    Returns:
        False outside of a trial.
    """
    return prune_is_ordered()


def _leads() -> bool:
    if TF_CONFIG not in os.environ:
        return True
    cluster, task = read_tf_config(os.environ[TF_CONFIG], joined=False)
    return not cluster or task == cluster.leader
