"""Trainings that were broken off and go on from BackupAndRestore, and agreed ends: golden file m9.

Where TensorFlow restores in the midst of an epoch it begins the data again at their first example, which is a
defect: there the numbers of an uninterrupted run are expected, which it also has.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conformance.golden import load_json
from conformance.workers_in_threads import on_workers, scope_in_thread
from row_by_row import every_row

import dtrain as dt
from dtrain.config import training_section
from dtrain.strategies.mirrored import threads_strategy
from dtrain.strategies.single import SingleStrategy

GOLDEN = load_json("m9_backup.json")
BACKUP = GOLDEN["backup_and_restore"]
X, Y = (np.array(BACKUP[name], np.float32) for name in ("x", "y"))
BROKEN_OFF = [case for case in BACKUP["cases"] if "broken_off" in case]
REPEATED = [case for case in BACKUP["cases"] if "what" in case]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


class Stop(Exception):
    pass


class Watch(dt.callbacks.Callback):
    """Notes every step, and breaks off at the end of a batch or an epoch."""

    def __init__(self, where=None):
        self.where = where
        self.steps = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append((self.epoch, batch))
        if self.where == ["batch", [self.epoch, batch]]:
            raise Stop

    def on_epoch_end(self, epoch, logs=None):
        if self.where == ["epoch", epoch]:
            raise Stop


def fit(case, folder, epochs, where=None, **arguments):
    """One call of fit in a program of its own: its steps, the rows that it has read, weights and history."""
    replicas = 2 if case.get("strategy") else 1
    strategy = (
        threads_strategy(training_section(strategy="mirrored", replicas=2))
        if replicas == 2
        else SingleStrategy()
    )
    with strategy.scope():
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
    rows = []

    def train_step(step):
        rows.append(int(np.flatnonzero((step.x[0] == X).all(1))[0]))
        return dt.Sequential.train_step(model, step)

    model.train_step = train_step
    name, options = BACKUP["optimizer"]
    model.compile(getattr(dt.optimizers, name)(**options), BACKUP["loss"])
    first = np.array(BACKUP["first_weights"], np.float32)
    model.set_weights([first[:2].reshape(2, 1), first[2:]])
    data = dt.data.Dataset.from_tensor_slices((X, Y)).batch(BACKUP["batch"])
    endless = case["data"] == "endless"
    watch = Watch(where)
    backup = dt.callbacks.BackupAndRestore(folder, save_freq=case["save_freq"], **arguments)
    before = case.get("broken_off", {}).get("by_a_callback_that_comes") == "before"
    ended, losses = None, []
    try:
        losses = model.fit(
            data.repeat() if endless else data,
            steps_per_epoch=steps_per_epoch(case) if endless else None,
            epochs=epochs,
            callbacks=[watch, backup] if before else [backup, watch],
            verbose=0,
        ).history.get("loss", [])
    except Stop:
        ended = "Stop"
    sums = [sum(rows[at : at + replicas]) for at in range(0, len(rows), replicas)]
    return {
        "ended_by": ended,
        "steps": [(*step, row) for step, row in zip(watch.steps, sums, strict=True)],
        "weights": np.concatenate([value.ravel() for value in model.get_weights()]),
        "loss": losses,
    }


def steps_per_epoch(case):
    """How many batches an epoch has in TensorFlow's two runs of a case."""
    return 1 + max(step["batch"] for run in ("first_run", "second_run") for step in case[run]["steps"])


def steps_of(run):
    return [(step["epoch"], step["batch"], step["first_example"]) for step in run["steps"]]


def name_of(case):
    where, when = case["broken_off"]["at_end_of"]
    return (
        f"{case['strategy']}, {case['save_freq']}, {where} {when}, "
        f"{case['broken_off']['by_a_callback_that_comes']}, {case['data']}"
    )


@every_row("case", BROKEN_OFF, ids=name_of)
def test_training_goes_on_where_it_was_broken_off(case, tmp_path):
    folder = tmp_path / "backup"
    broken = case["broken_off"]
    first = fit(case, folder, case["epochs"], broken["at_end_of"])
    assert first["ended_by"] == case["first_run"]["ended_by"]
    assert first["steps"] == steps_of(case["first_run"])
    np.testing.assert_allclose(first["weights"], case["first_run"]["weights"], **TOLERANCE)
    second = fit(case, folder, case["epochs"])
    expected = steps_of(case["second_run"])
    assert [step[:2] for step in second["steps"]] == [step[:2] for step in expected]
    whole = BACKUP["uninterrupted"]["steps"]
    scale = 2 if case.get("strategy") else 1
    read = {(step["epoch"], step["batch"]): step["first_example"] for step in whole}
    extra = 1 if scale == 2 else 0  # the sum of both replicas' first examples, which are neighbours
    assert [row for *_, row in second["steps"]] == [
        scale * read[step[:2]] + extra for step in second["steps"]
    ]
    np.testing.assert_allclose(second["weights"], BACKUP["uninterrupted"]["weights"], **TOLERANCE)
    np.testing.assert_allclose(second["loss"], BACKUP["uninterrupted"]["loss"], **TOLERANCE)
    if case["second_run"]["weights"] == BACKUP["uninterrupted"]["weights"]:  # no defect
        assert second["steps"] == expected
    assert list(folder.iterdir()) == []
    assert folder.exists() is case["directory_exists_after_second_run"]


@pytest.mark.parametrize("case", REPEATED, ids=lambda case: case["what"])
def test_a_second_run_goes_on_from_a_backup_that_stays(case, tmp_path):
    folder = tmp_path / "backup"
    keeps = "delete_checkpoint=False" in case["what"]
    for epochs, run in zip(case["epochs"], ("first_run", "second_run"), strict=True):
        found = fit(case, folder, epochs, delete_checkpoint=not keeps)
        assert found["steps"] == steps_of(case[run])
        np.testing.assert_allclose(found["weights"], case[run]["weights"], **TOLERANCE)
        files = case[f"files_after_{run}"]
        assert bool(list(folder.iterdir())) is bool(files)


REFUSED = [case["args"] for case in BACKUP["errors"] if "error" in case and isinstance(case["args"], dict)]


@pytest.mark.parametrize("arguments", REFUSED, ids=str)
def test_a_backup_that_would_never_be_written_is_refused(arguments, tmp_path):
    with pytest.raises(ValueError, match="save_freq"):
        dt.callbacks.BackupAndRestore(tmp_path, **arguments)


PREEMPTED = """
import os, signal, sys
import numpy as np
import dtrain as dt

class Kill(dt.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        print("STEP", self.epoch, batch, flush=True)
        if (self.epoch, batch) == (1, 1) and sys.argv[2] == "kill":
            os.kill(os.getpid(), signal.SIGTERM)

model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
model.compile(dt.optimizers.SGD(0.1, momentum=0.9), "mse")
x = np.arange(16, dtype=np.float32).reshape(8, 2) / 16
backup = dt.callbacks.BackupAndRestore(sys.argv[1], save_freq=False, save_before_preemption=True)
model.fit(x, x[:, :1], batch_size=2, epochs=3, shuffle=False, verbose=0, callbacks=[Kill(), backup])
print("WEIGHTS", [value.tolist() for value in model.get_weights()])
"""


# Loops of one's own

HANDLED = """
import os, signal, sys, time
import numpy as np
import dtrain as dt
from dtrain.distribute.experimental import PreemptionCheckpointHandler, TerminationConfig

folder, signalled, kind = sys.argv[1:4]
model = dt.Sequential([dt.layers.Dense(2, input_shape=(3,))])
optimizer = dt.optimizers.Adam(0.1)
seen = dt.Variable(np.float32(0))
checkpoint = dt.train.Checkpoint(model=model, optimizer=optimizer, seen=seen)
manager = dt.train.CheckpointManager(checkpoint, folder)
options = {}
if kind == "exit_fn":
    options["exit_fn"] = lambda: sys.exit(7)
    options["save_fn"] = lambda: print("save_fn", manager.save(checkpoint.counters["total_run_calls"]))
if kind == "grace":
    options["grace_period"] = 0.2
given = (checkpoint, folder) if kind == "checkpoint" else (manager,)
handler = PreemptionCheckpointHandler(None, *given, termination_config=TerminationConfig(**options))
print("RESTORED", handler.total_run_calls, float(seen), int(optimizer.iterations))
x = np.arange(12, dtype=np.float32).reshape(4, 3) / 12

def step():
    _, gradients = model.value_and_gradients("mse", x, x[:, :2])
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    seen.assign_add(1.0)

for number in range(handler.total_run_calls, 60):
    handler.run(step)
    if number == int(signalled):
        os.kill(os.getpid(), signal.SIGTERM)
    if kind == "grace" and number > int(signalled) >= 0:
        time.sleep(0.02)
print("FINISHED", handler.total_run_calls, float(seen), [value.tolist() for value in model.get_weights()])
"""


TWICE = """
import os, signal, sys
import dtrain as dt
from dtrain.runs.notices import Notice
notice = Notice()
os.kill(os.getpid(), signal.SIGTERM)
print("HEARD", notice.heard, flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("NEVER", flush=True)
"""
KINDS = ["manager", "checkpoint", "exit_fn", "grace"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The exit code, output and errors of every program, by name; a second one goes on where a first one ended."""
    folder = tmp_path_factory.mktemp("programs")
    programs = [
        ["whole", PREEMPTED, [f"{folder}/whole", "live"]],
        ["first", PREEMPTED, [f"{folder}/backup", "kill"]],
        ["second", PREEMPTED, [f"{folder}/backup", "live"]],
        ["undisturbed", HANDLED, [f"{folder}/undisturbed", "-1", "manager"]],
        *([f"first {kind}", HANDLED, [f"{folder}/{kind}", "3", kind]] for kind in KINDS),
        *([f"second {kind}", HANDLED, [f"{folder}/{kind}", "-1", kind]] for kind in KINDS),
        ["twice", TWICE, []],
    ]
    command = [sys.executable, "-m", "conformance.programs", str(folder)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    asked = {"input": json.dumps(programs), "env": os.environ | {"PYTHONPATH": path}, "timeout": 120}
    return json.loads(subprocess.run(command, **asked, stdout=subprocess.PIPE, text=True, check=True).stdout)


def test_before_preemption_the_batch_is_finished_and_saved(ended):
    code, output, errors = ended["first"]
    assert code == 42, errors
    assert output.split("\n")[-2] == "STEP 1 1"
    code, output, errors = ended["second"]
    assert code == 0, errors
    assert output.startswith("STEP 1 2\n")
    _, whole, _ = ended["whole"]
    assert output.splitlines()[-1] == whole.splitlines()[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_is_to_end_saves_after_a_step_and_goes_on_from_there(kind, ended):
    code, output, errors = ended[f"first {kind}"]
    assert code == (7 if kind == "exit_fn" else 42), errors
    assert "RESTORED 0 0.0 0" in output
    assert ("save_fn" in output) is (kind == "exit_fn")
    code, output, errors = ended[f"second {kind}"]
    assert code == 0, errors
    restored, finished = output.splitlines()
    _, calls, seen, iterations = restored.split()
    assert int(calls) == float(seen) == int(iterations)
    assert int(calls) > 5 if kind == "grace" else int(calls) == 5
    _, whole, _ = ended["undisturbed"]
    assert finished == whole.splitlines()[-1]


def test_a_second_sigterm_ends_at_once(ended):
    code, output, _ = ended["twice"]
    assert (output, code) == ("HEARD True\n", -signal.SIGTERM)


AGREED = [case for case in GOLDEN["preemption"] if case["grace"] is None]


@pytest.mark.parametrize("signalled", sorted({tuple(case["signalled_workers"]) for case in AGREED}))
def test_all_workers_save_after_the_same_step(signalled, tmp_path):
    """Whichever worker has the notice; here a function of the program brings it."""

    class Ended(Exception):
        pass

    def end():
        raise Ended

    def program(strategy):
        number = strategy.loops.first
        with scope_in_thread(strategy):
            seen = dt.Variable(np.float32(0))
            noticed = []
            manager = dt.train.CheckpointManager(dt.train.Checkpoint(seen=seen), tmp_path / f"w{number}")
            handler = dt.distribute.experimental.PreemptionCheckpointHandler(
                None,
                manager,
                termination_config=dt.distribute.experimental.TerminationConfig(
                    termination_watcher_fn=lambda: bool(noticed), exit_fn=end
                ),
            )
            restored = handler.total_run_calls, float(seen)
            last = 0
            try:
                while handler.total_run_calls < GOLDEN["preemption"][0]["steps"]:
                    handler.run(lambda: seen.assign_add(1.0))
                    last = handler.total_run_calls
                    if restored[0] == 0 and last == 4 and number in signalled:
                        noticed.append(True)
                        handler._notice._heard.wait(60)
                return restored, "finished", int(seen)
            except Ended:
                return restored, "ended", int(seen)

    first = on_workers(2, program)
    assert [each[:2] for each in first] == [((0, 0.0), "ended")] * 2
    assert len({each[2] for each in first}) == 1
    saved = first[0][2]
    assert on_workers(2, program) == [((saved, float(saved)), "finished", 60)] * 2
