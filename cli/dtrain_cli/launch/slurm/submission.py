"""A launch as a job of Slurm: which directory its run gets, and the script that Slurm carries out."""

import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dtrain.config.choices import On
from dtrain.runs.files import default_runs_dir
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import read_request
from dtrain_cli.runs.directory import new_run_id
from dtrain_cli.runs.index import find_run
from dtrain_cli.targets.slurm.job_script import JobScript

_WITH_VALUE = ("--run-dir", "--runs-dir", "--on")
_ALONE = ("--resume", "--detach")
FOLDER = "slurm"
"""The folder for the output of jobs, beside that of the runs."""


@dataclass(frozen=True)
class Submission:
    """A job that is ready to be submitted."""

    script: JobScript
    run_dir: Path


def submission(options: LaunchOptions, now: datetime) -> Submission:
    """Return the job of a launch; nothing is written.

    Raises:
        SpecError: the spec or the program is wrong.
        RunNotFoundError: there is no run to resume.
    """
    workload, spec = read_request(options)
    spec = workload.named(spec)
    runs_dir = (options.runs_dir or default_runs_dir()).absolute()
    if options.run_dir is not None:
        run_dir = options.run_dir.absolute()
    elif options.resume is not None:
        run_dir = find_run(options.resume or spec.name, runs_dir).files.directory
    else:
        run_dir = runs_dir / new_run_id(spec.name, now)
    own = ["--on", On.SLURM, "--runs-dir", str(runs_dir), "--run-dir", str(run_dir)]
    if options.resume is not None:
        own.append("--resume")
    command = [
        spec.python or sys.executable,
        "-P",
        "-m",
        "dtrain_cli.main",
        "launch",
        *own,
        *_words_of_the_job(options),
    ]
    output = runs_dir.with_name(FOLDER) / run_dir.name
    script = JobScript(
        spec,
        command,
        workload.cwd,
        output.with_name(f"{output.name}.out"),
        output.with_name(f"{output.name}.err"),
    )
    return Submission(script, run_dir)


def _words_of_the_job(options: LaunchOptions) -> list[str]:
    """Return the command line as it was written, without the options that say where the run is."""
    behind = len(options.arguments) + (options.program is not None) + (options.spec is not None)
    at = len(options.given) - len(options.arguments) - 1
    behind += options.given[at] == "--"  # of a command, or directly behind the program
    written = len(options.given) - behind
    kept: list[str] = []
    words = iter(options.given[:written])
    for word in words:
        name, equals, _ = word.partition("=")
        if name in _WITH_VALUE and not equals:
            next(words)
        elif name not in _WITH_VALUE and name not in _ALONE:
            kept.append(word)
    return [*kept, *options.given[written:]]
