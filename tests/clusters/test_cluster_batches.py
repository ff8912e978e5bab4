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
    assert report_of(launch.run_dir)["global_step"] == 120
    seen = numbers(tmp_path / "notes")
    # One that computes ahead of its ticket, and reads the first batch to learn its shape, notes it besides.
    assert set(seen) == set(range(120))
    again = [number for number in seen if seen.count(number) > 1]
    assert set(again) - {0} == set() if dying is None else len(set(again) - {0}) <= 1
