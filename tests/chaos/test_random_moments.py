"""kill -9 and SIGSTOP of every role at moments drawn from a seed: training ends as planned, nothing counts
twice, nothing is left.

DTRAIN_CHAOS=N runs N seeds, DTRAIN_CHAOS=FROM:TO those.
"""

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest
from chaos.counting import ONE_UPDATE
from chaos.seeds import seeds
from clusters.watching import report_of, succeeded

from dtrain import checkpoints

USUAL_RUN = 5
STEPS = 60
COUNTING = str(Path(__file__).parent / "counting.py")
PAUSE_S = {"chief": 3.0, "worker": 8.0, "evaluator": 3.0}
"""How long at most; a server that stands still is killed when its lease is over."""


@dataclass(frozen=True)
class Blow:
    """So long after the last one, a task is killed (None) or paused."""

    after_s: float
    task: str
    pause_s: float | None

    def __str__(self) -> str:
        until = "it is killed" if self.task.startswith("ps") else f"{self.pause_s or 0:.1f} s are over"
        return (
            f"after {self.after_s:.2f} s {self.task} "
            f"{'killed' if self.pause_s is None else f'stopped until {until}'}"
        )


def draw(seed):
    """The words of a launch, and what happens to it."""
    random = Random(seed)
    servers = random.choice([1, 2, 2])
    rule = random.choice([("async",), ("sync",), ("sync", "--backup-workers", "1")])
    tasks = [
        "chief:0",
        "worker:0",
        "worker:1",
        "evaluator:0",
        *(f"ps:{index}" for index in range(servers)),
    ] + ["ps:0"] * 2
    blows = []
    for _ in range(random.choice([1, 2, 3])):
        task = random.choice(tasks)
        role = task.partition(":")[0]
        pause_s = random.uniform(0.1, PAUSE_S.get(role, 1.0)) if random.random() < 0.3 else None
        blows.append(Blow(random.uniform(0.0, 1.5), task, pause_s))
    ways = random.choice(["local", "grpc"]), random.choice([2, 3])
    settings = f"training.transport={ways[0]}", f"training.partitioner={{fixed_shards: {ways[1]}}}"
    sets = [word for setting in settings for word in ("--set", setting)]
    return ("--workers", "2", "--ps", str(servers), "--updates", *rule, *sets), blows


def strike(launch, blow):
    """Do it to the attempt that runs then, if any does; whether it was done."""
    time.sleep(blow.after_s)  # the moment is the point
    task = launch.task(blow.task)
    if (
        launch.process.poll() is not None
        or task["state"] not in ("starting", "running")
        or task["pid"] is None
    ):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.killpg(task["pid"], signal.SIGKILL if blow.pause_s is None else signal.SIGSTOP)
        if blow.pause_s is not None and not blow.task.startswith("ps"):
            time.sleep(blow.pause_s)
            os.killpg(task["pid"], signal.SIGCONT)
        return True
    return False


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", seeds(USUAL_RUN))
def test_training_ends_as_planned_whoever_is_killed_or_stands_still(launcher, seed):
    words, blows = draw(seed)
    roles = ("chief", "worker", "ps", "evaluator")
    restarts = [word for role in roles for word in ("--set", f"restart.{role}={{max: 9, backoff_s: 0.1}}")]
    pace_s = 0.15 if "async" in words else 0.05  # there every replica's step counts
    program = (COUNTING, "--steps", str(STEPS), "--pace_s", str(pace_s))
    launch = launcher.start(*words, *restarts, "--set", "checkpoint.every_steps=6", *program)
    launch.wait_for(lambda: launch.record()["state"] == "running", "all tasks up")
    struck = [blow for blow in blows if strike(launch, blow)]
    print(f"seed {seed}: {' '.join(words)}; {', '.join(map(str, struck)) or 'too late for anything'}")
    succeeded(launch)
    assert "PeerRefusedError" not in launch.err, "no server may refuse a task of the run"

    report = report_of(launch.run_dir)
    assert (report["global_step"], report["state"]) == (STEPS, "succeeded")
    lost = re.findall(
        r"every server goes back from step (\d+) to the checkpoint of step (\d+)", launch.out + launch.err
    )
    assert report["rolled_back_steps"] == sum(int(reached) - int(saved) for reached, saved in lost)
    with checkpoints.open_checkpoint(launch.run_dir / "checkpoints") as saved:
        counts = {name: np.unique(saved.read(name)) / ONE_UPDATE for name in saved.variables}
        first = saved.read(next(iter(counts))).flat[0] / ONE_UPDATE
    assert saved.step == STEPS
    # Every server applies an asynchronous push when it comes: a death may fall between two servers, for all
    # that are under way.
    halved = 3 * len(struck) if "async" in words else 0
    assert first == STEPS, f"{first} updates were applied in {STEPS} steps"
    assert all((abs(found - STEPS) <= halved).all() for found in counts.values()), counts
    print(f"seed {seed}: {report['rolled_back_steps']} steps made again")
