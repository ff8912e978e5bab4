"""A run that has ended goes on for more epochs: every example counts once in each of all of them."""

from pathlib import Path

import numpy as np
import pytest
from chaos import counts

PROGRAM = Path(__file__).parents[1] / "chaos" / "counted_rows.py"


@pytest.mark.parametrize(
    "mode",
    [
        ("--strategy", "multi_worker_mirrored", "--workers", "1"),
        ("--strategy", "mirrored", "--workers", "0", "--set", "training.replicas=2"),
        ("--updates", "sync", "--workers", "1", "--ps", "1"),
    ],
    ids=["replicas", "threads", "servers"],
)
def test_a_run_that_has_ended_goes_on_for_more_epochs(launcher, mode):
    run_dir = launcher.folder / "run"
    program = (PROGRAM, "--examples", "8", "--batch", "4", "--pace_s", "0")
    for epochs, resume in ((1, ()), (2, ("--resume",))):
        words = ("--run-dir", run_dir, *resume, "--no-evaluator", *mode, *program, "--epochs", epochs)
        launch = launcher.start(*words, run_dir=run_dir)
        assert launch.end() == 0, launch.err
        assert np.unique(counts.read(run_dir)).tolist() == [epochs]
