"""Cables that are pulled for 1 to 30 s: `python tests/hosts/cuts.py N FILE [--from SEED]` makes N runs over four hosts of
its own, one after the other, and writes a line of JSON for each into FILE. The same command goes on where it was
stopped. It needs root; several may run at once. At the end there is a table, and the exit code is 1 if a replica was lost
for good, a step is not in the final weights once, or steps were rolled back.
"""

import argparse
import json
import random
import re
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from chaos.night import told_before
from failed_execs import start_again
from hosts.rig import Rig, missing
from launching import Launch, Launcher, wait_until

HOSTS = ("h1", "h2", "h3", "h4")
CUTS_S = (1.0, 30.0)
END_S = 400.0
SERVERS = ("--workers", "3", "--ps", "2", "--no-evaluator")
WAYS = {
    "servers, async": (1200, (*SERVERS, "--updates", "async")),
    "servers, sync": (600, (*SERVERS, "--updates", "sync")),
    "mirrored": (
        1200,
        ("--workers", "3", "--ps", "0", "--no-evaluator", "--strategy", "multi_worker_mirrored"),
    ),
}
"""By strategy, for how many steps it trains, so that cuts fall into them, and its options."""
COUNTS = """
import itertools, time
import numpy as np
import dtrain as dt

def batches():
    for _ in itertools.count():
        time.sleep(0.05)
        yield np.ones((8, 1), np.float32), np.full((8, 1), 2, np.float32)

strategy = dt.get_strategy()
with strategy.scope():
    dense = dt.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = dt.Sequential([dt.layers.Input((1,)), dense])
    model.compile(optimizer=dt.optimizers.SGD(2.0**-20), loss="mae")  # each step adds 2**-20, exactly
model.fit(
    lambda context: dt.data.Dataset.from_generator(batches), epochs=1, steps_per_epoch=STEPS, verbose=0
)
if strategy.is_leader:
    print("counted", round(float(np.asarray(model.get_weights()[0]).sum()) * 2**20), flush=True)
"""


def drawn(seed):
    """The strategy of a seed and its cuts: how long after the one before, of which host, for how long."""
    chance = random.Random(seed)
    cuts = [(chance.uniform(1, 8), chance.choice(HOSTS), chance.uniform(*CUTS_S)) for _ in range(2)]
    return sorted(WAYS)[seed % len(WAYS)], cuts


def problems(launch, steps, code):
    """What is not as it should be at the end of a run."""
    counted = {int(number) for number in re.findall(r"counted (\d+)", launch.out)}
    report = launch.record()
    if code:
        yield f"exit code {code}"
    if counted != {steps}:
        yield f"{sorted(counted)} steps are in the weights"
    yield from (f"{task['task']} {task['state']}" for task in report["tasks"] if task["state"] != "succeeded")
    yield from (f"rolled back: {event}" for event in launch.events("rolled back"))


def one(rig, folder, seed):
    """Make one run, and return its line."""
    way, cuts = drawn(seed)
    steps, options = WAYS[way]
    place = folder / f"{seed}"
    place.mkdir()
    (place / "counts.py").write_text(COUNTS.replace("STEPS", str(steps)))
    words = ["--on", "ssh", "--hosts", ",".join(HOSTS), *options, str(place / "counts.py")]
    launcher = Launcher(place)
    launch = Launch(place, words, wrapper=rig.wrapper("h0"))
    launcher.launches.append(launch)
    begun_s = time.monotonic()
    try:
        launch.wait_running()
        for after_s, host, for_s in cuts:
            time.sleep(after_s)  # when, and for how long, is what this is about
            rig.cut(host)
            try:
                time.sleep(for_s)
            finally:
                rig.restore(host)
        code = launch.end(END_S)
    except AssertionError as error:
        return {"kind": "cuts", "seed": seed, "of": way, "cuts": cuts, "problems": [str(error)[:3000]]}
    finally:
        launcher.close()
    restarts = sum(task["restarts"] for task in launch.record()["tasks"])
    wait_until(
        lambda: not any("dtrain" in line for name in HOSTS for line in rig.processes(name).values()),
        "the hosts to be empty",
    )
    found = {
        "problems": list(problems(launch, steps, code)),
        "restarts": restarts,
        "took_s": time.monotonic() - begun_s,
    }
    return {"kind": "cuts", "seed": seed, "of": way, "cuts": cuts, **found, "err": launch.err[-3000:]}


def main(words):
    """Make the runs that have not been made, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, metavar="N")
    parser.add_argument("file", type=Path)
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED")
    args = parser.parse_args(words)
    if reason := missing():
        print(reason)
        return 2
    seeds = range(args.first, args.first + args.count)
    lines = told_before(args.file, "cuts")
    folder = Path(tempfile.mkdtemp(prefix="dtrain-cuts-"))
    with Rig(folder, len(HOSTS)) as rig:
        for seed in (seed for seed in seeds if seed not in lines):
            lines[seed] = one(rig, folder, seed)
            with args.file.open("a") as file:
                file.write(json.dumps(lines[seed]) + "\n")
            print(f"seed {seed}, {lines[seed]['of']}: {lines[seed]['problems'] or 'as promised'}", flush=True)
    for way in sorted(WAYS):
        made = [lines[seed] for seed in seeds if lines[seed]["of"] == way]
        good = sum(not line["problems"] for line in made)
        print(f"{way}: {good} of {len(made)}, {sum(line.get('restarts', 0) for line in made)} restarts")
    return int(any(lines[seed]["problems"] for seed in seeds))


if __name__ == "__main__":
    start_again()
    sys.exit(main(sys.argv[1:]))
