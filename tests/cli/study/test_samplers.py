"""Samplers, pruners and packing; Optuna's own are the reference where it is installed."""

import itertools
import math
import random

import pytest

from dtrain.studies.samplers import Search, halving_prunes
from dtrain.studies.study_spec import Better, Kind, Scale, StudySpec, TrialResources, ValueRange
from dtrain.studies.trials import MetricReported, PruneOrdered, TrialAsked, TrialEnded, Trials, TrialState
from dtrain_cli.study.packing import Room, blind_text, how_many, needs_of, packing_text

PARAMETERS = {
    "rate": ValueRange(1e-3, 10, scale=Scale.LOG),
    "units": ValueRange(1, 300, type=Kind.INT),
    "width": ValueRange(1, 64, type=Kind.INT, scale=Scale.LOG),
    "drop": ValueRange(0, 0.5, step=0.1),
    "optimizer": ("sgd", "adam"),
}


def spec(direction=Better.MAXIMIZE, **changes):
    return StudySpec("s", {"accuracy": direction}, changes.pop("parameters", PARAMETERS), **changes)


def asked(study, search, count):
    trials = Trials(study)
    for number in range(count):
        if (values := search.ask(trials)) is None:
            break
        trials.apply(TrialAsked(trial=number, values=values))
    return trials


def test_random_values_are_in_their_ranges_and_follow_from_seed_and_number():
    study = spec(sampler={"random": {"seed": 5}})
    trials = asked(study, Search(study), 300)
    drawn = [trial.values for trial in trials.all]
    assert all(1e-3 <= each["rate"] <= 10 for each in drawn)
    assert {type(each["units"]) for each in drawn} == {int}
    assert all(1 <= each["units"] <= 300 and 1 <= each["width"] <= 64 for each in drawn)
    assert {round(each["drop"], 9) for each in drawn} == {0, 0.1, 0.2, 0.3, 0.4, 0.5}
    assert {each["optimizer"] for each in drawn} == {"sgd", "adam"}
    below = sum(each["rate"] < 0.1 for each in drawn) / 300
    assert 0.4 < below < 0.6, "half of the log scale lies below 0.1"
    # A tuner that comes later asks the same for the next number.
    cut = Trials(study, [TrialAsked(trial=n, values=drawn[n]) for n in range(100)])
    assert Search(study).ask(cut) == drawn[100]


def test_a_grid_is_every_combination_once_and_then_ends():
    parameters = {"a": ("x", "y"), "b": ValueRange(1, 3, type=Kind.INT), "c": ValueRange(0, 1, step=0.5)}
    study = spec(parameters=parameters, sampler="grid")
    found = [tuple(trial.values.values()) for trial in asked(study, Search(study), 100).all]
    assert found == list(itertools.product(("x", "y"), (1, 2, 3), (0, 0.5, 1)))


@pytest.mark.parametrize("direction", list(Better))
def test_successive_halving_decides_as_that_of_optuna_does(direction):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.SuccessiveHalvingPruner(1, 3, 0)
    study = optuna.create_study(direction=str(direction), pruner=pruner)
    trials, chance, decisions = Trials(spec(direction)), random.Random(4), []
    for number in range(40):
        theirs = study.ask()
        trials.apply(TrialAsked(trial=number, values={}))
        ours = trials.all[number]
        quality, pruned = chance.random(), False
        for step in range(1, 15):
            value = quality + 0.05 * step + 0.2 * chance.random()
            theirs.report(value, step)
            trials.apply(MetricReported(trial=number, step=step, value=value, source=0))
            expected, found = theirs.should_prune(), halving_prunes(trials, ours, 1, 3, 0)
            assert found == expected, (number, step)
            decisions.append(found)
            if pruned := found:
                trials.apply(PruneOrdered(trial=number, step=step))
                break
        state = TrialState.PRUNED if pruned else TrialState.COMPLETE
        trials.apply(TrialEnded(trial=number, state=state, value=value))
        given = {} if pruned else {"values": value}
        told = optuna.trial.TrialState.PRUNED if pruned else optuna.trial.TrialState.COMPLETE
        study.tell(theirs, state=told, **given)
    assert 5 < sum(decisions) < 40


def test_optuna_asks_what_a_plain_loop_of_it_asks_with_the_same_seed(tmp_path):
    optuna = pytest.importorskip("optuna")
    from dtrain.studies.search_optuna import OptunaSearch

    def quality(values):
        return -abs(math.log(values["rate"])) + values["units"] / 300 + (values["optimizer"] == "adam")

    study = spec(sampler={"tpe": {"seed": 11}})
    trials = Trials(study)
    search = OptunaSearch(study, trials, tmp_path / "study.log")
    loop = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=11))
    for number in range(20):
        trials.apply(TrialAsked(trial=number, values=search.ask(trials)))
        ours = trials.all[number]
        trial = loop.ask()
        theirs = {
            "rate": trial.suggest_float("rate", 1e-3, 10, log=True),
            "units": trial.suggest_int("units", 1, 300),
            "width": trial.suggest_int("width", 1, 64, log=True),
            "drop": trial.suggest_float("drop", 0, 0.5, step=0.1),
            "optimizer": trial.suggest_categorical("optimizer", ("sgd", "adam")),
        }
        assert ours.values == theirs, number
        value = quality(theirs)
        loop.tell(trial, value)
        trials.apply(TrialEnded(trial=number, state=TrialState.COMPLETE, value=value))
        search.tell(trials, ours)


def test_optunas_file_is_made_from_the_journal_and_has_no_trial_that_runs_for_ever(tmp_path):
    optuna = pytest.importorskip("optuna")
    from dtrain.studies.search_optuna import OptunaSearch

    study = spec(sampler="tpe", parallel_trial_count=2)
    trials = Trials(study)
    search = OptunaSearch(study, trials, tmp_path / "study.log")
    for number in range(5):
        trials.apply(TrialAsked(trial=number, values=search.ask(trials)))
    trials.apply(MetricReported(trial=4, step=3, value=None, source=0))
    trials.apply(TrialEnded(trial=4, state=TrialState.PRUNED))
    fewer = {name: value for name, value in trials.all[0].values.items() if name != "drop"}
    trials.apply(TrialAsked(trial=5, values=fewer))  # of a program that did not ask for all
    trials.apply(TrialEnded(trial=5, state=TrialState.COMPLETE, value=0.125))
    trials.apply(MetricReported(trial=1, step=5, value=0.5, source=0))
    trials.apply(TrialEnded(trial=0, state=TrialState.COMPLETE, value=0.25))  # killed before it was told
    trials.apply(TrialEnded(trial=2, state=TrialState.FAILED, why="x"))
    again = OptunaSearch(study, trials, tmp_path / "study.log")
    for number in (1, 3):
        trials.apply(TrialEnded(trial=number, state=TrialState.COMPLETE, value=0.5))
        again.tell(trials, trials.all[number])
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log"))
    found = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(backend)).trials
    states = ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE", "PRUNED", "COMPLETE"]
    assert [trial.state.name for trial in found] == states
    assert [trial.value for trial in found if trial.state.name == "COMPLETE"] == [0.25, 0.5, 0.5, 0.125]
    assert math.isnan(found[4].intermediate_values[3])
    assert [trial.params for trial in found] == [trial.values for trial in trials.all]
    assert found[1].intermediate_values == {5: 0.5}


def test_as_many_trials_start_as_fit():
    needs = needs_of(spec(), 2, [None, 3_000_000_000, 2_000_000_000])
    assert how_many(needs, Room(8, 100_000_000_000)) == 4
    assert how_many(needs, Room(8, 7_000_000_000)) == 2
    assert how_many(needs, Room(1, 1)) == 1, "one has the machine to itself"
    said = needs_of(spec(resources=TrialResources(0.5, "1GB")), 4, [9_000_000_000])
    assert how_many(said, Room(2, 100_000_000_000)) == 4


def test_it_is_said_how_many_wait_and_why():
    text = packing_text(needs_of(spec(), 1, []), Room(2, 10**12), 20)
    assert text is not None
    assert text.startswith("2 fit; 18 wait: a trial takes 1 of 2 cores")
    assert packing_text(needs_of(spec(), 1, []), Room(2, 10**12), 2) is None


def test_the_blindness_of_parallel_trials_is_said():
    text = blind_text(20, 100)
    assert text is not None
    assert "20 of 100 trials start before the first result" in text
    assert "120" in text
    assert blind_text(1, 100) is None
