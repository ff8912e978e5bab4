"""`dtrain plan --on skypilot` and `--on ray`: a text for each, whose tasks are `dtrain task`, on stdout.

SkyPilot numbers its nodes, and a task finds its place by that number; Ray's actors say where they are, and
start their tasks with TF_CONFIG. Neither text holds a secret. Sources: "Task YAML" and "Secrets" in the
documentation of SkyPilot; "Placement Groups" in that of Ray.
"""

import json
import os
import shlex
from pathlib import Path

import click

from dtrain.config import RunSpec
from dtrain.process.ranks import ORDER
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import read_named
from dtrain_cli.targets.kubernetes.manifests import objects_text
from dtrain_cli.targets.kubernetes.run import options_of


def plan_skypilot(options: LaunchOptions) -> int:
    """Print the YAML of a task. Raise a `SpecError` if the spec is wrong, or cannot run there."""
    spec, command = _asked(options)
    counts = [f"--set=cluster.{role}={spec.cluster.count(role)}" for role in ORDER]
    secrets = [*([] if options.foreign or spec.security.insecure else ["DTRAIN_SECRET"]), *spec.secrets]
    task = {
        "name": spec.name,
        "num_nodes": sum(spec.cluster.count(role) for role in ORDER),
        "resources": {"cpus": "2+"},
        "workdir": ".",
        "envs": {"PYTHONUNBUFFERED": "1", **spec.environment},
        "secrets": dict.fromkeys(secrets),
        "setup": "command -v dtrain || pip install ./dtrain  # a clone of dtrain\n",
        "run": f"exec dtrain task {shlex.join([*counts, *options_of(spec), *command])}\n",
    }
    given = "".join(f" --secret {name}" for name in secrets)
    click.echo(objects_text([task], options.json), nl=False)
    click.echo(f"{spec.cluster} on SkyPilot, a node a task, with this folder on each", err=True)
    click.echo(f"start it, with these variables set: sky launch{given} FILE", err=True)
    return 0


def plan_ray(options: LaunchOptions) -> int:
    """Print a program that starts the run on Ray. Raise a `SpecError` if the spec is wrong for it."""
    spec, command = _asked(options)
    roles = [role.value for role in ORDER if spec.cluster.count(role)]
    facts = {
        "COUNTS": {role: spec.cluster.count(role) for role in roles},
        "BUNDLES": {role: {"CPU": 1} for role in roles},
        "COMMAND": ["dtrain", "task", *options_of(spec), *command],
        "PASSED": spec.secrets,
    }
    text = f'"""{spec.cluster} on Ray: `python FILE`, or `ray job submit --working-dir . -- python FILE`.\n\n'
    text += (
        "BUNDLES is what each task of a role gets, such as {'CPU': 4, 'GPU': 1}; PASSED are the variables\n"
    )
    text += 'of this process that all tasks get.\n"""\n'
    text += "".join(f"{name} = {json.dumps(value)}\n" for name, value in facts.items())
    text += (Path(__file__).parent / "ray_program.txt").read_text(encoding="utf-8")
    click.echo(json.dumps({"program": text}) if options.json else text, nl=options.json)
    click.echo(f"{spec.cluster} on Ray; its machines have dtrain[ray]: python FILE", err=True)
    return 0


def _asked(options: LaunchOptions) -> tuple[RunSpec, tuple[str, ...]]:
    workload, spec = read_named(options)
    if workload.program is None:
        return spec, ("--", *workload.arguments)
    return spec, (os.path.relpath(workload.program), *workload.arguments)
