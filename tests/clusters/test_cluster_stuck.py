"""Replicas that live and do nothing, or are stopped for good, on parameter servers: the launcher kills them, starts
them again, and everything counts as if nothing had happened.
"""

import json
from pathlib import Path

import pytest

PROGRAM = str(Path(__file__).parent / "stuck_replicas.py")
WORDS = (
    *("--workers", "2", "--ps", "1", "--no-evaluator", "--stall-timeout", "6", "--timeout", "300"),
    *(word for role in ("chief", "worker") for word in ("--set", f"restart.{role}.backoff_s=0.1")),
)
SYNC = ("--updates", "sync")
ASYNC = ("--updates", "async")


def counts(launch):
    """What the program has counted."""
    assert launch.end() == 0, launch.err
    launch.wait_gone()
    (line,) = [line for line in launch.out.splitlines() if "COUNTS " in line]
    return json.loads(line.partition("COUNTS ")[2])


@pytest.mark.parametrize(
    ("words", "options", "stuck", "stopped", "counted"),
    [
        (SYNC, ("--rate", "3"), "worker:1", "chief:0", [2.0] * 60),  # a step is a mean over three replicas
        (ASYNC, (), "chief:0", None, [2.0] * 60),
        ((), ("--closures", "60"), "worker:1", "worker:0", [60]),
    ],
    ids=["sync", "async", "coordinator"],
)
@pytest.mark.long(
    "two replicas stand still one after the other, each for longer than a stall timeout of six seconds"
)
def test_one_that_reads_for_ever_and_one_that_is_stopped_are_killed_and_nothing_is_counted_twice(
    launcher, words, options, stuck, stopped, counted
):
    standing = ("--reads", stuck, "--stopped", str(stopped))
    launch = launcher.start(*WORDS, *words, PROGRAM, *options, *standing)
    assert counts(launch) == counted
    killed = [line.partition("dtrain: ")[2] for line in launch.err.splitlines() if " is killed: " in line]
    assert {line.split()[0] for line in killed} == {stuck, stopped} - {None}, "each of them once"
    assert len(killed) == len({stuck, stopped} - {None})
    (reads,) = [line for line in killed if line.startswith(stuck)]
    assert f" s for {stuck}" in reads or f", {stuck}" in reads
    assert "and it has read its next batch for " in reads
    assert 'stuck_replicas.py", line' in launch.log(stuck, 0), "its stack says where"
    assert f"{stuck} was stuck in its input at step " in launch.err
    if stopped:
        assert any(line.startswith(f"{stopped} is killed: it has not reported for ") for line in killed)
