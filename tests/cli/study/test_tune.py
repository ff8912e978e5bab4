"""`dtrain tune` with real launches: where metrics come from, what fails, what is said."""

import json
import os
import signal
import sys
import textwrap

import pytest
from launching import wait_until

STUDY = """\
name: search
metric: {accuracy: maximize}
parameters: {x: [1, 3, 2]}
sampler: grid
max_trial_count: 3
trial: {cluster: {chief: 1}, training: {strategy: single}}
"""
ARGUMENTS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=int)
x = parser.parse_args().x
"""
FIT = """
import numpy as np
import dtrain as dt

inputs = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
targets = (inputs.sum(axis=1) > 0).astype("int64")
with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(2)])
    model.compile(dt.optimizers.SGD(0.01 * x), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(inputs, targets, batch_size=16, epochs=EPOCHS, verbose=0, validation_data=(inputs, targets))
"""
HYPERTUNE = """
import json, os
entries = [
    {"timestamp": 0.0, "trial": os.environ["CLOUD_ML_TRIAL_ID"], "accuracy": str(x * step / 16),
     "global_step": str(step), "checkpoint_path": ""} for step in (1, 2)
]
with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w") as file:
    file.writelines(json.dumps(entry, sort_keys=True) + "\\n" for entry in entries)
"""
BY_COMMAND = ("--", sys.executable, "program.py")


class Study:
    """A folder with a study and a program."""

    def __init__(self, launcher):
        self.launcher, self.folder = launcher, launcher.folder

    def write(self, study, program, *, arguments=ARGUMENTS):
        (self.folder / "study.yaml").write_text(study)
        (self.folder / "program.py").write_text(textwrap.dedent(arguments) + textwrap.dedent(program))

    def tune(self, *words):
        command = self.launcher.dtrain("tune", *words)
        return command.end(), command.err

    @property
    def directory(self):
        return self.folder / "runs" / "studies" / "search"

    def events(self):
        path = self.directory / "events.jsonl"
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        return [json.loads(line) for line in whole.splitlines()]

    def report(self):
        command = self.launcher.dtrain("tune", "status", "search", "--json")
        assert command.end() == 0, command.err
        return json.loads(command.out)

    def values(self):
        return [(trial["state"], trial["value"]) for trial in self.report()["trials"]]


@pytest.fixture
def study(launcher):
    return Study(launcher)


def test_the_trials_of_a_command_report_by_lines_of_json_and_the_best_is_told(study):
    study.write(STUDY, 'import json; print(json.dumps({"accuracy": x / 10, "step": 5}))')
    code, err = study.tune("study.yaml", *BY_COMMAND)
    assert code == 0, err
    assert study.values() == [("complete", 0.1), ("complete", 0.3), ("complete", 0.2)]
    assert "the best trial is 0001" in err
    best = study.launcher.dtrain("tune", "best", "search", "--json")
    assert best.end() == 0
    assert json.loads(best.out)["values"] == {"x": 3}
    shown = study.launcher.dtrain("tune", "report", "search")
    assert shown.end() == 0
    assert [line[:4] for line in shown.out.splitlines()[2:]] == ["0001", "0002", "0000"]
    written = study.launcher.dtrain("tune", "report", "search", "--out", "page.html")
    assert written.end() == 0, written.err
    assert "<svg" in (study.folder / "page.html").read_text()
    code, err = study.tune("study.yaml", *BY_COMMAND)
    assert code == 2
    assert "--resume search" in err


def test_a_program_of_hypertune_reports_as_it_is(study):
    study.write(STUDY, HYPERTUNE)
    code, err = study.tune("study.yaml", *BY_COMMAND)
    assert code == 0, err
    assert study.values() == [("complete", 0.125), ("complete", 0.375), ("complete", 0.25)]


def test_fit_reports_its_validation_without_a_line_of_code(study):
    only = STUDY.replace("[1, 3, 2]", "[1]").replace("accuracy: maximize", "val_accuracy: maximize")
    study.write(only, FIT.replace("EPOCHS", "3"))
    code, err = study.tune("study.yaml", "program.py")
    assert code == 0, err
    reported = [event for event in study.events() if event["event"] == "reported"]
    assert [event["step"] for event in reported] == [4, 8, 12]
    assert {event["source"] for event in reported} == {2}


def test_a_program_that_trains_with_another_library_needs_only_report(study):
    study.write(STUDY, "import dtrain as dt\ndt.tuning.report(accuracy=x / 10)\n")
    code, err = study.tune("study.yaml", "program.py")
    assert code == 0, err
    assert study.values() == [("complete", 0.1), ("complete", 0.3), ("complete", 0.2)]


def test_what_the_program_reports_counts_before_what_fit_does(study):
    program = FIT.replace("EPOCHS", "1") + "dt.tuning.report(step=7, accuracy=0.75, other=1.0)\n"
    study.write(STUDY.replace("[1, 3, 2]", "[1]"), program)
    code, err = study.tune("study.yaml", "program.py")
    assert code == 0, err
    assert study.values() == [("complete", 0.75)]


def test_fit_obeys_a_prune_keeps_its_checkpoint_and_the_program_ends_well(study):
    """Trial 0 reports 1.0 at once; trial 1 is worse after an epoch, and would train for ever."""
    fit = FIT.replace("EPOCHS", "10**6").replace("validation_data=(inputs, targets)", "callbacks=[Worse()]")
    program = f"""
import dtrain as dt

if x == 1:
    dt.get_strategy()
    dt.tuning.report(step=4, accuracy=1.0)
    raise SystemExit


class Worse(dt.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        dt.tuning.report(step=4 * (epoch + 1), accuracy=-1.0)

{fit}
print("behind fit")
"""
    text = STUDY.replace("[1, 3, 2]", "[1, 3]") + "pruner: successive_halving\n"
    study.write(text, program)
    code, err = study.tune("study.yaml", "program.py")
    assert code == 0, err
    assert study.values() == [("complete", 1.0), ("pruned", -1.0)]
    run = study.directory / "trials" / "search-0001"
    record = json.loads((run / "run.json").read_text())
    assert (record["state"], record["exit_code"]) == ("succeeded", 0)
    assert record["saved"]["step"] > 0
    assert "behind fit" in (run / "tasks" / "chief-0" / "attempt-0" / "output.log").read_text()


def test_a_metric_that_never_comes_is_a_failure_that_names_what_came(study):
    study.write(STUDY.replace("[1, 3, 2]", "[1]"), 'print(\'{"loss": 1, "lift": 2}\')')
    code, err = study.tune("study.yaml", *BY_COMMAND)
    assert code == 1
    assert "the metric accuracy never came; those that came: loss, lift" in err
    listed = study.launcher.dtrain("tune", "status")
    assert listed.end() == 0, listed.err
    assert listed.out == "study search: ended; 1 failed of 1\n"


def test_nan_is_a_failure(study):
    study.write(STUDY, "print('{\"accuracy\": %s, \"step\": 1}' % {1: 'NaN', 2: '-Infinity', 3: '0.5'}[x])")
    code, err = study.tune("study.yaml", *BY_COMMAND)
    assert code == 0, err
    assert study.values() == [("failed", None), ("complete", 0.5), ("failed", None)]


def test_a_flag_that_the_program_does_not_know_stops_the_study_at_the_first_trial(study):
    study.write(STUDY.replace("{x:", "{y:"), "print('{\"accuracy\": 1}')")
    code, err = study.tune("study.yaml", *BY_COMMAND)
    assert code == 1
    assert "unrecognized arguments: --y 1" in err
    assert len(study.report()["trials"]) == 1


def test_too_many_failures_stop_the_study_and_what_runs(study):
    text = STUDY.replace("max_trial_count: 3", "max_trial_count: 3\nmax_failed_trial_count: 0")
    study.write(text + "parallel_trial_count: 2\nresources: {cores: 0.5}\n", WAITING + "raise SystemExit(7)")
    code, err = study.tune("study.yaml", *BY_COMMAND)
    assert code == 1
    assert "max_failed_trial_count" in err
    assert study.report()["counts"]["failed"] == 1


WAITING = """
import time
if x == 1:
    time.sleep(3600)
"""


def test_a_second_tuner_is_refused_and_a_stop_leaves_nothing_and_loses_nothing(study):
    study.write(
        STUDY, 'import os, time\nwhile not os.path.exists("go"): time.sleep(0.05)\nprint(\'{"accuracy": 1}\')'
    )
    first = study.launcher.dtrain("tune", "study.yaml", *BY_COMMAND)
    wait_until(lambda: any(event["event"] == "started" for event in study.events()), "a trial")
    code, err = study.tune("--resume", "search")
    assert code == 2, err
    assert "has a tuner already" in err
    assert study.report()["state"] == "running"
    first.send(signal.SIGTERM)
    assert first.end() == 128 + signal.SIGTERM
    first.wait_gone()
    assert study.report()["state"] == "stopped"
    (study.folder / "go").touch()
    (study.folder / "study.yaml").write_text(STUDY.replace("[1, 3, 2]", "[1, 3]"))
    code, err = study.tune("--resume", "search", "study.yaml")
    assert code == 2
    assert "parameters: expected what study search has" in err
    code, err = study.tune("--resume", "search")
    assert code == 0, err
    assert [state for state, _ in study.values()] == ["complete"] * 3


def test_the_tools_of_optuna_read_the_file_of_a_study_that_was_killed(study):
    optuna = pytest.importorskip("optuna")
    program = """
import json, os, time
print(json.dumps({"accuracy": x / 10, "step": 1}), flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""
    text = STUDY.replace("sampler: grid", "sampler: {tpe: {seed: 1}}").replace("count: 3", "count: 2")
    study.write(text + "pruner: median\n", program)
    first = study.launcher.dtrain("tune", "study.yaml", *BY_COMMAND)
    wait_until(lambda: any(event["event"] == "reported" for event in study.events()), "a report")
    first.send(signal.SIGKILL)
    first.end()
    first.wait_gone()
    (study.folder / "go").touch()
    code, err = study.tune("--resume", "search")
    assert code == 0, err
    backend = optuna.storages.journal.JournalFileBackend(str(study.directory / "study.log"))
    found = optuna.load_study(study_name="search", storage=optuna.storages.JournalStorage(backend))
    ours = study.report()
    assert [(trial.state.name.lower(), trial.params, trial.value) for trial in found.trials] == [
        (trial["state"], trial["values"], trial["value"]) for trial in ours["trials"]
    ]
    assert found.best_trial.number == ours["ranking"][0]


def test_trials_fork_from_one_process(study):
    """It is the study's own: the one of the tests is left away. A task's parent is the fork server of its launch,
    above that is its keeper, and then the warm process; the first trial may begin before that is ready.
    """
    program = """
import json, os, time
from pathlib import Path

import dtrain as dt

above = os.getppid()
for _ in range(2):
    above = Path(f"/proc/{above}/stat").read_text().rpartition(")")[2].split()[1]
dt.get_strategy()
dt.tuning.report(accuracy=float(above), step=1)
while x == 1 and not os.path.exists("go"):
    time.sleep(0.05)
"""
    study.write(STUDY, program)
    tuner = study.launcher.dtrain("tune", "study.yaml", "program.py", environment={"DTRAIN_FORK_SERVER": ""})
    wait_until(lambda: (study.directory / "warm").exists(), "the warm process")
    (warm,) = tuner.pids("--warm-server", str(study.directory / "warm"))
    (study.folder / "go").touch()
    assert tuner.end() == 0, tuner.err
    tuner.wait_gone()
    assert [value for _, value in study.values()][1:] == [warm, warm]


def test_the_best_are_trained_on_from_their_checkpoints(study):
    arguments = ARGUMENTS.replace("x = p", 'parser.add_argument("--steps", type=int, default=8)\nx = p')
    program = FIT.replace("EPOCHS", "parser.parse_args().steps // 4")
    study.write(STUDY.replace("[1, 3, 2]", "[1, 3]"), program, arguments=arguments)
    code, err = study.tune("study.yaml", "program.py")
    assert code == 0, err
    (best,) = study.report()["ranking"][:1]
    code, err = study.tune("--resume", "search", "--steps", "16", "--top", "1")
    assert code == 0, err
    report = study.report()
    assert sorted(trial["step"] for trial in report["trials"]) == [8, 16]
    assert report["trials"][best]["step"] == 16
    log = (study.directory / "logs" / f"{best:04d}.log").read_text()
    assert "goes on from step 8" in log


def test_what_is_wrong_is_said_before_anything_is_made(study):
    study.write(STUDY.replace("max_trial_count: 3", "max_trial_count: 0").replace("grid", "grit"), "")
    code, err = study.tune("study.yaml", "program.py")
    assert code == 2
    assert len(err.splitlines()) == 2, "both mistakes"
    assert not os.path.lexists(study.directory)
    assert study.tune("status", "nothing")[0] == 3


def test_a_trial_is_a_cluster_that_ends_at_one_step_when_it_is_pruned(study):
    text = STUDY[: STUDY.index("trial:")].replace("[1, 3, 2]", "[9, 1]") + (
        "pruner: {successive_halving: {min_resource: 4, reduction_factor: 2}}\n"
        "trial: {cluster: {chief: 1, worker: 1, ps: 1, evaluator: 1}, training: {updates: sync}}\n"
    )
    fit = FIT.replace("EPOCHS", "2 if x == 9 else 10**6")
    fit = fit.replace("(inputs, targets))", "(inputs, targets if x == 9 else 1 - targets))")
    study.write(text, fit)
    code, err = study.tune("study.yaml", "program.py")
    assert code == 0, err
    reported = [event for event in study.events() if event["event"] == "reported"]
    assert {event["source"] for event in reported} == {2}
    assert min(event["step"] for event in reported) > 0, (
        "no pruner may compare models that have learned nothing"
    )
    (done, pruned) = study.report()["trials"]
    assert (done["state"], pruned["state"]) == ("complete", "pruned")
    status = study.launcher.dtrain("status", pruned["run_dir"], "--json")
    assert status.end() == 0, status.err
    report = json.loads(status.out)
    assert report["state"] == "succeeded"
    trained = {task["step"] for task in report["tasks"] if task["task"] in ("chief:0", "worker:0")}
    assert trained == {report["global_step"]}
