"""`dtrain check`: everything that is wrong with a spec, or with the TF_CONFIG of the environment."""

import os
from pathlib import Path

import click

from dtrain.errors import SpecError
from dtrain_cli.commands.spec_options import spec_options

EPILOG = """\b
Examples:
  dtrain check cluster_specs/two_hosts.yaml
  dtrain check --set training.updates=sync --backup-workers 1 cluster_specs/laptop_async.yaml
  TF_CONFIG='{"cluster": {"worker": ["a:2222"]}, "task": {"type": "worker", "index": 0}}' dtrain check -
"""


@click.command(short_help="Say everything that is wrong with a spec.", epilog=EPILOG)
@click.argument("spec", metavar="SPEC|-", type=click.Path())
@click.option(
    "--command", "foreign", is_flag=True, help="Check it for `launch SPEC -- COMMAND`, not for PROGRAM.py."
)
@spec_options
def check(spec: str, foreign: bool, sets: tuple[str, ...], **shortcuts: object) -> None:
    """Say everything that is wrong with SPEC, or (-) with the TF_CONFIG in the environment.

    Each mistake has its file, line, column and field (in TOML: the field). It finds what `launch` and the
    role commands refuse. Exit code: 0 if there is none, 2 otherwise.
    """
    if spec == "-":
        _check_tf_config(foreign)
    else:
        _check_file(Path(spec), sets, shortcuts, foreign)


def _check_file(path: Path, sets: tuple[str, ...], shortcuts: dict[str, object], foreign: bool) -> None:
    from dtrain.config import SingleSection
    from dtrain_cli.spec.file import read_spec

    spec = read_spec(path, sets, shortcuts, foreign, trains=not foreign).secured(os.environ)
    training = spec.training
    updates = "" if isinstance(training, SingleSection) else f", {training.updates}"
    click.echo(f"{path}: no mistakes; {spec.cluster}; {training.strategy}{updates}")


def _check_tf_config(foreign: bool) -> None:
    from dtrain.cluster import tasks_text
    from dtrain.process.tensorflow.tf_config import read_tf_config
    from dtrain_cli.plan.standalone_start import place_of_tf_config

    text = os.environ.get("TF_CONFIG")
    if text is None:
        raise SpecError("TF_CONFIG is not set: a program would train in one process")
    if foreign:
        cluster, task = read_tf_config(text)
    else:
        place = place_of_tf_config(os.environ)
        cluster = place.cluster
        task = place.task
    tasks = tasks_text({role: len(jobs) for role, jobs in cluster.jobs.items()})
    click.echo(f"TF_CONFIG: no mistakes; this is {task or 'no task'} of {tasks or 'no cluster'}")


COMMANDS = (check,)
