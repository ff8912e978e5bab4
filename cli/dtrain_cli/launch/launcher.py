"""The walk of a launch, from what the user asked for to the exit code. Read `run` from top to bottom."""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dtrain.cluster import ClusterSpec
from dtrain.cluster.spec import joined_worker
from dtrain.config import ROLES, RunSpec
from dtrain.config.choices import TlsMode
from dtrain.errors import DtrainError, SpecError
from dtrain.formats.remote_files import masked
from dtrain.process.assignment import secret_in_file
from dtrain.process.life_line import started_s
from dtrain.process.resources import USERS_LIMIT
from dtrain.process.secret import new_secret
from dtrain.runs.files import (
    FailureRecord,
    JoinRecord,
    RunFiles,
    RunRecord,
    SavedRecord,
    offer_to_join,
    read_record,
    write_record,
)
from dtrain.runs.journal import now_text
from dtrain.runs.ledger import ledger_text
from dtrain.runs.states import LIVE_RUN_STATES, FailureKind, RunState
from dtrain_cli.certificates.authority import make_authority
from dtrain_cli.console.live_table import LiveTable, evaluation_text
from dtrain_cli.console.run_console import RunConsole
from dtrain_cli.console.streams import Outlet, say
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.policies.outcomes import RunOutcome
from dtrain_cli.launch.policies.patience import LaunchLimits
from dtrain_cli.launch.request import chosen_directory, other_settings, read_request, runs_directory
from dtrain_cli.launch.run_progress import RunProgress
from dtrain_cli.launch.supervisor import Supervisor
from dtrain_cli.plan.run_plan import Machine, RunIdentity, RunPlan, Workload, build_plan
from dtrain_cli.queue.line import enter_and_wait
from dtrain_cli.queue.rules import Ticket
from dtrain_cli.queue.tickets import TicketFolder, capacity_of_machine
from dtrain_cli.runs.index import Journal, locked_run_directory, new_run_id, register_run
from dtrain_cli.runs.prometheus import exported
from dtrain_cli.runs.report import lost_on_the_way, lost_tasks, read_report
from dtrain_cli.targets.signals import SignalInbox, signal_name
from dtrain_cli.targets.target import Target

_ENDING_S = 5.0
"""The time within which all processes of a run have ended after the last SIGKILL."""


class Scene(msgspec.Struct, frozen=True):
    """The facts from which the target of a launch is made; `say` prints a line before there is a console.

    `known_in` is the runs directory that gets a link to a run whose directory is elsewhere; `replaced` has
    the spare host of each host that was lost.
    """

    spec: RunSpec
    workload: Workload
    files: RunFiles
    run_id: str
    signals: SignalInbox
    say: Callable[[str], None]
    known_in: Path | None = None
    replaced: dict[str, str] = {}

    def make_known(self) -> None:
        if self.known_in is not None:
            register_run(self.files, self.known_in, self.run_id)


def run(options: LaunchOptions, target_of: Callable[[Scene], Target], job: str | None = None) -> int:
    """Read the spec, take the directory and the ports, lay out the tasks, supervise them to the end.

    `job` is the one of an engine in which this is, and for which the run may have waited.
    """
    if options.detach:
        raise SpecError("--detach: the tasks end with their launcher here; leave the option away")
    signals = SignalInbox()
    workload, spec = read_request(options)
    claim = _claim_of(options, spec) if options.queue else None
    name, runs_dir = workload.named(spec).name, runs_directory(options)
    new_id = new_run_id(name, datetime.now())
    directory = chosen_directory(options, name) or runs_dir / new_id
    with locked_run_directory(directory, options.resume is not None, job) as files:
        known = read_record(files.run, RunRecord)
        earlier = known if options.resume is not None else None
        spec = workload.named(spec, earlier.name if earlier else None)
        elsewhere = directory.parent != runs_dir
        run_id = known.run if known else new_id if elsewhere else directory.name
        if earlier is not None and (others := other_settings(files, spec, options.foreign)):
            say(f"goes on with other settings: {others}")
        known_in = runs_dir if elsewhere else None
        scene = Scene(spec, workload, files, run_id, signals, say, known_in)
        if claim is None:
            return _start(options, scene, target_of, earlier, len(os.sched_getaffinity(0)))
        claim = replace(claim, run=run_id, name=spec.name)
        journal = Journal(files, _new_record(run_id, spec.name, earlier.saved if earlier else None), say)
        if earlier is not None and not options.foreign:
            _refuse_lost(options, spec, earlier.saved, files.newest_step or 0)  # not after a night in line
        with contextlib.closing(TicketFolder()) as folder, _ended_if_it_fails(files):
            journal.save()  # the run is pending
            scene.make_known()
            stop = enter_and_wait(folder, claim, capacity_of_machine(), signals, say)
            if stop is None:
                return _start(options, scene, target_of, earlier, claim.cores)
        journal.end(RunState.STOPPED, 128 + stop, None)
        journal.save()
        say(f"{signal_name(stop)}: left the queue; the run has not started")
        if options.json:
            Outlet(1).write(msgspec.json.encode(read_report(files.directory)).decode() + "\n")
        return 128 + stop


def _claim_of(options: LaunchOptions, spec: RunSpec) -> Ticket:
    """Return the claim of a launch, of a core for each task or thread by default, and at most of all cores.

    Raise a `SpecError` if this machine can never fulfil it, or has no queue.
    """
    TicketFolder().close()
    capacity = capacity_of_machine()
    tasks = max(sum(map(spec.cluster.count, ROLES)), spec.replicas)
    written = (each for role in ROLES if not isinstance(each := getattr(spec.cluster, role), int))
    ports = tuple(int(address.rpartition(":")[2]) for addresses in written for address in addresses)
    cores = options.cores or min(capacity.cores, tasks)
    claim = Ticket("", "", os.getpid(), cores, options.memory or 0, ports)
    if options.timeout is not None:
        claim = replace(claim, longest_s=options.timeout + spec.wait.grace(launched=True) + _ENDING_S)
    if lacks := capacity.lacks(claim, ()):
        raise SpecError(f"--queue: this launch takes {lacks} when nothing else runs; claim less")
    return claim


@contextlib.contextmanager
def _ended_if_it_fails(files: RunFiles) -> Iterator[None]:
    """Record the end of a run that fails before it has a supervisor, at its first start or a later one."""
    try:
        yield
    except (DtrainError, OSError) as error:
        now = read_record(files.run, RunRecord)
        if now is not None and now.state in LIVE_RUN_STATES and now.launcher_pid == os.getpid():
            code, journal = getattr(error, "exit_code", 1), Journal(files, now, say)
            failure = FailureRecord("launcher", str(error), FailureKind.LAUNCHER, time=now_text())
            journal.end(RunState.STOPPED if code > 128 else RunState.FAILED, code, failure)
            journal.save()
        raise


def _new_record(run_id: str, name: str, saved: SavedRecord | None) -> RunRecord:
    record = RunRecord(run_id, name, launcher_pid=os.getpid(), host=socket.gethostname(), saved=saved)
    record.launcher_started = started_s(os.getpid())
    return record


def _start(
    options: LaunchOptions,
    scene: Scene,
    target_of: Callable[[Scene], Target],
    earlier: RunRecord | None,
    cores: int,
) -> int:
    """Take the ports, start the tasks on so many cores, and see them to their end.

    When spare hosts take the places of lost ones, do all of it again: the run goes on from what it has saved.
    """
    spec, files, begun_s = scene.spec, scene.files, time.monotonic()
    while True:
        with _ended_if_it_fails(files), contextlib.closing(target_of(scene)) as target:
            cluster = target.hold_addresses(spec.cluster)
            saved = _checkpoint_to_resume(options, spec, files, earlier, target)
            scene.make_known()
            identity = _identity(options, spec, files, scene.run_id)
            plan = _plan(cluster, scene, identity, target, cores)
            if not spec.hold_ports:
                target.release_addresses()
            ended = _supervise(options, plan, files, target, scene.signals, saved)
        if isinstance(ended, int):
            return ended
        scene = replace(scene, replaced=scene.replaced | ended)
        earlier = read_record(files.run, RunRecord)
        if options.timeout is not None:
            options = replace(options, timeout=max(0.0, options.timeout - (time.monotonic() - begun_s)))


def _checkpoint_to_resume(
    options: LaunchOptions, spec: RunSpec, files: RunFiles, earlier: RunRecord | None, target: Target
) -> SavedRecord | None:
    """Return the checkpoint from which a resumed run of a program goes on, and say its step.

    Raises:
        SpecError: the run has saved steps, and there is no checkpoint where its leader starts now.
    """
    if earlier is None or options.foreign:
        return None
    found, before = target.newest(files), earlier.saved
    if found is None and (copies := spec.checkpoint.remote):
        say(f"goes on from the newest copy at {masked(copies)}; if there is none, from step 0")
        return before
    step = 0 if found is None else found.step
    _refuse_lost(options, spec, before, step)
    newer = before is not None and before.step > step and before
    say(f"goes on from step {step}{f'; step {newer.step} was saved {newer.where}' if newer else ''}")
    return found


def _refuse_lost(options: LaunchOptions, spec: RunSpec, before: SavedRecord | None, step: int) -> None:
    """Raise a `SpecError` if a run has saved steps, and its leader would start without any."""
    if spec.checkpoint.remote or options.from_scratch or before is None:
        return
    if step == 0 and before.step > 0:
        raise SpecError(
            f"--resume: the newest checkpoint, of step {before.step}, is {before.where}, and there is none "
            "where the leader starts now; have it start there, or begin at step 0 with --from-scratch"
        )


def _identity(options: LaunchOptions, spec: RunSpec, files: RunFiles, run_id: str) -> RunIdentity:
    secret = secret_in_file(spec.security) or new_secret()
    # Its key is in the memory of this process alone, and ends with it.
    requires_tls = spec.security.tls == TlsMode.REQUIRED
    makes_certificates = requires_tls and not spec.security.ca_file and not options.foreign
    authority = make_authority(run_id) if makes_certificates else None
    return RunIdentity(run_id, files.directory, secret, authority)


def _plan(cluster: ClusterSpec, scene: Scene, identity: RunIdentity, target: Target, cores: int) -> RunPlan:
    """Lay out the tasks, each as its first attempt that has left nothing yet, and write the plan down."""
    spec, files, workload = scene.spec, scene.files, scene.workload
    master = target.master() if workload.foreign else None
    machine = Machine(sys.executable, cores, os.environ, master, target.shares())
    plan = build_plan(spec, cluster, identity, workload, machine)
    tasks = [launch.for_attempt(max(files.attempts(launch.task), default=-1) + 1) for launch in plan.tasks]
    plan = replace(plan, tasks=tuple(tasks))
    if not workload.foreign:
        files.keep_spec()
    write_record(files.spec, plan.spec)
    write_record(files.plan, plan.to_dict())
    return plan


def _supervise(
    options: LaunchOptions,
    plan: RunPlan,
    files: RunFiles,
    target: Target,
    signals: SignalInbox,
    saved: SavedRecord | None,
) -> int | dict[str, str]:
    """Return the exit code, or the hosts that spare ones replace as the run is started again."""
    table = LiveTable(plan.spec.name)
    console = RunConsole(
        Outlet(1), Outlet(2), lambda *shape: table.render(supervisor.progress.rows(), *shape)
    )
    console.forget_screen_when_continued()
    record = _new_record(plan.run.run_id, plan.spec.name, saved)
    record.started = now_text()
    journal = Journal(files, record, console.say)
    wait = plan.spec.wait
    limits = LaunchLimits(options.timeout, wait.start_s, options.stall_timeout, wait.grace(launched=True))
    supervisor = Supervisor(plan, target, signals, journal, console, limits)
    resumed = " is resumed" if options.resume is not None else ""
    console.say(f"run {plan.run.run_id}{resumed}: {plan.spec.cluster}")
    console.say(f"files in {files.directory}; {_threads(plan)}")
    with _open_to_workers(plan, journal, files), exported(options.prometheus, files.directory):
        outcome = supervisor.run()
    if supervisor.replaced:
        console.finish(None, None, None)
        return supervisor.replaced
    last_word = _last_word(outcome, time.monotonic() - supervisor.started_s, supervisor.progress)
    own = {str(launch.task) for launch in plan.tasks}
    report = read_report(files.directory)
    if report["goodput"] is not None:
        with contextlib.suppress(OSError):
            write_record(files.goodput, report["goodput"])
        console.say(ledger_text(report["goodput"]))
    for text in supervisor.advice.texts:
        console.say(text)
    joined = [task for task in lost_tasks(report) if task["task"] not in own]
    lost = [(life.state, life.lost) for life in supervisor.lives.values() if life.lost]
    if text := lost_on_the_way(lost, joined):
        last_word += f"; {text}"
    if there := target.left_there(plan.leader):
        last_word += f"; its files are {there}"
    if files.fetched.exists():
        from dtrain_cli.fleet.target import apart_text  # not above: a launch here needs nothing of hosts

        last_word += f"; {apart}" if (apart := apart_text(files.fetched)) else ""
    why = None if outcome.failure is None else outcome.failure.kind
    may_go_on = outcome.state == RunState.STOPPED or why in (FailureKind.HOST_LOST, FailureKind.LAUNCHER)
    resumable = may_go_on and record.saved is not None
    how, line_to = ("resume", options.line_to_resume) if resumable else ("look at it", options.line_to_report)
    way_on = f"{how} with  {line_to(plan.run.run_id)}"
    final = msgspec.json.encode(report).decode() if options.json else None
    console.finish(outcome.failure, last_word, final, way_on)
    return outcome.exit_code


@contextlib.contextmanager
def _open_to_workers(plan: RunPlan, journal: Journal, files: RunFiles) -> Iterator[None]:
    journal.save()
    files.goodput.unlink(missing_ok=True)  # of the launch before
    if plan.tasks[0].program is not None:
        joining = plan.run.certificate(joined_worker())
        offer = JoinRecord(plan.run.run_id, True, plan.cluster.to_dict(), plan.run.secret, joining)
        offer_to_join(files, offer)
    try:
        yield
    finally:
        files.join.unlink(missing_ok=True)


def _threads(plan: RunPlan) -> str:
    if threads := plan.tasks[0].environment.get(USERS_LIMIT):
        return f"{threads} {'thread' if threads == '1' else 'threads'} a task"
    return f"{USERS_LIMIT}={os.environ.get(USERS_LIMIT)} as you set it"


def _last_word(outcome: RunOutcome, took_s: float, progress: RunProgress) -> str:
    """Return for example ``succeeded after 8.1 s at step 400; accuracy 0.9712``."""
    words = f"{outcome.state} after {took_s:.1f} s"
    if progress.step is not None:
        words += f" at step {progress.step}"
        words += "" if progress.local_steps is None else f" ({progress.local_steps} local steps)"
    if progress.stale_gradients:
        words += f", {progress.stale_gradients} gradients came too late"
    if outcome.exit_code:
        words += f", exit code {outcome.exit_code}"
    if evaluation := progress.evaluation:
        words += f"; {evaluation_text(evaluation, progress.step)}"
    return words
