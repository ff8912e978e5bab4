"""The functions and files that tasks of a real run pass while a file is there: a profile of every thread of each task.

`PROBE` is what every interpreter does as it starts, in a file `sitecustomize.py`. The program below makes that file
in a step of the middle, and goes on when all tasks have seen it. Lambdas and comprehensions are no functions here.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

PROBE = """
import json, os, sys, threading, time

on, seen = False, set()

def profile(frame, event, argument):
    if on and event == "call":
        code = frame.f_code
        if "/dtrain" in code.co_filename and "site-packages" not in code.co_filename and "<" not in code.co_name:
            seen.add((code.co_filename, code.co_qualname))

def watch():
    global on
    folder = os.environ["WALKED"]
    while not on:
        time.sleep(0.0005)
        on = os.path.exists(folder + "/go") and "DTRAIN_TASK" in os.environ
    task = os.environ["DTRAIN_TASK"]
    open(f"{folder}/on-{task}", "w").close()
    while os.path.exists(folder + "/go"):
        time.sleep(0.0005)
    on = False
    with open(f"{folder}/writing-{task}", "w") as file:
        json.dump(sorted(seen), file)
    os.rename(file.name, f"{folder}/walk-{task}")

def start():
    threading.setprofile(profile)
    sys.setprofile(profile)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()

if "WALKED" in os.environ:
    os.register_at_fork(after_in_child=start)
    start()
"""
BATCH = 6
FIRST, STEPS = 20, 3
"""The first step that is walked, and how many."""
ARITHMETIC = ("learning", "data")
"""The rooms of the runtime that a walk leaves out: what is computed, not how a step is made."""
PATIENCE_S = 60.0


def wrapper(folder):
    """What runs a command whose tasks are profiled; `folder` is empty, and theirs."""
    (folder / "sitecustomize.py").write_text(PROBE)
    found = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return ("env", f"WALKED={folder}", f"PYTHONPATH={found}")


def walks(folder, *tasks):
    """Return what some tasks together have passed: functions and files, without arithmetic."""
    functions = {tuple(each) for task in tasks for each in json.loads((folder / f"walk-{task}").read_text())}
    rooms = tuple(f"/dtrain/{room}/" for room in ARITHMETIC)
    functions = {(file, name) for file, name in functions if not any(room in file for room in rooms)}
    return sorted(functions), sorted({file for file, _ in functions})


def main():
    import numpy as np

    import dtrain as dt

    parser = argparse.ArgumentParser()
    parser.add_argument("--begins", required=True, help="the task that begins the walk")
    parser.add_argument("--tasks", type=int, required=True, help="how many are profiled")
    parser.add_argument("--dies", action="store_true", help="it is killed in the first step that is walked")
    args = parser.parse_args()
    folder, task = Path(os.environ["WALKED"]), os.environ["DTRAIN_TASK"]
    go, begins = folder / "go", task == args.begins

    def meet(pattern, count):
        until_s = time.monotonic() + PATIENCE_S
        while len(list(folder.glob(pattern))) < count and time.monotonic() < until_s:
            time.sleep(0.001)

    class Walked(dt.Sequential):
        def train_step(self, step):
            at = int(step.x[0, 0]) // BATCH
            if at == FIRST and begins and not go.exists():
                go.touch()
            if at == FIRST and (begins or args.dies):
                meet("on-*", args.tasks)
            if at == FIRST and begins and args.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            if at == FIRST + (1 if args.dies else STEPS) and (begins or args.dies) and go.exists():
                (folder / f"past-{task}").touch()
                meet("past-*", args.tasks - 1 if args.dies else 1)
                go.unlink(missing_ok=True)
            return super().train_step(step)

    with dt.get_strategy().scope():
        model = Walked([dt.layers.Input((8,)), dt.layers.Dense(16, "relu"), dt.layers.Dense(1)])
        model.compile(dt.optimizers.Adagrad(0.05), "mse")
    x = np.random.default_rng(0).normal(size=(40 * BATCH, 8)).astype(np.float32)
    x[:, 0] = np.arange(len(x))  # by which a step knows its batch, whoever computes which part
    model.fit(x, x.sum(axis=1, keepdims=True), batch_size=BATCH, shuffle=False, verbose=0)


if __name__ == "__main__":
    main()
