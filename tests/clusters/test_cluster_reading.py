"""Files that several replicas read ahead: each record is parsed by one of them, and no thread hinders the end."""

PROGRAM = """
import os
import sys
from pathlib import Path

import numpy as np

import dtrain as dt

noted = Path(sys.argv[1], str(os.getpid())).open("a", buffering=1)


def parse(line):
    noted.write(f"{int(line)}\\n")
    return np.float32(int(line)), np.float32(int(line))


def gradients(weights, x, *_):
    return 0.0, {"w": np.full(1, np.sum(x), np.float32)}


lines = dt.data.TextLineDataset(["first.txt", "second.txt"]).map(parse, num_parallel_calls=2)
strategy = dt.get_strategy()
with strategy.scope():
    model = dt.from_function(lambda *_: {"w": np.zeros(1, np.float32)}, gradients)
    model.compile(optimizer=dt.optimizers.SGD(1.0))
model.fit(lines.shuffle(120).batch(6).prefetch(dt.data.AUTOTUNE), epochs=1, steps_per_epoch=20, verbose=0)
if strategy.is_leader:
    print("weight", round(float(model.arrays["w"][0])))
"""
STRATEGIES = {
    "servers": ("--ps", "1", "--updates", "sync"),
    "replicas": ("--strategy", "multi_worker_mirrored"),
}


def test_each_line_is_parsed_by_one_replica(launcher):
    (launcher.folder / "program.py").write_text(PROGRAM)
    for name, numbers in (("first", range(1, 61)), ("second", range(61, 121))):
        (launcher.folder / f"{name}.txt").write_text("".join(f"{number}\n" for number in numbers))
    launches = {}
    for name, words in STRATEGIES.items():
        (launcher.folder / name).mkdir()
        launches[name] = launcher.start(*words, "--workers", "2", "--no-evaluator", "program.py", name)
    for name, launch in launches.items():
        assert launch.end() == 0, launch.err
        launch.wait_gone()
        assert f"weight {-sum(range(1, 121)) // 3}\n" in launch.out, name
        noted = [path.read_text().split() for path in (launcher.folder / name).iterdir()]
        assert sorted(int(line) for lines in noted for line in lines) == list(range(1, 121)), name
        assert len(noted) == 3, "all of them read"
