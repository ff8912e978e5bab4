"""Launches that go well: the main job, a slow replica, a line, a run resumed, the exact last step."""

import json
import re
import shlex
import shutil
import socket
from pathlib import Path

import numpy as np
from clusters.watching import (
    DETERMINISTIC,
    DIGITS,
    ESTIMATOR,
    LINE,
    PACED,
    ROOT,
    WHEN_ALL_ARE_THERE,
    report_of,
    saved_steps,
    step_of,
    succeeded,
    tasks_of,
)
from launching import free_port

SMALL = ("--workers", "1", "--ps", "1", "--no-evaluator")


def test_the_main_job(launcher):
    launch = launcher.start(DIGITS, "--steps", "200")
    succeeded(launch)
    assert "chief:0 | held-out accuracy 0.9" in launch.out
    assert saved_steps(launch.run_dir)[0] == 0
    assert saved_steps(launch.run_dir)[-1] == 200

    report = report_of(launch.run_dir)
    assert (report["state"], report["exit_code"], report["failure"]) == ("succeeded", 0, None)
    assert (report["global_step"], report["max_steps"], report["rolled_back_steps"]) == (200, 200, 0)
    assert report["evaluation"]["global_step"] == 200
    assert report["evaluation"]["accuracy"] > 0.9
    tasks = tasks_of(report)
    assert list(tasks) == ["chief:0", "worker:0", "worker:1", "ps:0", "ps:1", "evaluator:0"]
    assert {(task["state"], task["restarts"]) for task in tasks.values()} == {("succeeded", 0)}
    assert {tasks["ps:0"]["step"], tasks["ps:1"]["step"]} == {200}, "both servers made every version"
    # On a busy machine a replica may come when the others have made all steps.
    trained = [
        tasks[name]
        for name in ("chief:0", "worker:0", "worker:1")
        if tasks[name]["staleness_mean"] is not None
    ]
    assert trained
    for task in trained:
        assert task["staleness_mean"] >= 0
        assert min(task["bytes_sent"], task["bytes_received"]) > 10_000


def test_a_slow_replica_among_synchronous_ones_with_a_backup(launcher):
    spec = str(ROOT / "cluster_specs" / "laptop_sync_backup.yaml")
    launch = launcher.start(
        "--set", "simulate.slow.worker:2=5", spec, WHEN_ALL_ARE_THERE, DIGITS, "--steps", "100"
    )
    succeeded(launch)
    assert re.search(r"\d+ gradients came too late", launch.err)
    report = report_of(launch.run_dir)
    tasks = tasks_of(report)
    assert (report["global_step"], tasks["ps:0"]["step"], tasks["ps:1"]["step"]) == (100, 100, 100)
    assert tasks["worker:2"]["stale_gradients"] > 0
    # Of each step's four contributions at most one is late; the slow one's are more than all others'
    # together.
    others = sum(tasks[name]["stale_gradients"] for name in ("chief:0", "worker:0", "worker:1"))
    assert tasks["worker:2"]["stale_gradients"] + others <= 100


def test_a_line_is_found(launcher):
    spec = str(ROOT / "cluster_specs" / "line.yaml")
    launch = launcher.start(spec, LINE, "--learning_rate", "1e-2", "--max_steps", "1000")
    succeeded(launch)
    weight, bias = map(
        float,
        re.search(r"worker:0 \| weight (\S+) \(true: 2\), bias (\S+) \(true: 10\)", launch.out).groups(),
    )
    assert abs(weight - 2) < 0.1
    assert abs(bias - 10) < 0.1
    assert report_of(launch.run_dir)["global_step"] == 1000


def test_asynchronous_training_ends_exactly_at_its_last_step_at_addresses_of_ip_version_6_and_names(launcher):
    """With one worker and with three, at the same time."""
    has_ipv6 = socket.has_dualstack_ipv6() and "0" * 31 + "1" in Path("/proc/net/if_inet6").read_text()
    hosts = ("[::1]" if has_ipv6 else "localhost", "localhost", "127.0.0.1")
    launches = []
    for workers in (1, 3):
        addresses = [f"{host}:{free_port()}" for host in hosts]
        words = ("--set", f"cluster.ps={json.dumps(addresses)}", "--set", "training.transport=grpc")
        words = (*words, "--workers", workers, "--no-evaluator", "--updates", "async", PACED, "--steps", "37")
        launches.append((addresses, launcher.start(*words)))
    for addresses, launch in launches:
        succeeded(launch)
        report = report_of(launch.run_dir)
        assert (report["global_step"], report["max_steps"]) == (37, 37)
        servers = [tasks_of(report)[f"ps:{index}"] for index in range(3)]
        assert [server["address"] for server in servers] == addresses
        # One variable and one bias: ps:2 holds nothing, and yet counts.
        assert [server["step"] for server in servers] == [37, 37, 37]


def test_a_resumed_run_is_the_same_as_one_without_a_break(launcher):
    def weights(launch, attempt=0):
        return [line for line in launch.log("chief:0", attempt).splitlines() if line.startswith("weights ")]

    words = DETERMINISTIC
    program = (ESTIMATOR, "--print_weights", "--max_steps")
    whole = launcher.start(*words, *program, "20")
    broken = launcher.start("--run-dir", "broken", *words, *program, "12", run_dir=launcher.folder / "broken")
    succeeded(whole)
    succeeded(broken)
    resumed = launcher.start(
        "--run-dir", "broken", "--resume", *words, *program, "20", run_dir=launcher.folder / "broken"
    )
    succeeded(resumed)
    assert saved_steps(resumed.run_dir)[-1] == 20
    assert weights(broken) == weights(whole)[:12]
    assert weights(resumed, attempt=1) == weights(whole)[12:]


TWICE = """
import numpy as np
import dtrain as dt

x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(8, 1)
strategy = dt.get_strategy()
for width in (2, 2, 3):
    with strategy.scope():
        model = dt.Sequential([dt.layers.Dense(width, input_shape=(1,)), dt.layers.Dense(1)])
        model.compile(optimizer=dt.optimizers.Adam(0.1), loss="mse")
    model.set_weights([np.ones(spec.shape) for spec in model.network.variables])
    for _ in range(2):
        model.fit((x, 3 * x - 1), epochs=1, steps_per_epoch=5, batch_size=4, shuffle=False, verbose=0)
    if strategy.is_leader:
        print("trained", [value.tolist() for value in model.get_weights()])
"""


def test_several_models_one_after_the_other_as_in_one_process(launcher):
    (launcher.folder / "twice.py").write_text(TWICE)
    alone = launcher.start("--strategy", "single", "--no-evaluator", "twice.py")
    succeeded(alone)
    expected = [line for line in alone.log("chief:0").splitlines() if line.startswith("trained")]
    launch = launcher.start("--workers", "0", "--ps", "2", "--no-evaluator", "twice.py")
    succeeded(launch)
    first, second, _ = expected
    assert first == second
    assert [line for line in launch.log("chief:0").splitlines() if line.startswith("trained")] == expected
    assert launch.log("chief:0").count("read again from the start") == 1, "it is said once"
    assert report_of(launch.run_dir)["global_step"] == 30


def test_a_run_that_was_interrupted_goes_on(launcher):
    first = launcher.start("--run-dir", "mine", *SMALL, PACED, run_dir=launcher.folder / "mine")
    # The leader's own: while it opens the session others have begun in, it has nothing to save but the start.
    first.wait_for(lambda: step_of(first) >= 10, "ten steps")
    first.wait_for(
        lambda: (tasks_of(report_of(first.run_dir))["chief:0"]["step"] or 0) >= 10, "ten steps of the leader"
    )
    first.process.terminate()
    assert first.end() == 143
    first.wait_gone()
    reached = saved_steps(first.run_dir)[-1]
    assert reached >= 10
    line = shlex.join(["dtrain", "launch", "--resume", "--run-dir", "mine", *SMALL, str(PACED)])
    assert first.err.splitlines()[-1] == f"dtrain: resume with  {line}"
    again = launcher.start(
        "--run-dir", "mine", "--resume", *SMALL, PACED, "--steps", str(reached + 7), run_dir=first.run_dir
    )
    succeeded(again)
    assert saved_steps(again.run_dir)[-1] == reached + 7
    assert f"goes on from step {reached} of {reached + 7}\n" in again.out
    nothing = launcher.start(
        "--run-dir", "mine", "--resume", PACED, "--steps", str(reached + 7), run_dir=first.run_dir
    )
    succeeded(nothing)
    resumed = "is resumed: 1 chief, 1 worker, 1 ps\n"
    assert resumed in again.err
    assert resumed in nothing.err, "the run's own cluster, without SMALL"
    assert "other settings" not in again.err + nothing.err
    assert (
        f"nothing is left to train: the newest checkpoint is of the last step, {reached + 7}\n" in nothing.out
    )
    assert "go on with" not in nothing.err
    assert f"dtrain: goes on from step {reached}\n" in again.err
    assert f"dtrain: goes on from step {reached + 7}\n" in nothing.err
    shutil.rmtree(first.run_dir / "checkpoints")
    words = ("--run-dir", "mine", "--resume", *SMALL, PACED, "--steps", "3")
    refused = launcher.start(*words, run_dir=first.run_dir)
    assert refused.end() == 2
    place = f"the newest checkpoint, of step {reached + 7}, is on {socket.gethostname()} in {first.run_dir}"
    assert place in refused.err
    assert "--from-scratch" in refused.err
    anew = launcher.start("--from-scratch", *words, run_dir=first.run_dir)
    succeeded(anew)
    assert f"dtrain: goes on from step 0; step {reached + 7} was saved on " in anew.err
    assert saved_steps(anew.run_dir)[-1] == 3


def test_one_process_says_where_it_goes_on(launcher):
    for steps, said in (
        ("5", None),
        ("9", "goes on from step 5 of 9\n"),
    ):
        words = ("--strategy", "single", "--run-dir", "one", *(["--resume"] if said else []))
        launch = launcher.start(*words, PACED, "--steps", steps, run_dir=launcher.folder / "one")
        assert launch.end() == 0, launch.err
        launch.wait_gone()
        assert said in launch.out if said else "goes on" not in launch.out


MAPPED = """
import re
import numpy as np
import dtrain as dt

x = np.load("data.npy", mmap_mode="r")
with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.SGD(0.0), loss="mse")
model.fit(x, np.zeros((len(x), 1), np.float32), epochs=1, steps_per_epoch=50, batch_size=32, verbose=0)
rollup = open("/proc/self/smaps_rollup").read()
print("own", int(re.search(r"Anonymous: +(\\d+)", rollup)[1]) // 1024, "MiB")
"""


def test_data_that_is_mapped_is_not_copied_into_every_task(launcher):
    mebibytes = 256
    (launcher.folder / "mapped.py").write_text(MAPPED)
    np.lib.format.open_memmap(launcher.folder / "data.npy", "w+", np.float32, (mebibytes * 256, 1024)).flush()
    launch = launcher.start("--workers", "2", "--ps", "1", "--no-evaluator", "mapped.py")
    succeeded(launch)
    own = [int(text) for text in re.findall(r"own (\d+) MiB", launch.out)]
    assert len(own) == 3
    assert max(own) < mebibytes / 2
