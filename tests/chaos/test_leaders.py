"""kill -9 of replicas that reduce among themselves, the leader first of all, at moments drawn from a seed: in
a gradient, a validation, a callback, on the way to the disk, or at any time from outside. Every run ends with
the numbers, files and weights of one to which nothing has happened, and nothing is left.

DTRAIN_CHAOS=N runs N seeds, DTRAIN_CHAOS=FROM:TO those.
"""

import contextlib
import os
import signal
import time
from random import Random

import pytest
from chaos.seeds import seeds
from clusters.test_cluster_leaders import PROGRAM, REPLICAS, WORDS, outcome, told
from launching import Launcher

USUAL_RUN = 5
MOMENTS = {"step": 40, "validation": 12, "begin": 6, "end": 6, "saving": 40}
"""How many of each a run has, about."""


def draw(seed):
    """The deaths of a run by its tasks' own hand, by task, and those from outside: (seconds, task).

    One task lives throughout: what callbacks have noted is nowhere else.
    """
    random = Random(seed)
    mortal = ("chief:0", random.choice(REPLICAS[1:]))
    deaths = []
    for task in mortal[: random.choice([1, 2, 2])]:
        moment = random.choice(sorted(MOMENTS))
        deaths.append((task, moment, random.randint(1, MOMENTS[moment])))
    outside = [(random.uniform(0.0, 2.0), random.choice(mortal)) for _ in range(random.choice([0, 0, 1]))]
    return deaths, outside


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    launcher = Launcher(tmp_path_factory.mktemp("calm"))
    yield outcome(launcher, launcher.start(*WORDS, PROGRAM), {})
    launcher.close()


@pytest.mark.parametrize("seed", seeds(USUAL_RUN))
def test_whoever_dies_whenever_the_run_is_the_same(launcher, calm, seed):
    deaths, outside = draw(seed)
    words = [word for death in deaths for word in ("--die", *map(str, death))]
    launch = launcher.start(*WORDS, "--set", "restart.chief.max=3", PROGRAM, *words)
    for after_s, task in outside:
        launch.wait_for(lambda task=task: told(launch, task, "pid") is not None, f"{task} is there")
        time.sleep(after_s)  # the moment is the point
        pid = told(launch, task, "pid")
        if pid is not None and launch.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    assert launch.end() == 0, (deaths, outside, launch.err)
    attempts = {task: told(launch, task, "restarts") for task in REPLICAS}
    weights, history, noted, files = outcome(launcher, launch, attempts)
    assert (weights, history, files) == (calm[0], calm[1], calm[3]), (deaths, outside)
    # A leader that has died behind its last callback, when all is said and saved, has told nothing.
    late = outside or any(moment == "saving" for _, moment, _ in deaths)
    assert noted == calm[2] or (late and not noted), (deaths, outside)
