"""What local steps cost in accuracy: `python tests/strategies/measured_local_steps.py FILE [--task digits|cnn|recommender]`. Not a
test itself.

Eight replicas and a server in one process train on so many examples that count: the digits, 64-64-10 with Adam; a small
network with convolutions on MNIST (`--data` has a folder of its four files); or the ratings of examples/recommender.py by a table
and Adagrad. A line of JSON a run goes into FILE; the same command goes on where it was stopped, and prints a table of medians at its
end: accuracies on what was held out, and of the recommender the error.
"""

import argparse
import contextlib
import gzip
import io
import json
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path[0] = str(Path(__file__).parents[1])
sys.path.append(str(Path(__file__).parents[2] / "examples"))

from digits import load_digits  # noqa: E402
from in_memory import InMemoryCluster  # noqa: E402
from recommender import FILMS, ratings  # noqa: E402

import dtrain as dt  # noqa: E402
from dtrain.config import OuterSection  # noqa: E402

REPLICAS, H = 8, 20
QUORUM = {"local_steps": H, "backup_workers": 2}
USERS = 8000
LOSS = dt.losses.SparseCategoricalCrossentropy(from_logits=True)


class Task(NamedTuple):
    """What is trained.

    Attributes:
        build: makes the compiled model of a learning rate.
        load: makes the examples to train on and those held out, of a folder.
        rates: three, of which the one in the middle is the best without local steps.
        of_one: examples of a batch that are one replica's.
    """

    build: object
    load: object
    rates: tuple[float, float, float]
    of_one: int
    examples: int


def dense(rate):
    layers = [
        dt.layers.Dense(64, activation="relu", input_shape=(64,)),
        dt.layers.Dense(64, activation="relu"),
    ]
    model = dt.Sequential([*layers, dt.layers.Dense(10)])
    model.compile(dt.optimizers.Adam(rate), LOSS, metrics=["accuracy"])
    return model


def cnn(rate):
    layers = [
        dt.layers.Conv2D(8, 3, strides=2, activation="relu", input_shape=(28, 28, 1)),
        dt.layers.Flatten(),
    ]
    model = dt.Sequential([*layers, dt.layers.Dense(32, activation="relu"), dt.layers.Dense(10)])
    model.compile(dt.optimizers.Adam(rate), LOSS, metrics=["accuracy"])
    return model


def recommender(rate):
    table = dt.layers.Embedding(FILMS + USERS, 16, input_shape=(2,))
    model = dt.Sequential([table, dt.layers.Flatten(), dt.layers.Dense(1)])
    model.compile(dt.optimizers.Adagrad(rate), loss="mse", metrics=["mse"])
    return model


def mnist(folder):
    """Read the images and labels of a folder with MNIST's four files."""
    found = []
    for kind in ("train", "t10k"):
        images, labels = (next(Path(folder).glob(f"{kind}*{what}*")) for what in ("images", "labels"))
        pixels = np.frombuffer(gzip.decompress(images.read_bytes())[16:], np.uint8).reshape(-1, 28, 28, 1)
        found.append(
            (
                pixels.astype(np.float32) / 255,
                np.frombuffer(gzip.decompress(labels.read_bytes())[8:], np.uint8).astype(np.int64),
            )
        )
    return found


def rated(folder):
    return ratings(USERS, 100_000, seed=0), ratings(USERS, 20_000, seed=1)


TASKS = {
    "digits": Task(dense, lambda folder: load_digits(), (1e-3, 3e-3, 8e-3), 32, 200_000),
    "cnn": Task(cnn, mnist, (1e-3, 3e-3, 8e-3), 32, 200_000),
    "recommender": Task(recommender, rated, (0.1, 0.3, 0.6), 32, 400_000),
}


def runs_of(rates):
    """The settings and the rate of each run, by name."""
    low, middle, _ = rates
    runs = {f"sync, rate {rate:g}": ({}, rate) for rate in rates}
    for rate in rates:
        runs[f"mean, H = 20, rate {rate:g}"] = {"local_steps": H}, rate
        runs[f"quorum 6, mean, rate {rate:g}"] = QUORUM, rate
    runs |= {
        f"quorum 6, DiLoCo, rate {rate:g}": ({**QUORUM, "outer": OuterSection()}, rate)
        for rate in (low, middle)
    }
    runs[f"quorum 6, rda, rate {middle:g}"] = {**QUORUM, "merge": "rda"}, middle
    delayed = {"updates": "async", "local_steps": H, "outer": OuterSection(delayed=True)}
    runs[f"async, delayed Nesterov, rate {middle:g}"] = delayed, middle
    return runs


def measured(task, data, seed, settings, rate):
    """Train, and return the last number of the evaluation on what was held out."""
    (x, y), test = data
    parts = REPLICAS - settings.get("backup_workers", 0) if settings.get("updates") != "async" else 1
    steps = task.examples // (task.of_one * parts)

    def body(model):
        examples = dt.data.Dataset.from_tensor_slices((x, y)).shuffle(len(y), seed=seed).repeat()
        model.fit(examples.batch(task.of_one * parts), epochs=1, steps_per_epoch=steps, verbose=0)
        return model.evaluate(*test, verbose=0)[1] if model.strategy.is_leader else None

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        cluster = InMemoryCluster(Path(folder), REPLICAS, 1, seed=seed, **settings)
        return float(cluster.run(partial(task.build, rate), body)[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--data", metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="runs whose names contain this")
    args = parser.parse_args()
    task = TASKS[args.task]
    data = task.load(args.data)
    runs = {name: run for name, run in runs_of(task.rates).items() if args.only in name}
    lines = [json.loads(line) for line in args.file.read_text().splitlines()] if args.file.exists() else []
    known = {(line["run"], line["seed"]): line["found"] for line in lines}
    for seed in range(args.seeds):
        for run, (settings, rate) in runs.items():
            if (run, seed) not in known:
                known[run, seed] = found = measured(task, data, seed, settings, rate)
                with args.file.open("a") as file:
                    file.write(json.dumps({"run": run, "seed": seed, "found": found}) + "\n")
    for run in runs:
        every = [known[run, seed] for seed in range(args.seeds)]
        print(f"{run:40} {statistics.median(every):.4f} ({min(every):.4f} - {max(every):.4f})")


if __name__ == "__main__":
    main()
