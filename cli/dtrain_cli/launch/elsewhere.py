"""`dtrain plan --on skypilot` and `--on ray`: a text for each, whose tasks are `dtrain task`, on stdout.

SkyPilot numbers its nodes, and a task finds its place by that number; Ray's actors say where they are, and
start their tasks with TF_CONFIG. Neither text holds a secret. Sources: "Task YAML" and "Secrets" in the
documentation of SkyPilot; "Placement Groups" in that of Ray.
"""

import json
import os
import shlex

import click

from dtrain.config import RunSpec
from dtrain.errors import SpecError
from dtrain.process.ranks import ORDER
from dtrain_cli.code import password_problems
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import read_request
from dtrain_cli.targets.kubernetes.manifests import json_text, yaml_text
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
    click.echo(json_text([task]) if options.json else yaml_text([task]), nl=False)
    click.echo(f"{spec.cluster} on SkyPilot, a node a task, with this folder on each", err=True)
    click.echo(f"start it, with these variables set: sky launch{given} FILE", err=True)
    return 0


_RAY = '''"""{cluster} on Ray: `python FILE`, or `ray job submit --working-dir . -- python FILE`."""
import json
import os
import secrets
import socket
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

COUNTS = {counts}
BUNDLES = {bundles}  # what each task of a role gets, such as {{"CPU": 4, "GPU": 1}}
COMMAND = {command}
OWN = {{name: os.environ[name] for name in {passed}}}  # variables of this process that all tasks get
OWN["DTRAIN_SECRET"] = os.environ.get("DTRAIN_SECRET") or secrets.token_urlsafe(32)


@ray.remote(max_concurrency=2)
class Task:
    process = None

    def address(self):
        self.port = socket.create_server(("", 0))
        return f"{{ray.util.get_node_ip_address()}}:{{self.port.getsockname()[1]}}"

    def run(self, variables):
        self.port.close()
        self.process = subprocess.Popen(COMMAND, env={{**os.environ, **variables}})
        return self.process.wait()

    def stop(self):  # in order: the leader saves the last step
        if self.process:
            self.process.terminate()


tasks = [(role, index) for role in COUNTS for index in range(COUNTS[role])]
group = placement_group([BUNDLES[role] for role, _ in tasks], strategy="PACK")
print("waits for", group.bundle_specs, flush=True)
ray.get(group.ready())
actors = []
for place, (role, _) in enumerate(tasks):
    where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=place)
    size = dict(BUNDLES[role])
    cpus, gpus = size.pop("CPU", 0), size.pop("GPU", 0)
    made = Task.options(num_cpus=cpus, num_gpus=gpus, resources=size, scheduling_strategy=where)
    actors.append(made.remote())
cluster = {{}}
for (role, _), address in zip(tasks, ray.get([actor.address.remote() for actor in actors])):
    if role != "evaluator":
        cluster.setdefault(role, []).append(address)
runs = []
for actor, (role, index) in zip(actors, tasks):
    config = {{"cluster": cluster, "task": {{"type": role, "index": index}}}}
    runs.append(actor.run.remote({{**OWN, "TF_CONFIG": json.dumps(config)}}))
left, code = runs, 0
try:
    while left and code == 0:
        (ended,), left = ray.wait(left)
        code = ray.get(ended)
finally:
    ray.get([actor.stop.remote() for actor in actors])
    ray.wait(runs, num_returns=len(runs), timeout=60)
sys.exit(code if code >= 0 else 128 - code)
'''


def plan_ray(options: LaunchOptions) -> int:
    """Print a program that starts the run on Ray. Raise a `SpecError` if the spec is wrong for it."""
    spec, command = _asked(options)
    roles = [role.value for role in ORDER if spec.cluster.count(role)]
    text = _RAY.format(
        cluster=spec.cluster,
        counts=json.dumps({role: spec.cluster.count(role) for role in roles}),
        bundles=json.dumps({role: {"CPU": 1} for role in roles}),
        command=json.dumps(["dtrain", "task", *options_of(spec), *command]),
        passed=json.dumps(list(spec.secrets)),
    )
    click.echo(json.dumps({"program": text}) if options.json else text, nl=options.json)
    click.echo(f"{spec.cluster} on Ray; its machines have dtrain[ray]: python FILE", err=True)
    return 0


def _asked(options: LaunchOptions) -> tuple[RunSpec, tuple[str, ...]]:
    workload, spec = read_request(options)
    spec = workload.named(spec)
    for path, text in password_problems(spec, workload.arguments):
        raise SpecError(f"{path[0]}: {text}")
    if workload.program is None:
        return spec, ("--", *workload.arguments)
    return spec, (os.path.relpath(workload.program), *workload.arguments)
