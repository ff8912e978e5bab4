"""How good the automatic cut of a pipeline is: `python tests/clusters/measured_cuts.py FILE`. Not a test itself.

Layers sleep, so that cores do not decide: those of a convolutional network as long as its layers have taken on one core
(`dt.profile`, microbatches of 16), and some of random lengths. Every cut into two and three stages is launched, and planned;
so are the automatic one and that by parameters. A line of JSON a run goes into FILE; the same command goes on where it was stopped.
It prints the steps per second of the automatic cut by those of the best one, how much each cut gains beside one stage, and what
`dtrain plan` has predicted by what was measured then.
"""

import argparse
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DTRAIN = str(Path(sys.executable).with_name("dtrain"))
MICROBATCHES, STEPS, WARM, END_S = 8, 5, 1, 120.0
WHOLE_MS = 160.0
"""What a microbatch takes in all layers."""
CNN = [
    (2.29, 2.6, 3.6),
    (8.52, 36.7, 37.0),
    (3.87, 10.1, 74.0),
    (9.16, 24.7, 148.0),
    (2.47, 5.38, 8400.0),
    (0.15, 0.304, 1100.0),
    (0.014, 0.023, 20.5),
]
"""Milliseconds forward and back, and kilobytes of parameters; a pooling belongs to the convolution in front of it."""
CHANCE = random.Random(7)
UNEVEN = [(own := CHANCE.uniform(1, 10), 2 * own, 1 / own) for _ in range(7)]
MODELS = {"cnn": CNN, "uneven": UNEVEN}


def program(name):
    """What every task runs."""
    import numpy as np

    import dtrain as dt

    costs = MODELS[name]
    scale = WHOLE_MS / sum(forward + back for forward, back, _ in costs) / 1000

    class Sleeps(dt.layers.Layer):
        def declare(self, input_shape):
            return [dt.layers.Weight("scale", (1,), "ones")]

        def output_shape(self, input_shape):
            return input_shape

        def forward(self, weights, x, call):
            time.sleep(self.taken_s[0])
            return x * weights["scale"], x

        def backward(self, weights, x, dy, gradients, call):
            time.sleep(self.taken_s[1])
            gradients["scale"][...] = (dy * x).sum()
            return dy * weights["scale"]

    ends = []

    class Times(dt.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ends.append(time.monotonic())

    strategy = dt.get_strategy()
    with strategy.scope():
        model = dt.Sequential()
        for number, (forward, back, _) in enumerate(costs):
            layer = Sleeps(name=f"layer_{number}", **({} if number else {"input_shape": (4,)}))
            layer.taken_s = scale * forward, scale * back
            model.add(layer)
        model.compile(dt.optimizers.SGD(1e-6), "mse")
    x = np.ones((2 * MICROBATCHES, 4), np.float32)
    data = dt.data.Dataset.from_tensor_slices((x, x)).batch(len(x)).repeat()
    model.fit(data, epochs=1, steps_per_epoch=STEPS, verbose=0, callbacks=[Times()])
    if strategy.is_leader:
        print("steps per second", (STEPS - WARM) / (ends[-1] - ends[WARM - 1]), flush=True)


def ran(command, name, stages, begins):
    """Run a command of dtrain on a model that is cut in front of some layers, or automatically."""
    named = "auto" if begins is None else f"[{', '.join(f'layer_{each}' for each in begins)}]"
    words = ("--strategy", "pipeline", "--no-evaluator", "--workers", str(stages - 1))
    settings = ("--set", f"training.stages={named}", "--set", f"training.microbatches={MICROBATCHES}")
    with tempfile.TemporaryDirectory() as folder:
        line = [DTRAIN, *command, *words, *settings, "--run-dir", f"{folder}/run", __file__, "program", name]
        done = subprocess.run(line, capture_output=True, text=True, timeout=END_S, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def measured(name, stages, begins):
    launched = ran(["launch"], name, stages, begins)
    planned = json.loads(ran(["plan", "--json"], name, stages, begins))["pipeline"]
    chosen = [int(stage["layers"][0].removeprefix("layer_")) for stage in planned["stages"]]
    found = float(re.findall(r"steps per second ([\d.]+)", launched)[-1])
    return {"found": found, "planned": planned["steps_per_s"], "chosen": chosen}


def by_parameters(costs, stages):
    """The cut whose stage with the most parameters has the fewest."""
    every = [(0, *others) for others in itertools.combinations(range(1, len(costs)), stages - 1)]

    def most(begins):
        ends = (*begins[1:], len(costs))
        return max(sum(each[2] for each in costs[a:b]) for a, b in zip(begins, ends, strict=True))

    return min(every, key=most)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.file.read_text().splitlines()] if args.file.exists() else []
    known = {
        (line["model"], line["stages"], line["begins"] and tuple(line["begins"])): line for line in lines
    }

    def measure(name, stages, begins):
        if (name, stages, begins) not in known:
            line = {"model": name, "stages": stages, "begins": begins, **measured(name, stages, begins)}
            known[name, stages, begins] = line
            with args.file.open("a") as file:
                file.write(json.dumps({**line, "load": os.getloadavg()[0]}) + "\n")
        return known[name, stages, begins]

    for name, costs in MODELS.items():
        one = measure(name, 1, (0,))["found"]
        for stages in (2, 3):
            others = itertools.combinations(range(1, len(costs)), stages - 1)
            found = {begins: measure(name, stages, begins) for begins in ((0, *each) for each in others)}
            automatic = measure(name, stages, None)
            best = max(found, key=lambda begins: found[begins]["found"])
            # The automatic cut is one of all, which was measured as they were.
            same = found[tuple(automatic["chosen"])]["found"]
            rates = {"auto": same, "best": found[best]["found"]}
            rates["parameters"] = found[by_parameters(costs, stages)]["found"]
            gains = ", ".join(f"{which} {rate / one:.2f} x" for which, rate in rates.items())
            print(
                f"{name}, {stages} stages: auto/best {same / rates['best']:.3f} of {len(found)} cuts; {gains}"
            )
            ratios = [line["planned"] / line["found"] for line in (*found.values(), automatic)]
            print(
                f"  predicted by measured: {min(ratios):.3f} to {max(ratios):.3f}, median {statistics.median(ratios):.3f}"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["program"]:
        program(sys.argv[2])
    else:
        main()
