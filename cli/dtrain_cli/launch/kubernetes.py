"""`dtrain plan` and `launch --on kubernetes`: manifests, their way there, and how commands see the run.

kubectl shows what pods print; what becomes of them is said here.
"""

import json
import os
import secrets
import string
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import click
import msgspec

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.cluster.spec import LeafNames, joined_worker, task_name
from dtrain.config import RunSpec
from dtrain.config.choices import On, TlsMode
from dtrain.errors import RunError, SpecError
from dtrain.process.assignment import run_id_by_hand, secret_in_file
from dtrain.process.plain_text import plain_data
from dtrain.process.secret import new_secret
from dtrain.process.tls_material import TlsMaterial, read_tls_file
from dtrain.runs.files import FailureRecord, RunFiles, RunRecord, TaskRecord, read_record, write_record
from dtrain.runs.journal import now_text
from dtrain.runs.states import ENDED, LIVE_RUN_STATES, FailureKind, RunState, TaskState
from dtrain_cli.certificates.authority import AUTHORITY_DAYS, make_authority
from dtrain_cli.code import check_texts, code_files, may_leave, pack
from dtrain_cli.console.run_console import RunConsole
from dtrain_cli.console.streams import Outlet, say
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import chosen_directory, other_settings, read_named, runs_directory
from dtrain_cli.launch.run_elsewhere import RunElsewhere, View, follow
from dtrain_cli.launch.tasks import LAST_LINES
from dtrain_cli.plan.run_plan import Workload, tasks_of
from dtrain_cli.runs.index import WhereRecord, locked_run_directory, make_known, own_record, where_of
from dtrain_cli.runs.report import ProcessMeter, read_report
from dtrain_cli.targets.kubernetes.kubectl import Kubectl, PodView, RunView
from dtrain_cli.targets.kubernetes.manifests import (
    BESIDE,
    KEPT_S,
    NAME_OF_JOB,
    RUN_LABEL,
    TRAINER_API,
    manifests,
    may_be_lost,
    objects_text,
    reads_disk,
    training_runtime,
)
from dtrain_cli.targets.kubernetes.run import PORT, SUFFIX_LENGTH, Code, KubernetesRun, object_name, wait_of
from dtrain_cli.targets.signals import SignalInbox


def plan(options: LaunchOptions) -> int:
    """Print the manifests of a run and its plan; nothing is sent anywhere."""
    run = gather(options, os.environ)
    objects = manifests(run)
    click.echo(objects_text(objects, options.json), nl=False)
    click.echo("\n".join(about(run)), err=True)
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


_LETTERS = string.ascii_lowercase + string.digits


def gather(options: LaunchOptions, environment: Mapping[str, str], name: str | None = None) -> KubernetesRun:
    """Return the run that the options describe; `name` is that of the objects of a run that goes on.

    Raises:
        SpecError: the spec is wrong, or cannot run on Kubernetes; a file or a secret is not there.
        RunError: the code cannot be listed.
    """
    workload, spec = read_named(options, environment=environment)
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


def _certificates(spec: RunSpec, addresses: ClusterSpec) -> dict[str, TlsMaterial]:
    """Return a certificate for each task: those of the user's files, or of an authority that ends with us."""
    security = spec.security
    tasks = tasks_of(spec.cluster)
    if security.ca_file is not None and security.tls != TlsMode.OFF:
        found = {}
        for task in tasks:
            own = security.of_task(task.role, task.index)
            files = [Path(file or "").expanduser() for file in (own.ca_file, own.cert_file, own.key_file)]
            found[task_name(task)] = TlsMaterial(*map(read_tls_file, files))
        return found
    if security.tls != TlsMode.REQUIRED:
        return {}
    run_id = run_id_by_hand(addresses)
    authority = make_authority(run_id)
    names = [*map(task_name, tasks), joined_worker()]
    return {name: authority.issue(LeafNames.of(run_id, name), AUTHORITY_DAYS) for name in names}


LAST_TASKS_S = 60.0
DRAIN_S = 5.0
TIMEOUT_CODE = 124
STOPPED_CODE = 143
FOLLOWED_MAX = 64
"""Pods whose output is shown at once: each is a process of kubectl and a connection to the cluster."""


class PodsOfRun(RunElsewhere):
    """A run whose tasks are pods; `job` is the object with which all of it goes.

    Attributes:
        awaited: tasks without which it has failed, if they have not started within `wait.start_s`.
        last_tasks_s: how long tasks may take to end by themselves after the leader has succeeded.
    """

    last_tasks_s = 0.0

    def __init__(self, files: RunFiles, job: str) -> None:
        super().__init__(files, job)
        if (spec := read_record(files.spec, RunSpec)) is None:
            raise RunError(f"{files.spec} is gone, and with it how the run is reached in its cluster")
        self.kubectl = Kubectl(spec, job)
        self.what_stays = self.kubectl.what_stays
        record = own_record(files.directory)
        self._tasks = {TaskId.parse(task.task) for task in record.tasks} if record else set()
        self.awaited: set[TaskId] = set()
        self._seen = RunView()
        self._shown: dict[str, subprocess.Popen[bytes]] = {}
        self._since_s = time.monotonic()
        self._succeeded_s: float | None = None

    def look(self) -> View:
        self._seen = seen = self.kubectl.view()
        why = seen.message if seen.state in LIVE_RUN_STATES else None
        waits = [f"{self.name} waits: {why}"] if why else []
        if waits:
            self._since_s = time.monotonic()
        self.awaited -= {pod.task for pod in seen.pods if pod.has_output}
        words = [*waits, *(text for pod in seen.pods for text in self._words(pod))]
        if (missing := self._tasks - seen.newest.keys()) and (refusal := self.kubectl.refusal()):
            words += self._words(PodView(min(missing), "", "", "", TaskState.PENDING, message=refusal))
        tasks = [
            TaskRecord(
                str(task),
                pod.state,
                None,
                pod.node,
                restarts=seen.restarts(task),
                exit_code=pod.exit_code,
                message=pod.message,
            )
            for task, pod in seen.newest.items()
        ]
        state, code, message = self._end()
        failure = self._failure(message) if state is RunState.FAILED else None
        if code is None:
            message = next((text for text in words if " waits: " in text), None)
        return View(state, code, message, words, tasks, failure)

    def _words(self, pod: PodView) -> Iterator[str]:
        what = pod.told(" ".join(self.kubectl.command))
        if pod.state == TaskState.PENDING:
            if self._seen.restarts(pod.task):
                yield f"{pod.task} is made again: {pod.name}"
            if pod.message:
                yield f"{pod.task} waits: {what}"
        elif pod.state == TaskState.FAILED:
            yield f"{pod.task} has failed ({pod.name}): {what}"
        elif pod.message and pod.state != TaskState.SUCCEEDED:
            yield f"{pod.task} is lost ({pod.name}): {what}"

    def _end(self) -> tuple[RunState, int | None, str | None]:
        """Return the state of the run, its exit code if it is over, and why that is so."""
        seen, now_s = self._seen, time.monotonic()
        if seen.state is None:
            return RunState.STOPPED, STOPPED_CODE, "its objects were deleted"
        if seen.state == RunState.STOPPED:
            return seen.state, TIMEOUT_CODE, seen.message
        if seen.state == RunState.FAILED:
            return seen.state, (seen.failed.exit_code if seen.failed else None) or 1, seen.message
        if seen.state == RunState.SUCCEEDED:
            self._succeeded_s = self._succeeded_s or now_s
            over = all(pod.state in ENDED for pod in seen.newest.values())
            over = over or now_s - self._succeeded_s >= self.last_tasks_s
            return (seen.state, 0, None) if over else (RunState.STOPPING, None, None)
        if self.awaited and now_s - self._since_s > (start_s := wait_of(self.kubectl.spec)["start_s"]):
            why = f"{min(self.awaited)} has not started within {start_s:g} s (wait.start_s)"
            return RunState.FAILED, 1, why
        return seen.state, None, None

    def _failure(self, message: str | None) -> FailureRecord:
        if (pod := self._seen.failed) is None:
            return FailureRecord("", message or "the run has failed", FailureKind.EXIT)
        how = f" ({pod.message})" if pod.message else ""
        return FailureRecord(
            str(pod.task),
            f"pod {pod.name} ended with exit code {pod.exit_code}{how}",
            FailureKind.EXIT,
            time=now_text(),
            exit_code=pod.exit_code,
            last_lines=self.kubectl.last_lines(pod.name, LAST_LINES),
        )

    def show(self) -> bool:
        for pod in self._seen.pods:
            living = sum(each.poll() is None for each in self._shown.values())
            if pod.has_output and pod.uid not in self._shown and living < FOLLOWED_MAX:
                self._shown[pod.uid] = self.kubectl.show(pod.name, "-f", "--prefix")
        return False

    def cancel(self) -> None:
        self.kubectl.delete()

    def close(self, end: View | None) -> None:
        self.show()
        if end is not None and self._seen.failed is not None:
            self.kubectl.suspend()
        elif end is not None and self._seen.state not in (None, RunState.SUCCEEDED):
            # Nothing is to be seen there.
            say("removing the run there: the leader saves, and all tasks end in order")
            self.kubectl.delete()
        deadline_s = time.monotonic() + (DRAIN_S if end else 0.0)
        for shown in self._shown.values():
            try:
                shown.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                shown.kill()
                shown.wait()

    def report(self, meter: ProcessMeter | None = None) -> dict[str, Any]:
        report = super().report(meter)
        leader = self._seen.newest.get(self.kubectl.leader)
        if leader is not None and leader.has_output and leader.state not in ENDED:
            lay_over(report, plain_data(self.kubectl.report(leader.name)))
        return report

    def show_logs(self, tasks: Collection[TaskId], last: int | None, follow: bool, as_json: bool) -> bool:
        if as_json:
            raise click.UsageError("--json: the cluster has the logs of this run, as text alone")
        self._seen = self.kubectl.view()
        pods = [pod for task, pod in sorted(self._seen.newest.items()) if task in tasks and pod.has_output]
        options = [*(["--prefix"] if len(pods) > 1 else []), *(["-f"] if follow else [])]
        options += [] if last is None else [f"--tail={last}"]
        try:
            for pod in pods:
                self._shown[pod.uid] = shown = self.kubectl.show(pod.name, *options)
                if not follow:  # one after the other
                    shown.wait()
            for shown in self._shown.values():
                shown.wait()
        finally:
            for shown in self._shown.values():
                shown.kill()
        return bool(pods)

    def remove(self) -> str:
        self.kubectl.delete()
        return f"run {self.kubectl.name} is removed from the cluster{self.what_stays}"


def lay_over(report: dict[str, Any], leaders: Mapping[str, Any]) -> None:
    """Take over from the leader's report what nothing is known of here; it is another machine's word."""
    rows = leaders.get("tasks")
    sound = [each for each in rows if isinstance(each, dict)] if isinstance(rows, list) else []
    by_name = {str(each.get("task")): each for each in sound}
    for known in (report, *report["tasks"]):
        more = leaders if known is report else by_name.get(known["task"], {})
        known |= {name: more[name] for name in known.keys() & more.keys() if not known[name]}


def launch(options: LaunchOptions) -> int:
    """Carry out the launch; return the exit code.

    Raises:
        SpecError: the spec, the program or the options are wrong; nothing has been applied.
        RunError: kubectl is not there, or the cluster refuses the run; nothing of it is left there.
    """
    signals = SignalInbox()
    directory = chosen_directory(options, None)
    earlier: PodsOfRun | None = None
    if directory is not None and options.resume is not None:
        where = where_of(RunFiles(directory))
        if where.engine is not On.KUBERNETES or where.job is None:
            raise SpecError(f"--resume: the run in {directory} was not on Kubernetes; leave away --on")
        earlier = PodsOfRun(RunFiles(directory), where.job)
    run = gather(options, os.environ, earlier.kubectl.name if earlier else None)
    objects = manifests(run)
    runs_dir, run_id = runs_directory(options), f"{datetime.now():%Y%m%d-%H%M%S}-{run.name}"
    with locked_run_directory(directory or runs_dir / run_id, options.resume is not None) as files:
        if earlier is not None and earlier.kubectl.view().state is not None:
            raise SpecError(f"run {run.name} is still in the cluster; stop it with `dtrain stop {run.name}`")
        if earlier is not None and (others := other_settings(files, run.spec, options.foreign)):
            say(f"goes on with other settings: {others}")
        files.keep_spec()
        write_record(files.spec, run.spec)
        addresses = run.addresses
        tasks = [TaskRecord(str(task), address=addresses.address(task)) for task in run.tasks]
        record = RunRecord(files.directory.name, run.spec.name, started=now_text(), tasks=tasks)
        make_known(files, runs_dir, run_id, WhereRecord(On.KUBERNETES, job=run.owner), record)
        there = PodsOfRun(files, run.owner)
        there.last_tasks_s = LAST_TASKS_S
        there.awaited = {task for task in run.tasks if not may_be_lost(run, task.role)}
        try:
            there.kubectl.apply(objects)
        except RunError as refused:
            failure = FailureRecord("", str(refused), FailureKind.LAUNCHER)
            there.note(View(RunState.FAILED, 1, failure=failure))
            raise
        files.kept_spec.unlink(missing_ok=True)  # the cluster tells of no steps
        say(f"run {run.name} is in the cluster: {run.spec.cluster}; files in {files.directory}")
        if options.detach:
            there.leave()
        end, code = (None, 0) if options.detach else follow(there, signals)
        _finish(options, there, end)
        return code


def _finish(options: LaunchOptions, run: PodsOfRun, end: View | None) -> None:
    """Print the last words of a launch; None: its run goes on."""
    run_id, last_word, way_on = run.files.directory.name, None, None
    if end is not None:
        why = f": {end.message}" if end.message else ""
        last_word = f"run {run_id} has {end.state}{why}{run.what_stays}"
        way_on = f"resume with  {options.line_to_resume(run_id)}" if end.state == RunState.STOPPED else None
    report = msgspec.json.encode(read_report(run.files.directory)).decode() if options.json else None
    RunConsole(Outlet(1), Outlet(2)).finish(end.failure if end else None, last_word, report, way_on)
