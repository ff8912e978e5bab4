"""A job of little time is not told to stop as soon as it has begun, and the plan says what it is told instead."""

import pytest
from row_by_row import every_row

from dtrain.config import SlurmSection
from dtrain_cli.launch import slurm
from dtrain_cli.launch.options import LaunchOptions


@every_row(
    "time, seconds",
    [
        (None, 0),
        (0, 0),
        (2, 120),
        ("2", 120),
        ("1:30", 90),
        ("2:00:01", 7201),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("1-0:0:5", 86_405),
    ],
)
def test_times_are_read_as_sbatch_reads_them(time, seconds):
    assert SlurmSection(time=time).time_s == seconds


@every_row(
    "time, grace_s, notice_s",
    [
        (None, 120, 120),
        (0, 120, 120),
        (2, 120, 30),
        (3, 120, 45),
        (4, 120, 120),
        ("0:02", 120, 1),
        (60, 3600, 900),
    ],
)
def test_notice_comes_at_most_a_quarter_of_a_short_time_before_its_end(time, grace_s, notice_s):
    assert SlurmSection(time=time, grace_s=grace_s).notice_s == notice_s


@pytest.mark.parametrize(("minutes", "notice_s", "told"), [(2, 30, True), (30, 120, False)])
def test_the_plan_of_a_short_job_says_when_it_is_told_to_stop(tmp_path, capsys, minutes, notice_s, told):
    (tmp_path / "p.py").write_text("")
    options = LaunchOptions(
        program=tmp_path / "p.py", sets=(f"slurm.time={minutes}",), runs_dir=tmp_path, given=("p.py",)
    )
    slurm.plan(options)
    out, err = capsys.readouterr()
    assert f"#SBATCH --signal=B:TERM@{notice_s}\n" in out
    sentence = (
        "slurm.time is 120 s, too little for slurm.grace_s of 120 s: the job is told to save and stop 30 s"
    )
    assert (sentence in err) is told
