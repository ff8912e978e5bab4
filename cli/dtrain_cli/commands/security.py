"""`dtrain secret` and `dtrain certificates`: by what the tasks of a run know each other."""

import re
from pathlib import Path

import click

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.errors import SpecError
from dtrain.process.secret import write_secret
from dtrain_cli.commands.command_line import Count, json_option
from dtrain_cli.console.streams import answer, print_json


@click.command(
    short_help="Make a certificate for each task.",
    epilog=(
        "\b\nExamples:\n  dtrain certificates cluster_specs/two_hosts.yaml --out tls\n"
        "  dtrain certificates --renew --days 7 cluster_specs/two_hosts.yaml --out tls\n"
    ),
)
@click.argument("spec", metavar="SPEC", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Where to."
)
@click.option("--days", default=30, type=Count(1), metavar="N", help="How long they are valid (default: 30).")
@click.option(
    "--renew", is_flag=True, help="Replace the tasks' certificates by new ones of the same authority."
)
@json_option
def certificates(spec: Path, out: Path, days: int, renew: bool, as_json: bool) -> None:
    """Make an authority for the cluster of SPEC, which writes addresses, and a certificate for each task.

    DIR gets a folder for each host, which is all that the host needs, authority/ca.key, which stays here, and
    a .gitignore.
    Nothing is overwritten without --renew. Exit code: 2 SPEC gives counts, or files exist.
    """
    from dtrain.process.assignment import run_id_by_hand
    from dtrain_cli.certificates.authority import places, write_certificates
    from dtrain_cli.code import keep_from_git
    from dtrain_cli.spec import read_spec

    cluster = read_spec(spec).cluster
    jobs = {role: getattr(cluster, role) for role in Role}
    counts = [str(role) for role, job in jobs.items() if isinstance(job, int) and job]
    if set(counts) - {Role.EVALUATOR}:
        raise SpecError(
            f"{spec}: cluster.{counts[0]} is a count, which `launch` turns into tasks of this machine; it "
            "makes their certificates itself (security.tls: required); write addresses, as in [a:2222]"
        )
    written = {role: tuple(job) for role, job in jobs.items() if not isinstance(job, int) and job}
    training = ClusterSpec.from_lists(
        **{role: job for role, job in written.items() if role != Role.EVALUATOR}
    )
    addresses: dict[TaskId, str | None] = {task: training.address(task) for task in training.tasks()}
    for index in range(cluster.count(Role.EVALUATOR)):
        addresses[TaskId(Role.EVALUATOR, index)] = next(iter(written.get(Role.EVALUATOR, ())), None)
    folders = write_certificates(out, run_id_by_hand(training), places(addresses), days, renew)
    keep_from_git(out, "*")
    named = {"folder": str(out), "tasks": list(map(str, addresses)), "of_hosts": list(map(str, folders))}
    lines = (
        f"{out}: certificates of {len(addresses)} tasks for {days} days; copy each host its folder:",
        *(f"  {folder}" for folder in folders),
        (
            "there: security: {tls: required, ca_file: DIR/ca.crt, "
            "cert_file: DIR/{role}-{index}.crt, key_file: DIR/{role}-{index}.key}"
        ),
    )
    answer(named | {"days": days}, "\n".join(lines), as_json)


@click.command(
    "secret",
    short_help="Make a secret for a run's tasks.",
    epilog="\b\nExample:\n  dtrain secret run.secret\n",
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@json_option
def secret(file: Path, as_json: bool) -> None:
    """Write a new secret of 256 random bits to FILE, which you alone can read, and its name to the .gitignore
    beside it. An existing file is never overwritten. Copy it to every machine of the run, and give it to
    every task by --secret-file.
    """
    from dtrain_cli.code import keep_from_git

    if str(file) == "-":
        raise click.UsageError("a secret is written to a FILE, such as run.secret, never to stdout")
    write_secret(file)
    keep_from_git(file.parent, "/" + re.sub(r"([\\*?\[ ])", r"\\\1", file.name))
    if as_json:
        print_json({"file": str(file)})
    click.echo(f"a new secret stands in {file}; give every task --secret-file {file}", err=True)


COMMANDS = (certificates, secret)
