"""The pipeline of a lost worker: its heirs read it on, and nothing is missing or counts twice."""

import signal
from collections import Counter

import pytest
from clusters.watching import saved_steps, step_of

PROGRAM = """
import os
import sys
import time
from pathlib import Path

import numpy as np

import dtrain as dt

COUNT = 300
ids = np.arange(COUNT, dtype=np.float32)
noted = Path(os.environ["FOLDER"], f"noted-{os.getpid()}").open("a", buffering=1)


def first(*_):
    return {"w": np.zeros(1, np.float32)}


def step(weights, x, y, *_):
    time.sleep(0.02)
    noted.write(" ".join(str(int(each)) for each in x) + "\\n")
    return 0.0, {"w": np.full(1, np.sum(x), np.float32)}


def pipeline(context):
    share = dt.data.Dataset.from_tensor_slices((ids, ids))
    return share.shard(context.num_input_pipelines, context.input_pipeline_id).batch(5)


strategy = dt.get_strategy()
with strategy.scope():
    model = dt.from_function(first, step)
    model.compile(optimizer=dt.optimizers.SGD(1.0))
model.fit(pipeline, epochs=4, verbose=0)
if strategy.is_leader:
    print("weight", float(model.arrays["w"][0]))
"""
SUM_OF_A_PASS = sum(range(300))
STRATEGIES = {
    "replicas": (("--strategy", "multi_worker_mirrored"), 3, 5),
    "sync": (("--ps", "1", "--updates", "sync", "--set", "training.too_few=shrink"), 3, 5),
    "async": (("--ps", "1", "--updates", "async"), 1, 10),
}
"""Words of the command, of how many parts a step is the mean, and how many examples may be computed twice: a
part that the lost worker was computing, and asynchronously one that waits to be pushed."""


@pytest.fixture(scope="module", autouse=True)
def with_one_lost(early):
    """Runs of which a worker is killed and not started again, by the names of their strategies."""
    (early.folder / "program.py").write_text(PROGRAM)
    launches = {}
    for name, (words, _, _) in STRATEGIES.items():
        (early.folder / name).mkdir()
        launches[name] = early.start(
            *words,
            *(
                "--workers",
                "2",
                "--no-evaluator",
                "--set",
                f"environment={{FOLDER: {early.folder / name}}}",
            ),
            *("--set", 'simulate.kill=[{"task":"worker:1","at_step":7}]'),
            *("--set", "restart.worker.policy=never", "program.py"),
        )
    return launches


def test_a_run_that_is_resumed_with_fewer_workers_goes_on_with_the_pipelines_of_its_start(launcher):
    (launcher.folder / "program.py").write_text(PROGRAM)
    words = ("--run-dir", "run", "--no-evaluator", "--ps", "1", "--updates", "async")
    words = (*words, "--set", f"environment={{FOLDER: {launcher.folder}}}")
    first = launcher.start(*words, "--workers", "2", "program.py", run_dir=launcher.folder / "run")
    first.wait_for(lambda: step_of(first) >= 50, "some steps")
    first.send(signal.SIGTERM)
    assert first.end() == 143
    assert 50 <= saved_steps(first.run_dir)[-1] < 240
    other = launcher.start(
        *("--resume", *words, "--workers", "1", "--set", "data.pipelines=2", "program.py"),
        run_dir=first.run_dir,
    )
    assert other.end() == 1
    said = " ".join(other.err.replace("│", " ").split())  # the box breaks lines
    assert "made 3 pipelines, and now makes 2: set data.pipelines to 3, or start anew" in said, said
    right = ("--set", "data.pipelines=3")  # the settings of a resume stay for the next one
    resumed = launcher.start(
        "--resume", *words, "--workers", "1", *right, "program.py", run_dir=first.run_dir
    )
    assert resumed.end() == 0, resumed.err
    assert f"weight {-4 * SUM_OF_A_PASS}" in resumed.out


def test_every_example_counts_once_an_epoch_though_a_worker_is_killed_for_good(with_one_lost, early):
    for name, launch in with_one_lost.items():
        assert launch.end() == 0, launch.err
        launch.wait_gone()
        _, parts, twice = STRATEGIES[name]
        assert "simulate: worker:1 killed" in launch.err
        assert f"weight {-4 * SUM_OF_A_PASS / parts}" in launch.out, name
        noted = [path.read_text() for path in (early.folder / name).glob("noted-*")]
        computed = Counter(int(number) for text in noted for number in text.split())
        assert set(computed) == set(range(300)), name
        assert 0 <= sum(computed.values()) - 1200 <= twice, name
