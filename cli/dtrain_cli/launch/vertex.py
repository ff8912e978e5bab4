"""`dtrain plan --on vertex`: the pools of a custom job on stdout, and what they mean on stderr."""

import json
import os
from pathlib import Path

import click

from dtrain.cluster import Role
from dtrain.errors import SpecError
from dtrain.process.assignment import secret_in_file
from dtrain.process.secret import new_secret
from dtrain_cli.code import password_problems
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import read_request
from dtrain_cli.targets.kubernetes.manifests import yaml_text
from dtrain_cli.targets.vertex import worker_pool_specs


def plan(options: LaunchOptions) -> int:
    """Print the pools of a job. Raise a `SpecError` if the spec is wrong, or cannot run there."""
    workload, spec = read_request(options)
    spec = workload.named(spec)
    for path, text in password_problems(spec, workload.arguments):
        raise SpecError(f"{path[0]}: {text}")
    command: tuple[str, ...] = ("--", *workload.arguments)
    if workload.program is not None:
        there = Path(spec.vertex.code_in, os.path.relpath(workload.program))
        command = (os.path.normpath(there), *workload.arguments)
    secret = None
    if not options.foreign and not spec.security.insecure:
        secret = secret_in_file(spec.security) or new_secret()
    job = {"workerPoolSpecs": worker_pool_specs(spec, command, secret)}
    click.echo(json.dumps(job, indent=2) + "\n" if options.json else yaml_text([job]), nl=False)
    for line in (
        f"{spec.cluster} on Vertex AI, image {spec.vertex.image}",
        *(f"  {role}: {spec.vertex.machine_of(role)}" for role in Role if spec.cluster.count(role)),
        *(["  it holds the run's secret: keep it as you keep a password"] if secret else []),
        f"start it: gcloud ai custom-jobs create --region=REGION --display-name={spec.name} --config=FILE",
    ):
        click.echo(line, err=True)
    return 0
