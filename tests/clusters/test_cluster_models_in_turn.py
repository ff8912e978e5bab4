"""A model's optimizer state is the model's own, on real clusters."""

from pathlib import Path

import pytest

PROGRAM = str(Path(__file__).parent / "models_in_turn.py")
ALL_HOLD = "PROMISES {'in turn': True, 'the other': True, 'saved and loaded': True, 'loaded': True}"
SYNC = ("--updates", "sync", "--workers", "1", "--ps", "2")
REPLICAS = ("--strategy", "multi_worker_mirrored", "--workers", "2")


@pytest.mark.parametrize("words", [SYNC, REPLICAS], ids=["parameter_server", "multi_worker_mirrored"])
def test_models_that_train_in_turn_have_the_bits_of_the_same_calls_alone(launcher, words):
    launch = launcher.start(*words, "--no-evaluator", PROGRAM, str(launcher.folder))
    assert launch.end() == 0, launch.err
    assert launch.out.count(ALL_HOLD) == launch.out.count("PROMISES") >= 2, launch.out
    launch.wait_gone()
