"""`dtrain plan --on kubernetes`: manifests on stdout, and what they mean for people on stderr."""

import os
from collections.abc import Iterator

import click

from dtrain.cluster import Role
from dtrain_cli.launch.kubernetes.gathering import gather
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.targets.kubernetes.jobs import KEPT_S
from dtrain_cli.targets.kubernetes.manifests import json_text, manifests, yaml_text
from dtrain_cli.targets.kubernetes.pod import RUN_LABEL, reads_disk
from dtrain_cli.targets.kubernetes.run import PORT, KubernetesRun


def plan(options: LaunchOptions) -> int:
    """Print the manifests of a run and its plan; nothing is sent anywhere."""
    run = gather(options, os.environ)
    objects = manifests(run)
    click.echo(json_text(objects) if options.json else yaml_text(objects), nl=False)
    for line in about(run):
        click.echo(line, err=True)
    return 0


def about(run: KubernetesRun) -> Iterator[str]:
    """Yield the plan for people, a line each, of at most 100 columns where names are short."""
    kubernetes = run.spec.kubernetes
    where = f"namespace {kubernetes.namespace}" if kubernetes.namespace else "the namespace of your context"
    yield f"run {run.name} in {where}, image {kubernetes.image}"
    for role in run.roles:
        count, resources = run.spec.cluster.count(role), kubernetes.resources_of(role)
        last = f" ... {count - 1}" if count > 1 else ""
        port = "" if role is Role.EVALUATOR else f", port {PORT}"
        yield f"  {role}: {run.host(role, 0)}{last}{port}; cpu {resources.cpu}, memory {resources.memory}"
    kind = "one JobSet, which its controller must be there for" if run.jobset else "an Indexed Job a role"
    queue = f"; waits in Kueue's queue {kubernetes.queue}" if kubernetes.queue else ""
    yield f"  {kind}{queue}; kept {KEPT_S // 3600} hours after the end"
    yield f"  code: {_where_code_is(run)}"
    with_disk = " and ".join(role for role in run.roles if reads_disk(run, role))
    yield f"  files of the run: {run.run_directory} on the claim {run.volume_name}, for {with_disk}"
    if run.secret is not None:
        what = "the run's secret" + (", its certificates" if run.certificates else "")
        yield f"  these manifests hold {what}: keep them as you keep a password, or name a Secret of the"
        yield "  cluster by kubernetes.secret"
    if run.foreign and run.spec.cluster.count(Role.PS) and not run.jobset:
        yield f"  the Job {run.job_name(Role.PS)} never ends by itself: delete it when the leader has ended"
    kubectl = "kubectl" + (f" -n {kubernetes.namespace}" if kubernetes.namespace else "")
    yield "start it:     kubectl apply -f FILE"
    yield f"follow it:    {kubectl} logs -f --pod-running-timeout=10m job/{run.job_name(run.leader)}"
    kinds = "jobset" if run.jobset else "job,service"
    yield f"take it away: {kubectl} delete {kinds},configmap,secret -l {RUN_LABEL}={run.name}"
    yield "              (the claim stays, and with it the checkpoints)"


def _where_code_is(run: KubernetesRun) -> str:
    if run.code.files:
        count = len(run.code.files)
        return f"{count} {'file' if count == 1 else 'files'} in a ConfigMap"
    return f"{run.code.folder} of the image" if run.code.folder else "none; the image holds what is needed"
