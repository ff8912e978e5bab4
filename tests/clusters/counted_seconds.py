"""A program whose every part costs a known time, and which counts for itself where its time goes. Not a test itself.

It appends a line for each thing that it does to `parts-TASK-ATTEMPT.jsonl` in its working directory: when a part
began, when it ended, when the process killed itself in the midst of one, when `fit` had ended. In the weights
every batch has an element of its own that grows each time the batch is applied; the leader writes them to
`weights.json`.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import numpy as np

import dtrain as dt


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--parts", type=int, default=1, help="of a step; each is one row")
    parser.add_argument("--cost_s", type=float, default=0.05)
    parser.add_argument("--slow", default="", help="a task whose parts cost four times as much: worker:1")
    parser.add_argument("--die", default="", help="who is killed in the midst of which part: worker:1@5")
    args = parser.parse_args()
    place = json.loads(os.environ["TF_CONFIG"])["task"]
    task, attempt = f"{place['type']}:{place['index']}", int(os.environ.get("DTRAIN_ATTEMPT", "0"))
    victim, _, fatal = args.die.partition("@")
    rows = 4 * args.steps * args.parts  # so many that none has its turn again
    cost_s = args.cost_s * (4 if task == args.slow else 1)
    path = Path(f"parts-{task.replace(':', '-')}-{attempt}.jsonl")
    made = 0

    def tell(what, at_s, batch=-1):
        with path.open("a") as file:
            file.write(json.dumps([what, at_s, batch]) + "\n")

    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # see proc_pid_stat(5)
    lived_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    tell("born", time.monotonic() - lived_s)

    def gradients(weights, x, y):
        nonlocal made
        made += 1
        batch, begun_s = int(x[0]), time.monotonic()
        tell("begun", begun_s, batch)
        if task == victim and attempt == 0 and made == int(fatal):
            time.sleep(cost_s / 2)
            tell("killed", time.monotonic(), batch)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(max(0.0, begun_s + cost_s - time.monotonic()))
        mine = np.zeros(rows, np.float32)
        mine[batch] = -1.0
        tell("ended", time.monotonic(), batch)
        return 0.0, {"counts": mine}

    model = dt.from_function(lambda rng: {"counts": np.zeros(rows, np.float32)}, gradients)
    model.compile(dt.optimizers.SGD(float(args.parts)))  # a step applies the mean of its parts
    numbers = np.arange(rows, dtype=np.float32)
    data = dt.data.Dataset.from_tensor_slices((numbers, numbers)).batch(args.parts)
    model.fit(data, steps_per_epoch=args.steps, verbose=0)
    tell("fitted", time.monotonic())
    if model.strategy.is_leader:
        Path("weights.json").write_text(json.dumps(np.asarray(model.arrays["counts"]).tolist()))


if __name__ == "__main__":
    main()
