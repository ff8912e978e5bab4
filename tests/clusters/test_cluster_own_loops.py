"""A loop of the program's own over several workers, under a launcher."""

import re
from pathlib import Path

from clusters import own_loop
from strategies.shipped import mirrored

PROGRAM = Path(own_loop.__file__)


def test_workers_have_the_bits_of_threads_and_the_evaluator_ends(launcher):
    launch = launcher.start("--strategy", "multi_worker_mirrored", "--workers", "2", PROGRAM)
    assert launch.end() == 0, launch.err
    launch.wait_gone()
    expected = " ".join(own_loop.run(mirrored(3)))
    two_models = own_loop.told(*own_loop.run_two_models(mirrored(3))[:2])
    for task in ("chief:0", "worker:0", "worker:1"):
        assert f"task {task.replace(':', ' ')} 2\n" in launch.log(task)
        assert f"losses {expected}\n" in launch.log(task)
        assert f"two models {two_models}\n" in launch.log(task)
    assert "the evaluator ends" in launch.log("evaluator:0")
    assert re.search(r"succeeded after .* s at step 5$", launch.err, re.MULTILINE)


def test_a_replica_that_dies_in_a_loop_ends_the_run_and_is_the_cause(launcher):
    """It would be started again, and would find nobody."""
    words = ("--strategy", "multi_worker_mirrored", "--workers", "2", "--no-evaluator")
    launch = launcher.start(*words, PROGRAM, "worker:1")
    assert launch.end() == 137, launch.err
    launch.wait_gone()
    assert (
        "worker:1 failed: killed by SIGKILL (signal 9); stopping the others, as a loop of the program's own needs "
        "every replica"
    ) in launch.err
    assert "training continues" not in launch.err
    assert "restarting" not in launch.err
    assert re.search("─  worker:1 failed at ", launch.err)


FAILS_BEFORE = """
import numpy as np
import dtrain as dt

strategy = dt.get_strategy()
if strategy.is_leader:
    raise ValueError("no such data")
with strategy.scope():
    dt.Variable(np.float32(0))
"""


def test_a_replica_that_fails_before_the_loop_ends_those_who_wait_for_it(launcher):
    program = launcher.folder / "program.py"
    program.write_text(FAILS_BEFORE)
    words = ("--strategy", "multi_worker_mirrored", "--workers", "2", "--no-evaluator", "--timeout", "50")
    launch = launcher.start(*words, program)
    assert launch.end() == 1, launch.err
    launch.wait_gone()
    assert re.search("─  chief:0 failed at ", launch.err)
    assert (
        "ValueError: no such data; stopping the others, as a loop of the program's own needs every"
        in launch.err
    )
