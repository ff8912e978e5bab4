"""Any sampler and pruner of Optuna, by ask and tell. Alone here it is imported.

`study.log` beside the journal is Optuna's own file, for its tools; it is written anew from the journal when
a study goes on, so that no trial stays RUNNING in it.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtrain.config import Problem
from dtrain.errors import DtrainError
from dtrain.studies.samplers import Search
from dtrain.studies.study_spec import Parameter, Scalar, Scale, StudySpec, ValueRange, name_of, options_of
from dtrain.studies.trials import ENDED_TRIAL, Trial, Trials, TrialState

try:
    import optuna
    from optuna import distributions
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState as TheirState
except ImportError as error:
    raise DtrainError(f"this sampler or pruner is Optuna's: `pip install 'optuna>=4.0'` ({error})") from None

_STATES = dict(zip(ENDED_TRIAL, (TheirState.COMPLETE, TheirState.PRUNED, TheirState.FAIL), strict=True))


class OptunaSearch(Search):
    """The search of a study with a sampler or a pruner of Optuna."""

    def __init__(self, spec: StudySpec, trials: Trials, log: Path) -> None:
        """Make the sampler and Optuna's file, and tell them of every trial of the journal."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.widen(spec)
        log.unlink(missing_ok=True)
        self._study = optuna.create_study(
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(log))),
            study_name=spec.name,
            direction="maximize" if spec.maximizes else "minimize",
            sampler=_sampler(spec, len(trials.all)),
            pruner=_pruner(spec),
        )
        self._study.add_trials([self._frozen(trial) for trial in trials.all])
        found = self._study.get_trials(deepcopy=False)
        running = [trial.number for trial in trials.all if trial.state not in ENDED_TRIAL]
        self._asked = {number: optuna.trial.Trial(self._study, found[number]._trial_id) for number in running}

    def widen(self, spec: StudySpec) -> None:
        """Choose values for the parameters of this spec from now on, which has more of them."""
        self._distributions = {name: _distribution(each) for name, each in spec.parameters.items()}

    def _frozen(self, trial: Trial) -> Any:
        return optuna.trial.create_trial(
            state=_STATES.get(trial.state, TheirState.RUNNING),
            value=trial.value if trial.state is TrialState.COMPLETE else None,
            params=trial.values,
            distributions={name: self._distributions[name] for name in trial.values},
            intermediate_values={step: _number(value) for step, value in trial.reports.items()},
        )

    def ask(self, trials: Trials) -> dict[str, Scalar] | None:
        """Return the values of the next trial; None: a grid is used up."""
        sampler = self._study.sampler
        if isinstance(sampler, optuna.samplers.GridSampler) and sampler.is_exhausted(self._study):
            return None
        trial = self._study.ask(self._distributions)
        self._asked[trial.number] = trial
        return {name: trial.params[name] for name in self._distributions}

    def prunes(self, trials: Trials, trial: Trial) -> bool:
        """Return whether a trial is to end, by its newest report."""
        if trial.last is None or (asked := self._asked.get(trial.number)) is None:
            return False
        asked.report(_number(trial.last[1]), trial.last[0])
        return bool(asked.should_prune())

    def tell(self, trials: Trials, trial: Trial) -> None:
        """Tell Optuna that a trial has ended, unless it ended before and was only trained on."""
        if (asked := self._asked.pop(trial.number, None)) is not None:
            value = trial.value if trial.state is TrialState.COMPLETE else None
            self._study.tell(asked, value, state=_STATES[trial.state])


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _distribution(parameter: Parameter) -> distributions.BaseDistribution:
    if not isinstance(parameter, ValueRange):
        return distributions.CategoricalDistribution(parameter)
    log = parameter.scale is Scale.LOG
    if parameter.whole:
        low, high, step = int(parameter.min), int(parameter.max), int(parameter.step or 1)
        return distributions.IntDistribution(low, high, log, step)
    return distributions.FloatDistribution(parameter.min, parameter.max, log, parameter.step)


def _sampler(spec: StudySpec, asked: int) -> Any:
    """Make the sampler; of a study that goes on, with another seed: it would draw the same again."""
    kind = _kind(optuna.samplers, "Sampler", name_of(spec.sampler))
    options, known = dict(options_of(spec.sampler)), inspect.signature(kind).parameters
    if asked and isinstance(options.get("seed"), int):
        options["seed"] += asked
    if "constant_liar" in known and spec.parallel != 1:
        options.setdefault("constant_liar", True)
    if "search_space" in known:
        options.setdefault("search_space", {name: values_of(each) for name, each in spec.parameters.items()})
    return kind(**options)


def values_of(parameter: Parameter) -> Any:
    return parameter.grid() if isinstance(parameter, ValueRange) else parameter


def _pruner(spec: StudySpec) -> Any:
    return _kind(optuna.pruners, "Pruner", name_of(spec.pruner) or "nop")(**options_of(spec.pruner))


def _kind(module: Any, ending: str, name: str) -> Any:
    """Return the class of a name such as ``cma_es``, ``tpe``, ``hyperband``."""
    names = {each.removesuffix(ending).lower(): each for each in vars(module) if each.endswith(ending)}
    if (found := names.get(name.replace("_", "").lower())) is None:
        raise ValueError(f"unknown {ending.lower()}; expected one of {', '.join(sorted(names))}")
    return getattr(module, found)


def search_problems(spec: StudySpec) -> Iterator[Problem]:
    """Yield what is wrong with the sampler and the pruner, or their options."""
    for key in ("sampler", "pruner"):
        try:
            _pruner(spec) if key == "pruner" else _sampler(spec, 0)
        except (TypeError, ValueError, ImportError) as error:
            yield (key,), f"{name_of(getattr(spec, key))}: {error}"
