"""`launch --on ssh` with real agents and processes; a stand-in for ssh starts each on this machine."""

import json
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest
from answers import is_of
from launching import wait_until

SSH = """#!/bin/sh
while [ "$1" != "--" ]; do shift; done
host=$2
case $host in
  nowhere) echo "ssh: Could not resolve hostname nowhere: Name or service not known" >&2; exit 255;;
  asks) echo "me@asks: Permission denied (publickey,password)." >&2; exit 255;;
  waits) echo "Proceed (y/n)?"; exec sleep 100;;
  other) echo "Welcome!"; exec /nonexistent/python;;
esac
echo "Last login: never; have a nice day"
export XDG_STATE_HOME="$STAND_IN/$host" XDG_CACHE_HOME="$STAND_IN/$host/cache" DTRAIN_RUNS_DIR=
export SSH_CONNECTION="127.0.0.1 40000 127.0.0.1 22"
cd "$STAND_IN" && exec sh -c "$3"
"""
ON = ("--on", "ssh", "--hosts", "h1,h2", "--workers", "2", "--ps", "1", "--no-evaluator")
QUICK = ("--set", "restart.worker.backoff_s=0.1")
TRAINS = """
import os
from pathlib import Path

import numpy as np

import dtrain as dt

strategy = dt.get_strategy()
with strategy.scope():
    model = dt.Sequential([dt.layers.Input((1,)), dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.SGD(0.01), loss="mse")
x = np.ones((64, 1), np.float32)
model.fit(x, 2 * x, batch_size=8, epochs=3, verbose=0)
print("secret", os.environ["HUSH"], "open", os.environ["SHOWN"], "in", os.getcwd())
if strategy.is_leader:
    for name in ("made", "own"):
        Path("aside").write_text("by the leader")
        Path("aside").replace(name)
"""


@pytest.fixture
def variables(tmp_path):
    """The environment of a user whose ssh is the stand-in."""
    stand_in = tmp_path / "bin" / "ssh"
    stand_in.parent.mkdir()
    stand_in.write_text(SSH)
    stand_in.chmod(stat.S_IRWXU)
    return {
        "PATH": f"{stand_in.parent}:{os.environ['PATH']}",
        "STAND_IN": str(tmp_path),
        "HUSH": "not for everybody",
    }


@pytest.fixture
def on_hosts(launcher, variables):
    """Starts launches whose ssh is the stand-in."""
    return lambda *words, **more: launcher.start(*words, environment={**variables, **more})


def test_what_was_found_out_about_hosts_is_an_answer_in_json(launcher, variables):
    check = launcher.dtrain("check", "--hosts", "h1", "--json", environment=variables)
    check.end()
    found = json.loads(check.out)
    is_of("check", found)
    assert [host["host"] for host in found["hosts"]] == ["h1"]
    assert found["hosts"][0]["login_s"] > 0, "it has logged in"
    assert (check.process.returncode == 0) == (not found["mistakes"])


def test_a_run_on_two_hosts_is_as_on_one_machine(on_hosts, launcher, variables, tmp_path):
    (tmp_path / "program.py").write_text(TRAINS)
    (tmp_path / "own").write_text("by the user")
    tells = ("--set", "secrets=[HUSH]", "--set", "environment.SHOWN=yes", "--set", "code.from=.")
    launch = on_hosts(*ON, *tells, "program.py")
    assert launch.end() == 0, launch.err
    assert "succeeded after" in launch.err
    ledger = json.loads((launch.run_dir / "goodput.json").read_text())
    assert [row["task"] for row in ledger["tasks"]] == ["chief:0", "worker:0", "worker:1"]
    assert all(row["seconds"]["start"] > 0 for row in ledger["tasks"]), "each has told of itself"
    assert ledger["seconds"]["good"] > 0  # in a run of some steps a worker may come too late for all of them
    where = tmp_path / "h1" / "dtrain" / "hosts" / "h1"
    (work,) = where.glob("*/work")
    assert f"chief:0 | secret not for everybody open yes in {work}" in launch.out
    assert (work / "made").read_text() == "by the leader"
    assert "fetched from h1, 0.0 MiB: made\n" in launch.err, launch.err
    assert (tmp_path / "own").read_text() == "by the user"
    assert (launch.run_dir / "fetched" / "own").read_text() == "by the leader"
    assert f"kept apart from files of yours, in {launch.run_dir}/fetched: own" in launch.err.splitlines()[-2]
    assert (tmp_path / "made").read_text() == "by the leader"
    assert not (tmp_path / "program.py").is_symlink()
    tasks = {task["task"]: task["host"] for task in launch.record()["tasks"]}
    assert tasks == {"chief:0": "h1", "ps:0": "h1", "worker:0": "h2", "worker:1": "h2"}
    written = "".join(path.read_text(errors="replace") for path in launch.run_dir.rglob("*.json"))
    assert "not for everybody" not in written
    assert json.loads((launch.run_dir / "target.json").read_text()) == {
        "engine": "ssh",
        "hosts": ["h1", "h2"],
        "job": None,
        "earlier": [],
        "launcher": None,
    }
    assert f"its files are on h1 in {work.parent}" in launch.err
    more = ("--run-dir", str(launch.run_dir), "--resume", "--on", "ssh", "--hosts")
    copy = launch.run_dir / "checkpoints" / "ckpt-24"
    assert (copy / "manifest.json").exists()
    without = ("--set", "code.exclude=[h1, h2, runs]")
    elsewhere = on_hosts(*more, "h2,h1", *ON[4:], *tells, *without, "program.py")
    assert elsewhere.end() == 0, elsewhere.err
    assert "goes on from step 24\n" in elsewhere.err
    assert "fetched from h2, 0.0 MiB: made\n" in elsewhere.err  # it was sent as code, and is a fetch's own
    assert (
        tmp_path / "h2" / "dtrain" / "hosts" / "h2" / work.parent.name / "checkpoints" / "ckpt-24"
    ).is_dir()
    shutil.rmtree(copy.parent)
    refused = on_hosts(*more, "h3,h1", *ON[4:], *tells[:4], *without, "program.py")
    assert refused.end() == 2, refused.err
    assert "the newest checkpoint, of step 24, is on h2 in " in refused.err
    assert "--from-scratch" in refused.err
    launch.wait_gone()
    where = json.loads((launch.run_dir / "target.json").read_text())
    (launch.run_dir / "target.json").write_text(
        json.dumps({**where, "earlier": [*where["earlier"], "nowhere"]})
    )
    removal = launcher.dtrain("rm", str(launch.run_dir), environment=variables)
    assert removal.end() == 1, removal.err
    assert "nowhere: it is no name that ssh can resolve" in removal.err
    assert "left there stays, in dtrain/hosts/nowhere of its state directory" in removal.err
    assert not work.parent.exists()
    assert not list((tmp_path / "h2" / "dtrain" / "hosts" / "h2").iterdir())
    assert not launch.run_dir.exists() or not list(launch.run_dir.iterdir())


def test_any_command_gets_its_place_and_the_port_of_a_server_on_the_first_host(on_hosts):
    said = "echo $RANK of $WORLD_SIZE, $MASTER_ADDR:$MASTER_PORT"
    launch = on_hosts(
        "--on", "ssh", "--hosts", "h1,h2", "--workers", "1", "--ps", "0", "--", "sh", "-c", said
    )
    assert launch.end() == 0, launch.err
    assert "chief:0 | 0 of 2, 127.0.0.1:" in launch.out
    assert "worker:0 | 1 of 2, 127.0.0.1:" in launch.out
    assert len({line.rpartition(" ")[2] for line in launch.out.splitlines()}) == 1


def test_a_killed_agent_costs_an_attempt_and_a_killed_launcher_leaves_nothing(on_hosts, launcher):
    launch = on_hosts(*ON, *QUICK, launcher.program("status(); forever()"))
    launch.wait_running()
    first = {task["task"]: task["pid"] for task in launch.record()["tasks"]}
    agents = {pid: Path(f"/proc/{pid}/environ").read_text() for pid in launch.pids("dtrain_cli.agent")}
    (second,) = [pid for pid, environ in agents.items() if "/h2\0" in environ]
    os.kill(second, signal.SIGKILL)
    launch.wait_for(
        lambda: launch.task("worker:1")["attempt"] == 1 and launch.task("worker:1")["pid"], "again"
    )
    launch.wait_for(lambda: launch.record()["state"] == "running", "up again")
    assert launch.task("chief:0")["pid"] == first["chief:0"]
    assert (
        "was lost with its host h2: its agent had ended"
        in json.loads((launch.run_dir / "tasks/worker-1/attempt-0/failure.json").read_text())["message"]
    )
    launch.send(signal.SIGKILL)
    launch.process.wait()
    launch.wait_gone()
    assert "h2: another agent is up there" in launch.process.stderr.read()


def test_orders_to_tasks_go_to_their_hosts(on_hosts, launcher):
    launch = on_hosts(*ON, *QUICK, launcher.program("status(); forever()"))
    launch.wait_running()
    pid = launch.task("worker:0")["pid"]
    assert launcher.dtrain("chaos", str(launch.run_dir), "kill", "worker:0").end() == 0
    launch.wait_for(lambda: launch.task("worker:0")["attempt"] == 1, "killed and started again")
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the first attempt is dead")
    launch.send(signal.SIGINT)
    assert launch.end() == 130
    assert "stopping in order" in launch.err
    launch.wait_gone()


def test_a_host_that_cannot_be_used_is_one_sentence(on_hosts, launcher):
    """Each of three, in launches of the same time."""
    sentences = {
        "nowhere": "dtrain: nowhere: it is no name that ssh can resolve",
        "asks": "dtrain: asks: it asks for a password or knows no key of yours",
        "other": "dtrain: other: there is no ",
    }
    program = launcher.program("status(); forever()")
    launches = {host: on_hosts("--on", "ssh", "--hosts", f"h{host},{host}", program) for host in sentences}
    for host, launch in launches.items():
        assert launch.end() == 125, launch.err
        assert sentences[host] in launch.err
        assert "Traceback" not in launch.err
        launch.wait_gone()


def test_a_login_shell_that_waits_for_an_answer_is_named_with_its_question(on_hosts, launcher):
    program = launcher.program("status(); forever()")
    launch = on_hosts("--on", "ssh", "--hosts", "waits", "--start-timeout", "1", program)
    assert launch.end() == 125
    assert "waits: the login, which has printed 'Proceed (y/n)?', has started no agent" in launch.err
    launch.wait_gone()
