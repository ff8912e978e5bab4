"""Programs in the style of Keras's tutorials, of which only the import is another's, print what TensorFlow 2.15.1
prints; `reference_of_programs.py` has written that down. Under `dtrain launch` they print the same.
"""

import json
import os
import random
import re
from pathlib import Path

import pytest
from keras.test_programs import numbers_of_lines, same_lines

TUTORIALS = Path(__file__).parent / "tutorials"
PRINTED = json.loads((TUTORIALS / "printed.json").read_text())
OF_MATHEMATICS = {
    *("custom_training_loop", "custom_layer", "custom_losses_and_metrics", "transformer_block", "gan"),
    "recommender",
}
"""Programs with mathematics of their own; the others need nothing beside dtrain and the other import."""
WITHOUT_AUTOGRAD = """
import runpy, sys
sys.modules["autograd"] = None
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_there_are_as_many_as_were_asked_for():
    assert sorted(PRINTED) == sorted(path.stem for path in TUTORIALS.glob("*.py"))
    assert len(PRINTED) >= 24
    assert len(PRINTED.keys() - OF_MATHEMATICS) >= 18


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_alone_it_prints_what_it_prints_with_tensorflow(name, launcher):
    """Where it is said that a program needs no `autograd`, there is none."""
    program = [TUTORIALS / f"{name}.py"]
    if name not in OF_MATHEMATICS:
        wrapper = launcher.folder / "without_autograd.py"
        wrapper.write_text(WITHOUT_AUTOGRAD)
        program.insert(0, wrapper)
    command = launcher.run("-m", "dtrain.task", *program)
    assert command.end() == 0, command.err
    same_lines(command.out, PRINTED[name])


SERVERS = ("--strategy", "parameter_server", "--workers", "1", "--ps", "1", "--no-evaluator")
STRATEGIES = {
    "sync": (*SERVERS, "--updates", "sync"),
    "async": (*SERVERS, "--updates", "async"),
    "multi_worker_mirrored": ("--strategy", "multi_worker_mirrored", "--workers", "1", "--no-evaluator"),
    "mirrored": ("--strategy", "mirrored", "--set", "training.replicas=2"),
}
"""Two replicas each."""
NOT_ON = {
    # Loops of one's own without `strategy.run`: on a cluster every task would train for itself.
    **{name: set(STRATEGIES) for name in ("custom_training_loop", "gan")},
    # Each replica normalizes by its own part of the batch, as in TensorFlow.
    "subclassed_model": {*STRATEGIES},
    # Constraints need whole variables.
    "overfit_and_regularise": {"sync", "async", "multi_worker_mirrored"},
    # Its momentum makes of a step one of ten times its rate, too large for old gradients.
    "time_series_windows": {"async"},
    # What is the best of numbers that differ by chance, or found below a threshold, may differ.
    **{name: {"async"} for name in ("search", "autoencoder", "recommender", "sequence_to_sequence")},
}
LAUNCHES = [(name, how) for name in sorted(PRINTED) for how in STRATEGIES if how not in NOT_ON.get(name, ())]
BY_DAY = 4


SEED = int(os.environ.get("DTRAIN_PROGRAMS_SEED") or random.SystemRandom().randrange(10**6))
ALL = bool(os.environ.get("DTRAIN_PROGRAMS"))
CHOSEN = LAUNCHES if ALL else random.Random(SEED).sample(LAUNCHES, BY_DAY)


def without_warnings(text):
    """Drop warnings: the line of each, and the line of the program that follows."""
    return re.sub(r"^\S+: \w*Warning: .*\n(  .*\n)?", "", text, flags=re.MULTILINE)


def losses_fall(found, wanted):
    """A list of numbers that becomes less by a tenth becomes less here too.

    Asynchronous steps are made of gradients that are one step old. Gradient descent whose rate times curvature is
    well below 1 then still descends, and these programs' steps are as small.
    """
    return len(wanted) < 2 or wanted[-1] >= 0.9 * wanted[0] or found[-1] < found[0]


@pytest.mark.parametrize("number", range(len(CHOSEN)))
def test_under_launch_it_prints_the_same(number, launcher):
    """Some launches by day; with DTRAIN_PROGRAMS_SEED=N those of that seed, with DTRAIN_PROGRAMS=all each one."""
    name, how = CHOSEN[number]
    print(f"DTRAIN_PROGRAMS_SEED={SEED}", name, how)
    launch = launcher.start(*STRATEGIES[how], TUTORIALS / f"{name}.py")
    assert launch.end() == 0, launch.out + launch.err
    printed = without_warnings(launch.log("chief:0"))
    if how == "async":
        for line, (found, wanted) in zip(
            PRINTED[name], numbers_of_lines(printed, PRINTED[name]), strict=True
        ):
            assert losses_fall(found, wanted), f"{line}\n{printed}"
    else:
        same_lines(printed, PRINTED[name], rtol=2e-3)
