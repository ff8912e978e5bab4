"""Programs with a coordinator on real clusters: workers that are killed, refusals, the end of every task."""

import os
import random
import re
import signal
import tempfile
from pathlib import Path

import pytest
from clusters.hand import HandCluster
from launching import wait_until

PROGRAM = str(Path(__file__).parent / "closures.py")
QUICK = ("--set", "restart.worker.backoff_s=0.1", "--set", "restart.worker.max=20", "--no-evaluator")
KILLS = int(os.environ.get("DTRAIN_COORDINATOR_KILLS", "1"))


@pytest.mark.parametrize("seed", range(KILLS))
def test_closures_count_once_though_their_workers_are_killed(launcher, seed):
    """kill -9 of a worker between the two changes that a closure makes, and of another one at any moment."""
    chance = random.Random(seed)
    workers = 2 + seed % 2
    launch = launcher.start("--workers", str(workers), "--ps", "2", *QUICK, PROGRAM, str(launcher.folder))
    for _ in range(2):
        before = set(launcher.folder.glob("in-*"))
        launch.wait_for(lambda: set(launcher.folder.glob("in-*")), "a closure between its changes")
        path = chance.choice(sorted(before or launcher.folder.glob("in-*")))
        victim = f"worker:{path.name.rpartition('-')[2]}"
        path.unlink()
        os.kill(launch.pid(victim), signal.SIGKILL)
    (launcher.folder / "go").touch()
    assert launch.end() == 0, launch.err
    assert f"SUM 200 {[200.0] * 8}" in launch.out
    assert "MEAN 100.0 400.0" in launch.out
    assert "RESET 0.5 2.0" in launch.out
    assert "killed by SIGKILL (signal 9); restarting" in launch.err
    launch.wait_gone()


SOON = [word for role in ("chief", "ps") for word in ("--set", f"restart.{role}.backoff_s=0.1")]


def begun(launcher):
    """A launch in whose midst a closure stands between its changes."""
    launch = launcher.start("--workers", "2", "--ps", "2", *QUICK, *SOON, PROGRAM, str(launcher.folder))
    launch.wait_for(lambda: set(launcher.folder.glob("in-*")), "a closure between its changes")
    return launch


def test_a_coordinator_that_is_started_again_begins_anew_with_the_same_workers(launcher):
    launch = begun(launcher)
    os.kill(launch.pid("chief:0"), signal.SIGKILL)
    (launcher.folder / "go").touch()
    assert launch.end() == 0, launch.err
    assert f"SUM 200 {[200.0] * 8}" in launch.out
    assert launch.task("worker:0")["attempt"] == launch.task("worker:1")["attempt"] == 0
    launch.wait_gone()


def test_a_server_that_is_killed_ends_the_program_by_its_name(launcher):
    launch = begun(launcher)
    os.kill(launch.pid("ps:1"), signal.SIGKILL)
    (launcher.folder / "go").touch()
    assert launch.end() != 0
    assert "PeerLostError: ps:1 has lost the variables of this program: it was started again" in launch.err
    launch.wait_gone()


def test_a_program_alone_gives_the_same_sum(launcher):
    (launcher.folder / "go").touch()
    command = launcher.run(PROGRAM, str(launcher.folder))
    assert command.end() == 0, command.err
    assert f"SUM 200 {[200.0] * 8}" in command.out
    assert "MEAN 100.0 400.0" in command.out
    assert "RESET 0.5 2.0" in command.out


INSIDER = str(Path(__file__).parent / "insider.py")
OTHER_UID = 4242
OTHER_USER = ("setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups")


@pytest.mark.parametrize(
    ("said", "wrapper"),
    [
        ({"DTRAIN_SECRET": "the secret of this very run"}, ()),
        pytest.param(
            {"DTRAIN_INSECURE": "1"},
            OTHER_USER,
            marks=pytest.mark.skipif(os.getuid() != 0, reason="changes the user as root"),
        ),
    ],
    ids=["a holder of the secret", "another user where none is asked for"],
)
def test_whoever_may_talk_to_a_worker_has_it_run_no_function_but_the_programs(launcher, said, wrapper):
    """Nor is the chief replaced by another process while it is there; it takes the place of one that has gone."""
    found = "from importlib.util import find_spec; exit(not all(map(find_spec, ('dtrain', 'numpy'))))"
    if wrapper and launcher.run("-c", found, wrapper=wrapper).end() != 0:
        pytest.skip("another user cannot read this Python, or dtrain")
    cluster = HandCluster(launcher, ps=1, chief=1, worker=1)
    words = (PROGRAM, str(launcher.folder))

    def start(task):
        place = {"TF_CONFIG": cluster.tf_config(task), "DTRAIN_INDEX": "0", "DTRAIN_ATTEMPT": "0"}
        return cluster.start(task, *words, environment=said | place)

    def insider(*words):
        with tempfile.TemporaryDirectory() as home:  # pytest's folders are closed to other users
            if wrapper:
                os.chown(home, OTHER_UID, OTHER_UID)
            place = {"TF_CONFIG": cluster.tf_config("chief:0"), "HOME": home, "DTRAIN_RUNS_DIR": home}
            command = launcher.run(INSIDER, *words, environment=said | place, wrapper=wrapper)
            assert command.end() == 0, command.err
            return command.out

    start("ps:0")
    start("worker:0")
    told = insider("first", *words)
    assert re.findall("^REFUSED (\\w+) ", told, re.M) == ["eval", "system", "getoutput", "load"], told
    assert "HAS RUN" not in told
    chief = start("chief:0")
    wait_until(lambda: set(launcher.folder.glob("in-*")), "a closure of the real chief")
    assert insider("beside", "127.0.0.1:1") == "NotReady\n"
    (launcher.folder / "go").touch()
    cluster.succeed()
    assert f"SUM 200 {[200.0] * 8}" in chief.out
    assert not (launcher.folder / "taken").exists()


def written(launcher, text):
    path = launcher.folder / "program.py"
    path.write_text(text)
    return path


OTHERS = """
import numpy as np
import dtrain as dt
from dtrain.distribute.coordinator import ClusterCoordinator

strategy = dt.ParameterServerStrategy()
with strategy.scope():
    first = dt.Variable(np.float32(0))
    if strategy.is_leader:
        second = dt.Variable(np.float32(0))

def closure():
    return 1

print("RESULT", ClusterCoordinator(strategy).schedule(closure).fetch())
"""


def test_a_worker_whose_program_makes_other_variables_says_which(launcher):
    program = written(launcher, OTHERS)
    launch = launcher.start("--workers", "1", "--ps", "1", "--no-evaluator", program)
    assert launch.end() != 0
    assert "has made other models, variables or metrics than the coordinator's" in launch.err
    launch.wait_gone()


FIT_LATE = """
import numpy as np
import dtrain as dt
from dtrain.distribute.coordinator import ClusterCoordinator

strategy = dt.ParameterServerStrategy()
with strategy.scope():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
model.compile("sgd", "mse")
data = np.zeros((4, 1), np.float32), np.zeros((4, 1), np.float32)
model.fit(*data, batch_size=2, epochs=2, verbose=0)
print("WEIGHTS", {name: value.shape for name, value in model.arrays.items()})

def shapes():
    return [list(value.shape) for value in model.arrays.values()]

print("SHAPES", ClusterCoordinator(strategy).schedule(shapes).fetch())
model.fit(*data, batch_size=2, epochs=1, verbose=0)
"""


def test_fit_may_come_before_the_coordinator_and_is_refused_after_it(launcher):
    program = written(launcher, FIT_LATE)
    launch = launcher.start("--workers", "1", "--ps", "1", "--no-evaluator", program)
    assert launch.end() != 0
    assert "SHAPES [[1, 1], [1]]" in launch.out
    assert "fit: this program has called its ClusterCoordinator" in launch.err
    launch.wait_gone()
