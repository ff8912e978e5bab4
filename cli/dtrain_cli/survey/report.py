"""`dtrain check --hosts`: visit the hosts of a spec and print the findings."""

import os
import sys
from pathlib import Path

import click

from dtrain.config import Host, RunSpec, read_hosts
from dtrain.config.choices import On
from dtrain.errors import SpecError
from dtrain_cli.console.streams import say
from dtrain_cli.fleet.link import HostError, Opener
from dtrain_cli.placement import hosts_of_addresses
from dtrain_cli.survey.findings import problems, remarks, table
from dtrain_cli.survey.visits import Visits
from dtrain_cli.targets.slurm.allocation import read_allocation
from dtrain_cli.targets.slurm.srun import Srun
from dtrain_cli.targets.ssh import Ssh


def check_hosts(spec: RunSpec) -> None:
    """Print one table of a spec's hosts, and what is wrong with the ways between them.

    Raises:
        SpecError: the spec names no hosts.
        HostError: these hosts cannot run a cluster together; the message has a sentence for each reason.
    """
    hosts, opener = _hosts(spec)
    with Visits(opener, hosts, spec.network, say) as visits:
        found = visits.survey(Path.cwd())
    for line in table(found):
        click.echo(line)
    for line in remarks(found, str(Path.cwd())):
        say(line)
    if reasons := list(problems(found)):
        raise HostError("\n".join(reasons))


def _hosts(spec: RunSpec) -> tuple[list[Host], Opener]:
    python = spec.python or sys.executable
    said = read_hosts(spec.hosts) if spec.hosts else hosts_of_addresses(spec.cluster)
    if spec.on is On.SLURM and (allocation := read_allocation(os.environ)) is not None:
        return allocation.hosts(said), Srun(allocation, python, foreign=True)
    if not said:
        raise SpecError("hosts: found none; give `--hosts h1,h2`, or a spec with `hosts`")
    return said, Ssh(python, foreign=True)
