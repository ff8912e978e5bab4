"""The search of a study: the samplers and pruners of here, and Optuna's where a study names one of those."""

from collections.abc import Iterator
from pathlib import Path

from dtrain.config import Problem
from dtrain.config.plain_data import unknown_key
from dtrain.studies.samplers import PRUNERS, SAMPLERS, Search
from dtrain.studies.study_spec import StudySpec, name_of, options_of
from dtrain.studies.trials import Trials


def _is_plain(spec: StudySpec) -> bool:
    return name_of(spec.sampler) in SAMPLERS and name_of(spec.pruner) in PRUNERS


def search_problems(spec: StudySpec) -> Iterator[Problem]:
    """Yield what is no sampler or pruner, and each option that it does not have."""
    if not _is_plain(spec):
        from dtrain.studies import search_optuna

        yield from search_optuna.search_problems(spec)
        return
    for key, all_known in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        named = getattr(spec, key)
        known = all_known[name_of(named)]
        for option, value in options_of(named).items():
            if option not in known:
                yield (key, name_of(named), option), unknown_key(option, known)
            elif type(value) is not int or value < known[option] // 2:
                yield (key, name_of(named), option), f"expected a whole number, found {value!r}"


def make_search(spec: StudySpec, trials: Trials, log: Path) -> Search:
    """Return the search of a study: Optuna's where it names one of Optuna's."""
    if _is_plain(spec):
        return Search(spec)
    from dtrain.studies.search_optuna import OptunaSearch

    return OptunaSearch(spec, trials, log)
