"""`BatchNormalization(synchronized=True)` in replicas that are processes: the sums of threads, whoever dies."""

import re

import pytest
from clusters.test_cluster_replicas import BITS, QUICKLY, REPLICAS, TOLD, nothing_is_shared, told
from clusters.watching import succeeded
from launching import Launcher

WORDS = (TOLD, "--synchronized", "--rows", "97", "--epochs", "2")
"""The last of 9 batches has one example, so that two of three replicas have none of it."""
NEVER = tuple(word for role in ("chief", "worker") for word in ("--set", f"restart.{role}.policy=never"))
THREADS = ("--strategy", "mirrored", "--no-evaluator", "--set", "training.replicas=3", *BITS)


def numbers(launch, tasks):
    succeeded(launch)
    nothing_is_shared(launch)
    return [told(launch, what, tasks) for what in ("history", "weights")]


@pytest.fixture(scope="module")
def of_threads(tmp_path_factory):
    launcher = Launcher(tmp_path_factory.mktemp("threads"))
    yield numbers(launcher.start(*THREADS, *WORDS), ["chief:0"])
    launcher.close()


@pytest.mark.parametrize(
    ("deaths", "restarts"),
    [
        ([("worker:1", 5), ("chief:0", 12)], NEVER),  # one replica is left for three parts
        ([("worker:0", 7), ("chief:0", 10)], QUICKLY),
    ],
    ids=["for-good", "and-come-back"],
)
def test_deaths_within_the_sums_of_a_step_change_no_bit(launcher, of_threads, deaths, restarts):
    """Before and after a value was given, in the passes forward and back."""
    words = [word for task, moment in deaths for word in ("--die", task, str(moment))]
    launch = launcher.start("--workers", "2", *REPLICAS, *BITS, *restarts, *WORDS, *words)
    dead = {task for task, _ in deaths}
    assert numbers(launch, [task for task in ("worker:0", "worker:1") if task not in dead]) == of_threads
    for task, _ in deaths:
        assert re.search(rf"{task} .*killed by SIGKILL", launch.err)
