"""An epoch sees every example once, over all replicas; with a replica that dies, at most what was not applied is seen twice."""

from pathlib import Path

import pytest
from clusters.watching import report_of, succeeded

NOTED = str(Path(__file__).parent / "noted_batches.py")
OPTIONS = ("--no-evaluator", "--set", "restart.worker.policy=never")


def numbers(path):
    return sorted(map(int, path.read_text().split()))


@pytest.mark.parametrize(("slow", "dying"), [(None, None), ("worker:1", None), ("worker:1", "worker:0")])
def test_an_asynchronous_epoch_misses_no_example(launcher, tmp_path, slow, dying):
    faults = ["--set", f"simulate.slow.{slow}=20"] if slow else []
    faults += ["--set", f"simulate.kill=[{{task: {dying}, at_step: 40}}]"] if dying else []
    launch = launcher.start(*OPTIONS, *faults, NOTED, str(tmp_path / "notes"))
    succeeded(launch)
    assert report_of(launcher, launch.run_dir)["global_step"] == 120
    seen = numbers(tmp_path / "notes")
    # One that computes ahead of its ticket, and reads the first batch to learn its shape, notes it besides.
    assert set(seen) == set(range(120))
    again = [number for number in seen if seen.count(number) > 1]
    assert set(again) - {0} == set() if dying is None else len(set(again) - {0}) <= 1


def test_a_synchronous_epoch_misses_no_example_when_a_replica_dies(launcher, tmp_path):
    options = ("--updates", "sync", "--set", "training.too_few=shrink", "--set", "simulate.kill=[{task: worker:0, at_step: 10}]")
    launch = launcher.start(*OPTIONS, *options, NOTED, str(tmp_path / "notes"))
    succeeded(launch)
    assert report_of(launcher, launch.run_dir)["global_step"] == 40
    seen = numbers(tmp_path / "notes")
    # Versions of two contributions are made in the end, so the last examples are left for another epoch.
    assert set(range(max(seen) - 10)) <= set(seen)
    assert len([number for number in set(seen) if seen.count(number) > 1 and number]) <= 1
