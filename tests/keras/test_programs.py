"""The mission's programs, of which only the import is another's, print what they print with TensorFlow 2.15.1.

`reference_of_programs.py` has written down what that is.
"""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from launching import free_port

PROGRAMS = Path(__file__).parent / "programs"
PRINTED = json.loads((PROGRAMS / "printed.json").read_text())
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")


def numbers_of_lines(text, expected):
    """The numbers of each line, and those that were expected there; all else of the lines is the same. Lines of
    progress are not looked at.
    """
    lines = [line for line in text.splitlines() if not re.match(r"epoch \d+/", line)]
    assert [re.sub(r"\s", "", NUMBER.sub("#", line)) for line in lines] == [
        re.sub(r"\s", "", NUMBER.sub("#", line)) for line in expected
    ], text
    return [
        tuple(np.array(NUMBER.findall(each), float) for each in pair)
        for pair in zip(lines, expected, strict=True)
    ]


def same_lines(text, expected, rtol=2e-4):
    """The lines are those that were expected, but for the last digits of numbers."""
    for found, wanted in numbers_of_lines(text, expected):
        np.testing.assert_allclose(found, wanted, rtol, atol=2e-5, err_msg=text)


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_alone_it_prints_what_it_prints_with_tensorflow(name, launcher):
    command = launcher.run(PROGRAMS / f"{name}.py")
    assert command.end() == 0, command.err
    same_lines(command.out, PRINTED[name])


SYNC = ("--strategy", "parameter_server", "--workers", "1", "--ps", "1", "--updates", "sync")
LAUNCHES = {
    "estimator_in_a_cluster, sync": ("estimator_in_a_cluster", SYNC),
    "multi_worker, as it says": ("multi_worker", ("--workers", "1")),
    "mirrored_tutorial, as it says": ("mirrored_tutorial", ()),
    "trial, as it says": ("trial", ()),
    # by night
    "multi_worker, mirrored": ("multi_worker", ("--strategy", "mirrored", "--set", "training.replicas=2")),
    "multi_worker, sync": ("multi_worker", SYNC),
    "mirrored_tutorial, sync": ("mirrored_tutorial", SYNC),
    "trial, multi_worker_mirrored": ("trial", ("--strategy", "multi_worker_mirrored", "--workers", "1")),
}
USUAL = 4


@pytest.mark.parametrize("name", list(LAUNCHES)[: None if os.environ.get("DTRAIN_PROGRAMS") else USUAL])
def test_under_launch_every_task_that_trains_or_evaluates_prints_the_same(name, launcher):
    """With DTRAIN_PROGRAMS=all also by other strategies than the program's own."""
    program, options = LAUNCHES[name]
    launch = launcher.start(*options, PROGRAMS / f"{program}.py")
    assert launch.end() == 0, launch.out + launch.err
    same_lines(launch.log("chief:0"), PRINTED[program], rtol=2e-3)
    if "evaluation at step" in launch.out:
        seen = [line for line in launch.log("evaluator:0").splitlines() if "evaluation at" not in line]
        same_lines("\n".join(seen), PRINTED[program], rtol=2e-3)


def test_asynchronous_training_of_a_program_has_its_losses_fall(launcher):
    options = [*SYNC[:-1], "async"]
    launch = launcher.start(*options, PROGRAMS / "multi_worker.py")
    assert launch.end() == 0, launch.out + launch.err
    losses = np.array(re.search(r"'loss': \[(.*?)\]", launch.log("chief:0"))[1].split(", "), float)
    assert np.all(np.diff(losses) < 0)
    assert losses[0] == pytest.approx(2.3285, abs=0.05)  # TensorFlow's


def test_the_classic_flags_start_each_task(launcher):
    """A server, and two workers that find each other; the leader prints, and all end by themselves."""
    hosts = [f"localhost:{free_port()}" for _ in range(3)]
    flags = (f"--ps_hosts={hosts[0]}", f"--worker_hosts={hosts[1]},{hosts[2]}")
    tasks = [
        launcher.run(PROGRAMS / "line.py", *flags, f"--job_name={job}", f"--task_index={index}")
        for job, index in (("ps", 0), ("worker", 0), ("worker", 1))
    ]
    assert [task.end() for task in tasks] == [0, 0, 0], [task.err for task in tasks]
    last = PRINTED["line"][-1]
    assert tasks[1].out.splitlines()[-1].split(",")[0] == last.split(",")[0]
    found, expected = (
        np.array(NUMBER.findall(text), float) for text in (tasks[1].out.splitlines()[-1], last)
    )
    np.testing.assert_allclose(found, expected, rtol=0.02)
