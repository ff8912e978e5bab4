"""What local steps cost in accuracy: `python tests/strategies/measured_local_steps.py FILE [--seeds N]`. Not a test itself.

Eight replicas and a server in one process train the digits, 64-64-10 with Adam, on so many examples that count. A line of
JSON a run goes into FILE; the same command goes on where it was stopped, and prints a table of medians at its end.
"""

import argparse
import contextlib
import io
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])
sys.path.append(str(Path(__file__).parents[2] / "examples"))

from digits import load_digits  # noqa: E402
from in_memory import InMemoryCluster  # noqa: E402

import dtrain as dt  # noqa: E402
from dtrain.config import OuterSection  # noqa: E402

REPLICAS, OF_ONE, EXAMPLES, H = 8, 32, 200_000, 20
QUORUM = {"local_steps": H, "backup_workers": 2}
RUNS = {
    **{f"sync, rate {rate:g}": ({}, rate) for rate in (1e-3, 3e-3, 8e-3)},
    **{f"mean, H = 20, rate {rate:g}": ({"local_steps": H}, rate) for rate in (1e-3, 3e-3)},
    **{f"quorum 6, mean, rate {rate:g}": (QUORUM, rate) for rate in (1e-3, 3e-3)},
    **{
        f"quorum 6, DiLoCo, rate {rate:g}": ({**QUORUM, "outer": OuterSection()}, rate)
        for rate in (1e-3, 3e-3)
    },
    "quorum 6, rda, rate 0.003": ({**QUORUM, "merge": "rda"}, 3e-3),
    "async, delayed Nesterov, rate 0.003": (
        {"updates": "async", "local_steps": H, "outer": OuterSection(delayed=True)},
        3e-3,
    ),
}


def accuracy(seed, settings, rate):
    """Train, and return the accuracy on the images held out."""
    (x, y), test = load_digits()
    parts = REPLICAS - settings.get("backup_workers", 0) if settings.get("updates") != "async" else 1
    steps = EXAMPLES // (OF_ONE * parts)

    def build():
        layers = [
            dt.layers.Dense(64, activation="relu", input_shape=(64,)),
            dt.layers.Dense(64, activation="relu"),
        ]
        model = dt.Sequential([*layers, dt.layers.Dense(10)])
        loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(dt.optimizers.Adam(rate), loss, metrics=["accuracy"])
        return model

    def body(model):
        data = (
            dt.data.Dataset.from_tensor_slices((x, y))
            .shuffle(len(y), seed=seed)
            .repeat()
            .batch(OF_ONE * parts)
        )
        model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0)
        return model.evaluate(*test, verbose=0)[1] if model.strategy.is_leader else None

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        return InMemoryCluster(Path(folder), REPLICAS, 1, seed=seed, **settings).run(build, body)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.file.read_text().splitlines()] if args.file.exists() else []
    known = {(line["run"], line["seed"]): line["accuracy"] for line in lines}
    for seed in range(args.seeds):
        for run, (settings, rate) in RUNS.items():
            if (run, seed) not in known:
                known[run, seed] = found = accuracy(seed, settings, rate)
                with args.file.open("a") as file:
                    file.write(json.dumps({"run": run, "seed": seed, "accuracy": found}) + "\n")
    for run in RUNS:
        every = [known[run, seed] for seed in range(args.seeds)]
        print(f"{run:40} {statistics.median(every):.4f} ({min(every):.4f} - {max(every):.4f})")


if __name__ == "__main__":
    main()
