"""`launch --on ssh --detach`: the launcher is on the first host, and other commands ask it there."""

import json

import pytest
from cli.fleet.test_launch_on_hosts import ON, on_hosts, variables  # noqa: F401 - fixtures
from launching import wait_until

ENDLESS = """
import itertools, time
import numpy as np
import dtrain as dt

def batches():
    for _ in itertools.count():
        time.sleep(0.01)
        yield np.ones((8, 1), np.float32), np.full((8, 1), 2, np.float32)

print("begins")
with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Input((1,)), dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.SGD(0.01), loss="mse")
model.fit(lambda context: dt.data.Dataset.from_generator(batches), epochs=1, steps_per_epoch=10**6, verbose=0)
"""


@pytest.fixture
def dtrain(launcher, variables):  # noqa: F811
    """Runs a command of dtrain to its end; returns its exit code, stdout and stderr."""

    def dtrain(*words):
        command = launcher.dtrain(*words, environment=variables)
        return command.end(), command.out, command.err

    return dtrain


def test_a_detached_run_needs_its_first_host_alone(dtrain, tmp_path):
    (tmp_path / "p.py").write_text(ENDLESS)
    code, _, err = dtrain("launch", *ON, "--name", "line", "--detach", "p.py")
    assert code == 0, err
    assert "its launcher is on h1" in err
    code, out, err = dtrain("status", "line", "--json")
    report = json.loads(out)
    assert (code, report["state"], report["name"]) == (0, "running", "line"), err
    assert {task["host"] for task in report["tasks"]} == {"h1", "h2"}
    assert dtrain("rm", "line")[0] != 0, "it still runs"
    code, _, err = dtrain("join-line", "line")
    assert code == 1
    assert "which only this machine can reach" in err

    def begun():
        return "begins" in dtrain("logs", "line", "chief:0", "-n", "5")[1]

    wait_until(begun, "the chief's first line")
    code, out, err = dtrain("stop", "line", "--json")
    assert (code, json.loads(out)["state"]) == (0, "stopped"), err
    assert dtrain("status", "line")[0] == 4
    assert "stopped" in dtrain("runs")[1]
    code, _, err = dtrain("launch", "--resume", "line", "--detach", "p.py")
    assert code == 0, err
    assert dtrain("stop", "line")[0] == 0
    (log,) = tmp_path.glob("h1/dtrain/hosts/*/*/launcher.log")
    assert "goes on from step " in log.read_text()
    run = report["run"]
    assert (tmp_path / "h1/dtrain/runs" / run).is_dir()
    code, _, err = dtrain("rm", "line")
    assert code == 0, err
    assert not list(tmp_path.glob(f"h*/dtrain/*/{run}")) + list(tmp_path.glob(f"h*/dtrain/*/*/{run}"))


@pytest.mark.parametrize("host", ["asks", "h1,asks"])
def test_a_detached_launch_that_fails_says_what_its_launcher_said(dtrain, tmp_path, host):
    (tmp_path / "p.py").write_text(ENDLESS)
    code, _, err = dtrain("launch", "--on", "ssh", "--hosts", host, "--detach", "p.py")
    assert code == 125
    assert "asks: it asks for a password" in err


def test_a_program_that_is_not_sent_is_refused_before_anything_starts(dtrain, tmp_path):
    (tmp_path / "p.py").write_text(ENDLESS)
    code, _, err = dtrain("launch", *ON, "--detach", str(tmp_path / "p.py"))
    assert code == 2
    assert "is not sent" in err
