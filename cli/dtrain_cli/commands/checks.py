"""`dtrain check`: everything that is wrong with a spec, a TF_CONFIG, or hosts."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dtrain.errors import SpecError
from dtrain_cli.commands.command_line import SPEC_SUFFIXES, check_program_file, json_option, spec_options
from dtrain_cli.console.streams import answer, print_json

if TYPE_CHECKING:
    from dtrain.config import RunSpec

EPILOG = """\b
Examples:
  dtrain check cluster_specs/two_hosts.yaml
  dtrain check --set training.updates=sync --backup-workers 1 cluster_specs/laptop_async.yaml
  dtrain check --hosts machine-a,machine-b:4
  dtrain check --hosts cluster.yaml
  TF_CONFIG='{"cluster": {"worker": ["a:2222"]}, "task": {"type": "worker", "index": 0}}' dtrain check -
"""


@click.command(short_help="Say everything that is wrong with a spec.", epilog=EPILOG)
@click.argument("spec", metavar="SPEC|PROGRAM.py|-", type=click.Path(), required=False)
@click.option(
    "--command", "foreign", is_flag=True, help="Check it for `launch SPEC -- COMMAND`, not for PROGRAM.py."
)
@json_option
@spec_options
def check(
    spec: str | None, foreign: bool, as_json: bool, sets: tuple[str, ...], **shortcuts: object
) -> int | None:
    """Say everything that is wrong with SPEC, with launching PROGRAM.py without one, or (-) with the
    TF_CONFIG in the environment.

    With --hosts H1,H2 or --hosts SPEC it logs in to the hosts and shows, in one table, whether and how well a
    cluster can run there: ssh, versions, clocks, each pair of hosts both ways. Exit code: 125 if it cannot.

    Each mistake has its file, line, column and field (in TOML: the field). It finds what `launch` and the
    role commands refuse. Exit code: 0 if there is none, 2 otherwise.
    """
    hosts = shortcuts["hosts"]
    if isinstance(hosts, str):
        from dtrain_cli.survey import check_hosts

        check_hosts(_spec_of_hosts(hosts, spec, sets, shortcuts, foreign), as_json)
        return None
    if spec is None:
        raise click.UsageError("Missing argument 'SPEC|PROGRAM.py|-'.")
    try:
        if spec == "-":
            found = _check_tf_config(foreign, sets, shortcuts)
        else:
            found = _check_file(Path(spec), sets, shortcuts, foreign)
    except SpecError as error:
        if not as_json:
            raise
        print_json({"source": spec, "mistakes": str(error).splitlines(), "found": None})
        return error.exit_code
    text = f"{'TF_CONFIG' if spec == '-' else spec}: no mistakes; {found}"
    answer({"source": spec, "mistakes": [], "found": found}, text, as_json)
    return None


def _check_file(path: Path, sets: tuple[str, ...], shortcuts: dict[str, object], foreign: bool) -> str:
    from dtrain.config import ServerSection
    from dtrain_cli.launch.options import LaunchOptions
    from dtrain_cli.launch.request import read_request

    file: Path | None = path
    program = None if foreign else Path("PROGRAM.py")
    if path.suffix == ".py" and not foreign:
        check_program_file(path)
        file, program = None, path
    options = LaunchOptions(spec=file, sets=sets, shortcuts=shortcuts, program=program)
    _, spec = read_request(options, starts=False)
    training = spec.training
    updates = f", {training.updates}" if isinstance(training, ServerSection) else ""
    return f"{spec.cluster}; {training.strategy}{updates}"


def _spec_of_hosts(
    hosts: str, path: str | None, sets: tuple[str, ...], shortcuts: dict[str, object], foreign: bool
) -> "RunSpec":
    from dtrain_cli.spec import read_spec

    if hosts.endswith(SPEC_SUFFIXES):
        if path is not None:
            raise SpecError(f"--hosts {hosts}: expected one spec, found {path} besides")
        path = hosts
        shortcuts = {**shortcuts, "hosts": None}
    return read_spec(Path(path) if path else None, sets, shortcuts, foreign)


def _check_tf_config(foreign: bool, sets: tuple[str, ...], shortcuts: dict[str, object]) -> str:
    from dtrain.cluster import tasks_text
    from dtrain.process.tensorflow import read_tf_config
    from dtrain_cli.plan.standalone_start import place_of_tf_config

    text = os.environ.get("TF_CONFIG")
    if text is None:
        raise SpecError("TF_CONFIG is not set: a program would train in one process")
    if foreign:
        cluster, task = read_tf_config(text)
    else:
        place = place_of_tf_config(os.environ, sets, shortcuts)
        cluster, task = place.cluster, place.task
    tasks = tasks_text({role: len(jobs) for role, jobs in cluster.jobs.items()})
    return f"this is {task or 'no task'} of {tasks or 'no cluster'}"


COMMANDS = (check,)
