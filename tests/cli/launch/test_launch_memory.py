"""What forked tasks share, and what they do without."""

PROGRAM = """
import sys
import time

import numpy as np

import dtrain as dt

ONE = np.ones((1, 1), np.float32)


def batches(context):
    def generate():
        yield ONE, ONE
        print("first", "grpc" in sys.modules, flush=True)
        while True:
            time.sleep(0.1)
            yield ONE, ONE

    return dt.data.Dataset.from_generator(generate)


with dt.get_strategy().scope():
    model = dt.Sequential([dt.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
model.fit(batches, steps_per_epoch=1_000_000, verbose=0)
"""


def test_a_worker_does_without_grpc_where_all_are_on_this_host(launcher):
    (launcher.folder / "program.py").write_text(PROGRAM)
    launch = launcher.start("--workers", 1, "--ps", 1, "--no-evaluator", "program.py", warm=False)
    assert "False" in launch.wait_for(
        lambda: "first" in launch.log("worker:0") and launch.log("worker:0"), "a first step"
    )
