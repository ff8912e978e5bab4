"""Checkpoints of real clusters on a disk that is full for a while, and under kill -9 in the midst of writing
one.
"""

import json
import signal
import subprocess

import pytest
from clusters.watching import succeeded

from dtrain.checkpoints import list_checkpoints, open_checkpoint

OPTIONS = ("--workers", "1", "--ps", "2", "--no-evaluator", "--set", "checkpoint.every_steps=10")
FULL_WITH_ITS_LOGS = """
run=$PWD/run log=$PWD/run/tasks/chief-0/attempt-0/output.log
mkdir -p run && mount -t tmpfs -o size=400k,mode=700 none run
{
    until [ -e run/checkpoints/ckpt-0 ]; do sleep 0.02; done
    cat /dev/zero > run/filler
    head -c $((4096 - $(stat -c %s $log) % 4096)) /dev/zero | tr '\\0' ' ' >> $log  # the log cannot grow either
    touch full
    for _ in $(seq 2000); do grep -q "can no longer be saved" said && break; sleep 0.02; done
    "$1" -m dtrain_cli.main status --json $run > while-full.json
    "$1" -m dtrain_cli.main status $run > while-full.txt
    rm run/filler
    touch free
} 2>/dev/null >/dev/null &
"$@" 2>said; code=$?; "$1" -m dtrain_cli.main status --json $run > after.json; cp -r run kept; exit $code
"""
"""The whole run directory is on a disk that becomes full, and is looked at while it is, and when the run has
ended.
"""
PATIENT = """
import time
from pathlib import Path
import numpy as np
import dtrain as dt

def batches():
    for number in range(10_000):
        while not Path("full" if number < 50 else "free").exists():
            time.sleep(0.01)
        yield np.ones((1, 1), "f"), np.ones((1, 1), "f")

with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    model.compile(optimizer="sgd", loss="mse")
model.fit(lambda context: dt.data.Dataset.from_generator(batches), steps_per_epoch=200, verbose=0)
"""


def test_a_full_disk_costs_checkpoints_and_not_training_and_the_console_and_status_say_so(launcher):
    """Also where the task's log, the task's status and the launcher's own record lie on that disk."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no user have a mount namespace (unshare -rm)")
    (launcher.folder / "patient.py").write_text(PATIENT)
    wrapper = ("unshare", "-rm", "sh", "-c", FULL_WITH_ITS_LOGS, "sh")
    launch = launcher.start("--run-dir", "run", *OPTIONS, "patient.py", wrapper=wrapper)
    launch.run_dir = launcher.folder / "run"
    succeeded(launch)
    said = [line for line in (launcher.folder / "said").read_text().splitlines() if "saved" in line]
    assert ["can no longer be saved" in line for line in said] == [True, False], said
    assert "saved again" in said[1]
    assert "No space left on device" in said[0]
    assert "earlier checkpoints are untouched" in said[0]
    full, after = (
        json.loads((launcher.folder / f"{name}.json").read_text()) for name in ("while-full", "after")
    )
    assert "No space left on device" in full["unsaved"]
    assert "can no longer be saved" in (launcher.folder / "while-full.txt").read_text()
    assert after["unsaved"] is None
    kept = launcher.folder / "kept"
    assert json.loads((kept / "run.json").read_text())["state"] == "succeeded"
    assert after["global_step"] == list_checkpoints(kept / "checkpoints")[-1].step == 200
    assert list((kept / "checkpoints").glob(".*")) == []


def test_a_launch_that_is_killed_while_it_writes_goes_on_from_what_is_whole(launcher):
    program = launcher.folder / "wide.py"
    program.write_text(
        "import sys, numpy as np, dtrain as dt\n"
        "with dt.get_strategy().scope():\n"
        "    model = dt.Sequential([dt.layers.Dense(1000, input_shape=(1000,))])\n"
        "    model.compile(optimizer=dt.optimizers.Adam(0.001), loss='mse')\n"
        "data = dt.data.Dataset.from_tensor_slices((np.ones((1, 1000), 'f'), np.ones((1, 1000), "
        "'f'))).batch(1).repeat()\n"
        "model.fit(lambda context: data, steps_per_epoch=int(sys.argv[1]), verbose=0)\n"
    )
    often = ("--set", "checkpoint.every_steps=1")
    launch = launcher.start("--run-dir", "run", *OPTIONS, *often, str(program), "100000")
    launch.run_dir = launcher.folder / "run"
    folder = launch.run_dir / "checkpoints"
    launch.wait_for(
        lambda: len(list_checkpoints(folder)) > 2 and list(folder.glob(".tmp-*")),
        "a checkpoint being written",
    )
    launch.send(signal.SIGKILL)
    launch.end()
    launch.wait_gone()
    with open_checkpoint(folder) as checkpoint:
        step = checkpoint.step
        assert checkpoint.warning is None
    again = launcher.start("--run-dir", "run", "--resume", *OPTIONS, str(program), str(step + 3))
    again.run_dir = launch.run_dir
    succeeded(again)
    assert list_checkpoints(folder)[-1].step == step + 3
    assert list(folder.glob(".*")) == []
