"""Many runs on one machine, and servers that are none of them: no run takes another's port, no task talks to a
stranger.
"""

import json
import os
import re
import signal

from clusters.hand import HandCluster
from clusters.watching import PACED, step_of, succeeded

STRANGER = "this server belongs to another run, or the secret is another"
SMALL = ("--workers", "1", "--ps", "1", "--no-evaluator")
LINE = """
import os, sys
import numpy as np
import dtrain as dt

slope = float(sys.argv[1])
x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(32, 1)
strategy = dt.get_strategy()
with strategy.scope():
    model = dt.Sequential([dt.layers.Input((1,)), dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.SGD(0.3), loss="mse")
model.fit((x, slope * x), epochs=1, steps_per_epoch=60, batch_size=8, verbose=0)
if strategy.is_leader:
    print("slope", round(float(model.get_weights()[0].ravel()[0])))
print("cluster", os.environ["TF_CONFIG"])
"""
NOT_DTRAIN = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import grpc

server = grpc.server(ThreadPoolExecutor(1))
server.add_insecure_port(sys.argv[1])
server.start()
print("serving", flush=True)
time.sleep(1000)
"""


def test_five_launches_at_once_neither_collide_nor_talk_to_each_other(launcher):
    (launcher.folder / "line.py").write_text(LINE)
    words = ("--name", "same", "--updates", "sync", *SMALL, "--start-timeout", "300")
    launches = {slope: launcher.start(*words, "line.py", slope) for slope in range(5)}
    ports = []
    for slope, launch in launches.items():
        succeeded(launch)
        assert f"chief:0 | slope {slope}\n" in launch.out, (
            "each has learned its own line, so no other run's gradients came in"
        )
        cluster = json.loads(re.search(r"chief:0 \| cluster (.*)", launch.out)[1])["cluster"]
        ports += [address for addresses in cluster.values() for address in addresses]
    assert len(set(ports)) == len(ports) == 15
    assert len({launch.record()["run"] for launch in launches.values()}) == 5


def test_a_run_s_server_is_neither_another_run_s_nor_is_its_port(launcher):
    mine = launcher.start(*SMALL, PACED)
    mine.wait_for(lambda: step_of(mine) > 0, "a step")
    place = json.loads((mine.run_dir / "plan.json").read_text())["tasks"][0]["environment"]["TF_CONFIG"]
    lost = f"""
        import runpy
        place = json.loads(os.environ["TF_CONFIG"])
        if task == "worker:0":
            place["cluster"] = {json.loads(place)["cluster"]!r}
        os.environ["TF_CONFIG"] = json.dumps(place)
        del sys.modules["dtrain.strategies.interface"]
        runpy.run_path({PACED!r}, run_name="__main__")
        """
    other = launcher.start(*SMALL, "--set", "success=all_workers", launcher.program(lost))
    assert other.end() == 1
    assert STRANGER in " ".join(other.record()["failure"]["message"].split())
    other.wait_gone()

    address = json.loads(place)["cluster"]["ps"][0]
    thief = launcher.start(*SMALL, "--set", f"cluster.ps=[{address}]", PACED)
    assert thief.end() == 2
    assert f"cluster.ps.0: {address} is in use by another process" in thief.err

    before = step_of(mine)
    mine.wait_for(lambda: step_of(mine) > before, "training goes on")
    mine.send(signal.SIGTERM)
    assert mine.end() == 143
    mine.wait_gone()


def test_a_strangers_server_on_a_held_port(launcher):
    launch = launcher.start(*SMALL, "--set", "restart.ps={backoff_s: 1000}", PACED, "--wait_for", "go")
    launch.wait_for(lambda: launch.task("ps:0")["state"] == "running", "the server is up")
    address = launch.task("ps:0")["address"]
    os.kill(launch.pid("ps:0"), signal.SIGKILL)
    launch.wait_for(
        lambda: launch.task("ps:0")["state"] == "restarting", "the server is gone, its port is held"
    )
    (launcher.folder / "stranger.py").write_text(NOT_DTRAIN)
    stranger = launcher.run("stranger.py", address)
    assert stranger.process.stdout.readline() == "serving\n", "gRPC's servers share ports with any process"
    (launcher.folder / "go").touch()
    assert launch.end() == 1
    assert f"at {address}, where ps:0 is expected, answers a server that is not dtrain's" in launch.err
    launch.wait_gone()


def test_a_worker_of_another_run_is_refused(launcher):
    launch = launcher.start(*SMALL, PACED)
    launch.wait_for(lambda: step_of(launch) > 0, "a step")
    plan = json.loads((launch.run_dir / "plan.json").read_text())
    [place] = [task["environment"]["TF_CONFIG"] for task in plan["tasks"] if task["task"] == "worker:0"]
    stranger = launcher.dtrain("worker", PACED, environment={"TF_CONFIG": place})
    assert stranger.end() == 1
    assert STRANGER in stranger.err
    assert launch.record()["run"] not in stranger.err
    assert "Traceback" not in stranger.err

    before = step_of(launch)
    launch.wait_for(lambda: step_of(launch) > before, "training goes on")
    launch.send(signal.SIGTERM)
    assert launch.end() == 143
    launch.wait_gone()


def test_a_wrong_secret_is_refused(launcher):
    cluster = HandCluster(launcher, ps=1, worker=2)
    spec = cluster.spec()
    server = cluster.start("ps:0", "--spec", spec, environment={"DTRAIN_SECRET": "the secret of this run"})
    for secret in ("the secret of another run", ""):
        worker = cluster.start(
            "worker:1", "--spec", spec, "--index", "1", PACED, environment={"DTRAIN_SECRET": secret}
        )
        assert worker.end() == 1
        assert STRANGER in worker.err
        assert "Traceback" not in worker.err
    del cluster.commands["worker:1"]
    server.process.terminate()
    assert cluster.end() == {"ps:0": 143}
