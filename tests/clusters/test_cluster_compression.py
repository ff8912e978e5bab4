"""Real clusters that compress: half the bytes, the same results on every transport, float32 in what is
kept.
"""

import re

from clusters.watching import DETERMINISTIC, report_of, succeeded, tasks_of

PROGRAM = """
import hashlib
import sys
import numpy as np
import dtrain as dt

rng = np.random.default_rng(0)
x, y = rng.integers(0, 4000, (640, 2)), rng.integers(0, 10, 640)
strategy = dt.get_strategy()
with strategy.scope():
    table = dt.layers.Embedding(4000, 32, input_shape=(2,))
    layers = [dt.layers.Dense(256, "relu"), dt.layers.Dense(300, "relu"), dt.layers.Dense(10)]
    model = dt.Sequential([table, dt.layers.Flatten(), *layers])
    loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=dt.optimizers.SGD(0.05), loss=loss)
model.fit(x, y, batch_size=32, epochs=1, steps_per_epoch=int(sys.argv[1]), verbose=0)
if strategy.is_leader:
    weights = model.get_weights()
    print("weights", hashlib.sha256(b"".join(value.tobytes() for value in weights)).hexdigest())
    print("narrow", sum(bool((value.view(np.uint16)[..., ::2] == 0).all()) for value in weights if value.any()))
    print("dense bytes", sum(value.nbytes for value in weights if value.shape != (4000, 32)))
"""


def test_the_same_results_bit_for_bit_in_fewer_bytes(launcher):
    (launcher.folder / "mixed.py").write_text(PROGRAM)
    found = set()
    for words in (
        ("training.transport=grpc",),
        ("training.transport=local", "training.partitioner={fixed_shards: 2}"),
    ):
        sets = [part for word in ("training.compression=bf16", *words) for part in ("--set", word)]
        launch = launcher.start(*DETERMINISTIC, *sets, "mixed.py", "20")
        succeeded(launch)
        printed = re.search(r"^weights (\w+)\nnarrow 0\ndense bytes (\d+)$", launch.log("chief:0"), re.M)
        assert printed, "what a fit ends with is float32"
        found.add(printed[1])
        worker = tasks_of(report_of(launch.run_dir))["worker:0"]
        whole = 20 * (int(printed[2]) + 32 * 2 * 32 * 4)
        assert worker["bytes_sent"] / whole < 0.55
        assert worker["bytes_received"] / whole < 0.55
    assert len(found) == 1
