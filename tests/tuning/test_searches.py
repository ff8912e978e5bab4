"""Searches within one program: what they ask, what survives a kill, what is best, what is wrong."""

import json
import random
import signal

import numpy as np
import pytest
from launching import wait_until

import dtrain as dt
from dtrain.errors import RunInUseError, SpecError
from dtrain.studies.study_files import StudyFiles

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")
PROGRAM = """
import time
import numpy as np
import dtrain as dt

class Slow(dt.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.02)

def build(hp):
    model = dt.Sequential([dt.layers.Dense(hp.Int("units", 2, 16), activation="relu"), dt.layers.Dense(2)])
    model.compile(dt.optimizers.SGD(hp.Float("rate", 1e-3, 1, sampling="log")), "sparse_categorical_crossentropy",
                  metrics=["accuracy"])
    return model

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int64")
search = dt.tuning.RandomSearch(build, "val_accuracy", max_trials=6, directory="kept", project_name="p", seed=3)
search.search(x, y, epochs=2, validation_data=(x, y), verbose=0, callbacks=[Slow()])
search.results_summary(1)
"""


def build(hp):
    hidden = [dt.layers.Dense(hp.Int(f"units_{n}", 2, 8)) for n in range(hp.Int("layers", 1, 2))]
    model = dt.Sequential([*hidden, dt.layers.Dense(2)])  # its shapes are known by its data alone
    rate = hp.Float("rate", 1e-3, 1, sampling="log") * (2 if hp.Boolean("twice") else 1)
    optimizer = {"sgd": dt.optimizers.SGD, "adam": dt.optimizers.Adam}[
        hp.Choice("optimizer", ["sgd", "adam"])
    ]
    loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(rate), loss, metrics=["accuracy"])
    return model


def searched(folder, build=build, kind=dt.tuning.RandomSearch, **options):
    search = kind(build, **{"objective": "val_accuracy", "max_trials": 5, "directory": folder} | options)
    search.search(X, Y, epochs=2, batch_size=16, validation_data=(X, Y), verbose=0)
    return search


def events(folder, name="untitled_project"):
    path = StudyFiles(folder / name).journal
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [json.loads(line) for line in whole.splitlines()]


def asked(folder, name="untitled_project"):
    return [event["values"] for event in events(folder, name) if event["event"] == "asked"]


def test_the_best_model_has_the_score_of_its_trial_and_a_second_search_has_nothing_to_do(tmp_path, capsys):
    search = searched(tmp_path)
    found = asked(tmp_path)
    assert found[0] == {"layers": 1, "units_0": 2, "rate": 1e-3, "twice": False, "optimizer": "sgd"}
    assert len({json.dumps(values) for values in found}) == 5
    assert all(("units_1" in values) for values in found if values["layers"] == 2)
    best = search.get_best_hyperparameters(2)
    assert best[0].values in found
    assert best[0].get("rate") == best[0].values["rate"]
    ends = {event["trial"]: event["value"] for event in events(tmp_path) if event["event"] == "ended"}
    (model,) = search.get_best_models()
    assert model.evaluate(X, Y, verbose=0)[1] == max(ends.values())
    before = events(tmp_path)
    again = searched(tmp_path)
    assert events(tmp_path) == before
    capsys.readouterr()
    again.results_summary(1)
    assert f"{max(ends.values()):.6g}" in capsys.readouterr().out
    searched(tmp_path, max_trials=7)
    assert asked(tmp_path)[:5] == found
    assert len(asked(tmp_path)) == 7


@pytest.mark.parametrize("seed", range(2))
def test_a_program_that_is_killed_goes_on_with_its_study(launcher, seed):
    chance = random.Random(seed)
    (launcher.folder / "program.py").write_text(PROGRAM)
    folder = launcher.folder / "kept"
    for _ in range(2):
        program, line = launcher.run("program.py"), len(events(folder, "p")) + chance.randint(1, 6)
        wait_until(
            lambda line=line, program=program: (
                len(events(folder, "p")) >= line or program.process.poll() is not None
            ),
            f"line {line}",
        )
        print(f"seed {seed}: kill at line {line}")
        program.send(signal.SIGKILL)
        program.end()
    program = launcher.run("program.py")
    assert program.end() == 0, program.err
    ends = [event["trial"] for event in events(folder, "p") if event["event"] == "ended"]
    assert sorted(ends) == list(range(6))
    killed = asked(folder, "p")
    (launcher.folder / "kept").rename(launcher.folder / "of_the_killed")
    assert launcher.run("program.py").end() == 0
    assert {json.dumps(values) for values in killed} == {json.dumps(values) for values in asked(folder, "p")}


def test_failed_trials_are_told_and_three_in_a_row_end_the_search(tmp_path):
    calls = []

    def sometimes(hp):
        calls.append(hp.Float("other", 0.1, 1))
        if len(calls) in (2, 4, 5, 6):
            raise ValueError("no such model")
        return build(hp)

    with pytest.raises(ValueError, match="no such model"):
        searched(tmp_path, sometimes, max_trials=20)
    ends = [(event["state"], event.get("why")) for event in events(tmp_path) if event["event"] == "ended"]
    failed = ("failed", "ValueError: no such model")
    assert ends == [("complete", None), failed, ("complete", None), failed, failed, failed]


def test_a_study_of_something_else_is_refused_and_overwritten_if_asked(tmp_path):
    searched(tmp_path, max_trials=1)
    for other in ({"objective": "val_loss"}, {"seed": 4}):
        with pytest.raises(SpecError, match="expected a study with this objective and sampler"):
            searched(tmp_path, **other)
    with pytest.raises(SpecError, match="hp: rate: expected"):
        searched(tmp_path, lambda hp: hp.Float("rate", 0, 1), max_consecutive_failed_trials=1, max_trials=2)
    searched(tmp_path, objective=dt.tuning.Objective("val_loss", "min"), max_trials=2, overwrite=True)
    assert len(asked(tmp_path)) == 2


def test_overwriting_removes_no_folder_that_is_no_study(tmp_path):
    mine = tmp_path / "untitled_project" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("not of a study")
    searched(tmp_path, max_trials=1, overwrite=True)
    assert mine.read_text() == "not of a study"


def test_two_programs_do_not_search_in_one_study(tmp_path):
    first = dt.tuning.RandomSearch(build, "val_loss", directory=tmp_path)
    with first._files.locked(), pytest.raises(RunInUseError):
        searched(tmp_path, objective="val_loss")


def test_what_is_wrong_is_said():
    hp = dt.tuning.HyperParameters()
    for wrong, said in (
        (lambda: hp.Int("a", 5, 1), "upside down"),
        (lambda: hp.Float("b", 0, 1, sampling="log"), "a log scale begins above 0"),
        (lambda: hp.Float("c", 1, 2, step=1, sampling="log"), "linear scale"),
        (lambda: hp.Choice("d", []), "one value or more"),
        (lambda: hp.get("e"), "there is no 'e'"),
        (lambda: dt.tuning.RandomSearch(build, dt.tuning.Objective("loss", "down")), "expected min or max"),
        (lambda: dt.tuning.RandomSearch(build, project_name="a/b"), "expected letters"),
    ):
        with pytest.raises(SpecError, match=said):
            wrong()
    assert hp.Fixed("f", 3) == 3
    assert hp.Boolean("g", default=True) is True


def test_bayesian_optimization_asks_what_a_loop_of_optuna_asks(tmp_path):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def simple(hp):
        hp.Int("units", 2, 64)
        hp.Float("rate", 1e-3, 1, sampling="log")
        model = dt.Sequential([dt.layers.Dense(2)])
        loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(dt.optimizers.SGD(hp.get("rate")), loss, metrics=["accuracy"])
        return model

    searched(tmp_path, simple, dt.tuning.BayesianOptimization, max_trials=14, seed=7)
    ends = {event["trial"]: event["value"] for event in events(tmp_path) if event["event"] == "ended"}
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=7))
    space = {
        "units": optuna.distributions.IntDistribution(2, 64),
        "rate": optuna.distributions.FloatDistribution(1e-3, 1, log=True),
    }
    theirs = []
    for number in range(14):
        trial = study.ask(space if number else {})
        theirs.append(trial.params)
        study.tell(trial, ends[number])
    assert asked(tmp_path)[1:] == theirs[1:]
