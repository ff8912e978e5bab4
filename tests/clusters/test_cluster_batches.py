"""An epoch sees every example once, over all replicas; with a replica that dies, at most what was not applied
is seen twice.
"""

from pathlib import Path

from clusters.watching import report_of, succeeded

NOTED = str(Path(__file__).parent / "noted_batches.py")
OPTIONS = ("--no-evaluator", "--set", "restart.worker.policy=never")


def numbers(path):
    return sorted(map(int, path.read_text().split()))


SLOW = ("--set", "simulate.slow.worker:1=20")
DYING = ("--set", "simulate.kill=[{task: worker:0, at_step: 40}]")


def test_an_asynchronous_epoch_misses_no_example(launcher, tmp_path):
    """Run two clusters at the same time: an undisturbed one, and one with a slow replica and one that dies."""
    stories = {"undisturbed": (), "dying": (*SLOW, *DYING)}
    launches = {
        name: launcher.start(*OPTIONS, *faults, NOTED, str(tmp_path / name))
        for name, faults in stories.items()
    }
    for name, launch in launches.items():
        succeeded(launch)
        assert report_of(launch.run_dir)["global_step"] == 120
        seen = numbers(tmp_path / name)
        # One that computes ahead of its ticket, and reads the first batch to learn its shape, notes it
        # besides.
        assert set(seen) == set(range(120))
        again = {number for number in seen if seen.count(number) > 1} - {0}
        assert len(again) <= (name == "dying"), name
