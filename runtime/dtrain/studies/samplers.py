"""Samplers and pruners without another library: random and grid; successive halving.

Each is a function of the journal: the values of trial n follow from the seed and n, so that a study that goes
on asks what it would have asked. Successive halving decides as Optuna's pruner of the same options does.
"""

import math
import random
from typing import Any

from dtrain.studies.study_spec import Parameter, Scalar, Scale, StudySpec, ValueRange, name_of, options_of
from dtrain.studies.trials import Trial, Trials

SAMPLERS: dict[str, dict[str, Any]] = {"random": {"seed": 0}, "grid": {}}
HALVING = {"min_resource": 1, "reduction_factor": 4, "min_early_stopping_rate": 0}
PRUNERS: dict[str, dict[str, Any]] = {"": {}, "successive_halving": HALVING}
"""The names with their options and defaults; no name: nothing is pruned."""


class Search:
    """The choice of values, and of trials that end early, of a study with a sampler and a pruner of here."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._halving = HALVING | options_of(spec.pruner) if name_of(spec.pruner) else None

    def ask(self, trials: Trials) -> dict[str, Scalar] | None:
        """Return the values of the next trial; None: a grid is used up."""
        number, parameters = len(trials.all), self._spec.parameters
        if name_of(self._spec.sampler) == "grid":
            return grid_point(parameters, number)
        chance = random.Random(f"{options_of(self._spec.sampler).get('seed', 0)}/{number}")
        return {name: _drawn(parameter, chance) for name, parameter in parameters.items()}

    def widen(self, spec: StudySpec) -> None:
        """Choose values for the parameters of this spec from now on, which has more of them."""
        self._spec = spec

    def prunes(self, trials: Trials, trial: Trial) -> bool:
        """Return whether a trial is to end, by its newest report."""
        return self._halving is not None and halving_prunes(trials, trial, **self._halving)

    def tell(self, trials: Trials, trial: Trial) -> None:
        """Take the end of a trial, of which the journal knows all that is needed here."""


def grid_point(parameters: dict[str, Parameter], number: int) -> dict[str, Scalar] | None:
    """Return point `number` of the grid, in which the last parameter changes first; None beyond its end."""
    point: dict[str, Scalar] = {}
    for name, parameter in reversed(parameters.items()):
        values = (parameter.grid() or []) if isinstance(parameter, ValueRange) else parameter
        number, index = divmod(number, len(values))
        point[name] = values[index]
    return None if number else {name: point[name] for name in parameters}


def _drawn(parameter: Parameter, chance: random.Random) -> Scalar:
    if not isinstance(parameter, ValueRange):
        return chance.choice(parameter)
    if parameter.scale is Scale.LINEAR and (values := parameter.grid()) is not None:
        return chance.choice(values)
    half = 0.5 if parameter.whole else 0.0  # each whole number has its share of the scale
    low, high = parameter.min - half, parameter.max + half
    if parameter.scale is Scale.LOG:
        value = math.exp(chance.uniform(math.log(low), math.log(high)))
    else:
        value = chance.uniform(low, high)
    value = min(max(value, parameter.min), parameter.max)
    return round(value) if parameter.whole else value


def halving_prunes(
    trials: Trials, trial: Trial, min_resource: int, reduction_factor: int, min_early_stopping_rate: int
) -> bool:
    """Return whether a trial is not among the best at a rung that its newest report has reached.

    Rungs are the steps min_resource * reduction_factor ** (min_early_stopping_rate + 0, 1, ...); of those at
    a rung so far, one in `reduction_factor` goes on. Source: Li et al., A System for Massively Parallel
    Hyperparameter Tuning (2020), its asynchronous form.
    """
    if trial.last is None:
        return False
    step, value = trial.last
    before = max((each for each in trial.reports if each < step), default=-1)
    rung = min_resource * reduction_factor**min_early_stopping_rate
    while rung <= step:
        if rung > before:
            if value is None:
                return True
            others = (_at_rung(each, rung) for each in trials.all if each is not trial)
            values = sorted([value, *(other for other in others if other is not None)])
            if trials.spec.maximizes:
                values.reverse()
            if trials.spec.better(values[max(0, len(values) // reduction_factor - 1)], value):
                return True
        rung *= reduction_factor
    return False


def _at_rung(trial: Trial, rung: int) -> float | None:
    """Return a trial's value where it first reached a rung; a pruned one did not come to those behind."""
    steps = [step for step in trial.reports if step >= rung]
    return trial.reports[min(steps)] if steps else None
