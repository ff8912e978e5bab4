"""A run that keeps copies of its checkpoints elsewhere, and one that goes on from them in a directory of its
own.
"""

from clusters.watching import PACED, report_of, saved_steps, succeeded

from dtrain.checkpoints import list_checkpoints

OPTIONS = ("--workers", "1", "--ps", "2", "--no-evaluator")


def test_a_run_goes_on_from_the_copies_of_another(launcher, tmp_path):
    remote = ("--set", f"checkpoint.remote=file://{tmp_path}/copies", "--set", "checkpoint.keep=1")
    first = launcher.start(*OPTIONS, *remote, PACED, "--steps", "30")
    succeeded(first)
    assert (
        [found.step for found in list_checkpoints(tmp_path / "copies")] == [30] == saved_steps(first.run_dir)
    )
    second = launcher.start(*OPTIONS, *remote, PACED, "--steps", "60")
    succeeded(second)
    assert "goes on from the newest checkpoint at file://" in second.out
    assert report_of(second.run_dir)["global_step"] == 60
    assert [found.step for found in list_checkpoints(tmp_path / "copies")] == [60]


def test_a_url_without_a_driver_is_said_before_anything_starts(launcher):
    launch = launcher.start(*OPTIONS, "--set", "checkpoint.remote=nowhere", PACED)
    assert launch.end() == 2
    assert "expected a URL such as s3://bucket/run, found 'nowhere'" in launch.err
