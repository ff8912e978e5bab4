"""What a program says in its strategy's constructor, in real clusters of two servers, which never run the
program.
"""

import json

import pytest
from clusters.watching import report_of, succeeded, tasks_of

PROGRAM = """
import json, sys
import numpy as np
import dtrain as dt

strategy = dt.ParameterServerStrategy(**json.loads(sys.argv[1]))
with strategy.scope():
    model = dt.Sequential([dt.layers.Dense(3), dt.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((8, 2), np.float32), np.ones((8, 1), np.float32), batch_size=8, epochs=6, steps_per_epoch=1, verbose=0)
print("trained", strategy.training.updates)
"""
SYNC = {
    "updates": "sync",
    "backup_workers": 1,
    "too_few": "shrink",
    "too_few_timeout_s": 5,
    "nan_policy": "skip",
    "placement": "greedy",
    "partitioner": {"fixed_shards": 2},
    "compression": "bf16",
    "staleness_bound": "none",
    "seed": 4,
}
ASYNC = {
    "updates": "async",
    "staleness_bound": 2,
    "stale_gradients": "compensate",
    "compensation": 0.1,
    "on_stale": "retry_same_batch",
    "max_staleness": 5,
    "warmup_steps": 2,
    "placement": "greedy",
    "compression": "fp16",
    "nan_policy": "fail",
}


@pytest.fixture
def launch(launcher):
    (launcher.folder / "p.py").write_text(PROGRAM)
    return lambda wishes, *words: launcher.start(
        "--workers", "1", "--no-evaluator", *words, "p.py", json.dumps(wishes)
    )


@pytest.mark.parametrize("wishes", [SYNC, ASYNC], ids=["sync", "async"])
def test_wishes_reach_both_servers(launcher, launch, wishes):
    started = launch(wishes, "--timeout", "60")
    succeeded(started)
    assert f"chief:0 | trained {wishes['updates']}" in started.out
    tasks = tasks_of(report_of(started.run_dir))
    assert {tasks["ps:0"]["step"], tasks["ps:1"]["step"]} == {6}


def test_a_program_that_wishes_the_same_bits_computes_with_one_thread(launcher):
    """And both servers hear of it."""
    four_cores = """
import os
os.sched_getaffinity = lambda pid: set(range(4))  # the tests' own machine may have one core
"""
    threads = """
import threadpoolctl
print("threads", {pool["num_threads"] for pool in threadpoolctl.threadpool_info()})
"""
    (launcher.folder / "p.py").write_text(four_cores + PROGRAM + threads)
    environment = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    wishes = json.dumps({"updates": "sync", "deterministic": True})
    launch = launcher.start("--workers", "0", "--no-evaluator", "p.py", wishes, environment=environment)
    succeeded(launch)
    assert "chief:0 | trained sync" in launch.out
    assert "chief:0 | threads {1}" in launch.out
    tasks = tasks_of(report_of(launch.run_dir))
    assert {tasks["ps:0"]["step"], tasks["ps:1"]["step"]} == {6}


def test_the_command_line_wins_though_it_says_the_default(launch):
    started = launch({"updates": "sync"}, "--updates", "async")
    succeeded(started)
    assert "chief:0 | trained async" in started.out


def test_another_layout_is_refused_with_the_option_that_gives_it(launch):
    started = launch({"strategy": "single"}, "--ps", "1")
    assert started.end() == 2
    assert "run: dtrain launch --strategy single p.py" in " ".join(started.err.replace("│", " ").split())
    started.wait_gone()
