"""A model that all replicas of a host reduce, each its share: squares first, where the norm is limited, then the update."""

from pathlib import Path

import pytest

PROGRAM = str(Path(__file__).parent / "large_model.py")
BITS = ("--no-evaluator", "--set", "training.deterministic=true")
NEVER = tuple(word for role in ("chief", "worker") for word in ("--set", f"restart.{role}.policy=never"))


def told(launch, tasks):
    assert launch.end() == 0, launch.err
    return {
        line.split("TOLD ")[1] for task in tasks for line in launch.log(task).splitlines() if "TOLD" in line
    }


@pytest.mark.parametrize("moves", ["rows", "all"])
def test_its_bits_are_those_of_one_process_also_where_the_leader_or_all_others_die(launcher, moves):
    words = (PROGRAM, "--moves", moves)
    replicas = ("--strategy", "multi_worker_mirrored", "--workers", "2", *BITS, *NEVER)
    alone = launcher.start("--strategy", "mirrored", *BITS, "--set", "training.replicas=3", *words)
    expected = told(alone, ["chief:0"])
    assert len(expected) == 1
    for dead in (["chief:0"], ["worker:0", "worker:1"]):
        deaths = [word for task in dead for word in ("--die", task)]
        launch = launcher.start(*replicas, *words, *deaths)
        assert told(launch, {"chief:0", "worker:0", "worker:1"} - {*dead}) == expected
        assert launch.err.count("killed by SIGKILL") >= len(dead)


@pytest.mark.parametrize("size", [["--small"], []], ids=["reduced by the leader alone", "reduced by all"])
def test_rows_that_a_leader_has_not_made_when_it_dies_are_made_by_the_next_one(launcher, size):
    words = (PROGRAM, "--moves", "rows", *size)
    replicas = ("--strategy", "multi_worker_mirrored", "--workers", "2", *BITS, *NEVER)
    alone = launcher.start("--strategy", "mirrored", *BITS, "--set", "training.replicas=3", *words)
    expected = told(alone, ["chief:0"])
    launch = launcher.start(*replicas, *words, "--die-in-rows", "chief:0")
    assert told(launch, ["worker:0", "worker:1"]) == expected
    assert "chief:0 has failed: killed by SIGKILL" in launch.err
