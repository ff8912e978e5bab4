"""`dtrain plan --on kubernetes`: everything that a run there needs from this machine, and its manifests."""

import json
import os
import secrets
import string
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

import click

from dtrain.cluster import ClusterSpec, Role
from dtrain.cluster.spec import LeafNames, joined_worker, task_name
from dtrain.config import RunSpec
from dtrain.config.choices import TlsMode
from dtrain.errors import SpecError
from dtrain.formats.bounded_reading import read_regular
from dtrain.process.assignment import run_id_by_hand, secret_in_file
from dtrain.process.secret import new_secret
from dtrain.process.tls_material import TlsMaterial
from dtrain_cli.certificates.authority import AUTHORITY_DAYS, make_authority
from dtrain_cli.code import check_texts, code_files, may_leave, pack, password_problems
from dtrain_cli.console.streams import say
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import read_request
from dtrain_cli.plan.run_plan import Workload, tasks_of
from dtrain_cli.targets.kubernetes.kubectl import Kubectl
from dtrain_cli.targets.kubernetes.manifests import (
    BESIDE,
    KEPT_S,
    NAME_OF_JOB,
    RUN_LABEL,
    TRAINER_API,
    manifests,
    objects_text,
    reads_disk,
    training_runtime,
)
from dtrain_cli.targets.kubernetes.run import PORT, SUFFIX_LENGTH, Code, KubernetesRun, object_name


def plan(options: LaunchOptions) -> int:
    """Print the manifests of a run and its plan; nothing is sent anywhere."""
    run = gather(options, os.environ)
    objects = manifests(run)
    click.echo(objects_text(objects, options.json), nl=False)
    for line in about(run):
        click.echo(line, err=True)
    return 0


def plan_runtime(options: LaunchOptions) -> int:
    """Print the runtime of which Kubeflow Trainer makes runs like this one, and how one is started."""
    run = gather(options, os.environ, NAME_OF_JOB)
    click.echo(objects_text([training_runtime(run)], options.json), nl=False)
    metadata, spec = {"generateName": f"{run.spec.name}-"}, {"runtimeRef": {"name": run.spec.name}}
    job = {"apiVersion": TRAINER_API, "kind": "TrainJob", "metadata": metadata, "spec": spec}
    click.echo(f"each run is a TrainJob, by kubectl create -f FILE: {json.dumps(job)}", err=True)
    return 0


def about(run: KubernetesRun) -> Iterator[str]:
    """Yield the plan for people, a line each, of at most 100 columns where names are short."""
    kubernetes = run.spec.kubernetes
    where = f"namespace {kubernetes.namespace}" if kubernetes.namespace else "the namespace of your context"
    yield f"run {run.name} in {where}, image {kubernetes.image}"
    for role in run.roles:
        count, share = run.spec.cluster.count(role), kubernetes.resources_of(role)
        last = f" ... {count - 1}" if count > 1 else ""
        port = "" if role is Role.EVALUATOR else f", port {PORT}"
        yield f"  {role}: {run.host(role, 0)}{last}{port}; cpu {share['cpu']}, memory {share['memory']}"
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
    kubectl, done = " ".join(Kubectl(run.spec, run.owner).command), "Completed" if run.jobset else "Complete"
    yield "start it:     kubectl apply -f FILE"
    yield f"follow it:    {kubectl} logs -f --pod-running-timeout=10m job/{run.job_name(run.leader)}"
    yield f"wait for it:  {kubectl} wait --for=condition={done} --timeout=-1s {run.owner}"
    kinds = f"{run.owner.partition('/')[0]},{BESIDE}"
    yield f"take it away: {kubectl} delete {kinds} -l {RUN_LABEL}={run.name}"
    yield "              (the claim stays, and with it the checkpoints)"


def _where_code_is(run: KubernetesRun) -> str:
    if count := len(run.code.files):
        return f"{count} {'file' if count == 1 else 'files'} in a ConfigMap"
    return f"{run.code.folder} of the image" if run.code.folder else "none; the image holds what is needed"


FILE_BYTES_MAX = 1 << 20
_LETTERS = string.ascii_lowercase + string.digits


def gather(options: LaunchOptions, environment: Mapping[str, str], name: str | None = None) -> KubernetesRun:
    """Return the run that the options describe; `name` is that of the objects of a run that goes on.

    Raises:
        SpecError: the spec is wrong, or cannot run on Kubernetes; a file or a secret is not there.
        RunError: the code cannot be listed.
    """
    workload, spec = read_request(options, environment)
    spec = workload.named(spec)
    for path, text in password_problems(spec, workload.arguments):
        raise SpecError(f"{path[0]}: {text}")
    suffix = "".join(secrets.choice(_LETTERS) for _ in range(SUFFIX_LENGTH))
    code, command = _code(spec, workload)
    objects = name or object_name(spec.name, suffix)
    run = KubernetesRun(objects, spec, code, command, timeout_s=options.timeout)
    if spec.kubernetes.secret is not None:
        return run
    secret = None if run.foreign else secret_in_file(spec.security) or new_secret()
    values = {name: environment[name] for name in spec.secrets}
    check_texts(code.files, [*([secret] if secret else []), *values.values()])
    certificates = {} if run.foreign else _certificates(spec, run.addresses)
    return replace(run, secret=secret, secrets=values, certificates=certificates)


def _code(spec: RunSpec, workload: Workload) -> tuple[Code, tuple[str, ...]]:
    folder = Path((spec.code or {}).get("from", "."))
    if workload.program is None:
        command = ("--", *workload.arguments)
    else:
        if spec.code is None and spec.kubernetes.code_in is None:
            folder = workload.program.parent
        below = _below(workload.program, folder)
        command = (str(PurePosixPath(spec.kubernetes.code_in or "", below)), *workload.arguments)
    if spec.kubernetes.code_in is not None:
        return Code(spec.kubernetes.code_in), command
    if spec.code is not None:
        names = code_files(folder, spec.code.get("exclude", ()))
    elif workload.program is not None:
        names = [workload.program.name]
    else:
        names = [word for word in workload.arguments if word.endswith(".py") and _travels(word)]
    names = may_leave(folder, names, spec.security, say)
    return Code(archive=pack(folder, names) if names else None), command


def _below(program: Path, folder: Path) -> str:
    try:
        return program.absolute().relative_to(folder.absolute()).as_posix()
    except ValueError:
        raise SpecError(
            f"{program}: the pods have the code of {folder.absolute()}, and the program is not below it; see "
            "code.from"
        ) from None


def _travels(word: str) -> bool:
    """Return whether a word of a foreign command names a script that pods can have at the same place."""
    path = Path(word)
    return path.is_file() and not path.is_absolute() and ".." not in path.parts


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, FILE_BYTES_MAX)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None


def _certificates(spec: RunSpec, addresses: ClusterSpec) -> dict[str, TlsMaterial]:
    """Return a certificate for each task: those of the user's files, or of an authority that ends with us."""
    security = spec.security
    tasks = tasks_of(spec.cluster)
    if security.ca_file is not None and security.tls != TlsMode.OFF:
        found = {}
        for task in tasks:
            own = security.of_task(task.role, task.index)
            files = (own.ca_file, own.cert_file, own.key_file)
            found[task_name(task)] = TlsMaterial(*(_read(Path(file or "").expanduser()) for file in files))
        return found
    if security.tls != TlsMode.REQUIRED:
        return {}
    run_id = run_id_by_hand(addresses)
    authority = make_authority(run_id)
    names = [*map(task_name, tasks), joined_worker()]
    return {name: authority.issue(LeafNames.of(run_id, name), AUTHORITY_DAYS) for name in names}
