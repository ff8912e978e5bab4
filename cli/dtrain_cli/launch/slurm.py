"""`dtrain launch --on slurm`: in an allocation a launch with agents by srun, outside a job that is one."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from dtrain.cluster.hosts import is_loopback
from dtrain.config import Host, NetworkSection, read_hosts
from dtrain.config.choices import On
from dtrain.errors import RunError, SpecError
from dtrain.process.private_variables import SECRET
from dtrain.runs.files import FailureRecord, RunFiles, RunRecord, TaskRecord
from dtrain.runs.journal import now_text
from dtrain.runs.states import FailureKind, RunState
from dtrain_cli.console.log_lines import LogTail
from dtrain_cli.console.streams import Outlet, say
from dtrain_cli.fleet.link import HostError
from dtrain_cli.fleet.target import FleetTarget
from dtrain_cli.launch import launcher
from dtrain_cli.launch.launcher import Scene
from dtrain_cli.launch.on_hosts import fleet_target, slurm_folder
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import chosen_directory, read_named, runs_directory
from dtrain_cli.launch.run_elsewhere import RunElsewhere, View, follow
from dtrain_cli.plan.run_plan import tasks_of
from dtrain_cli.plan.standalone_start import own_host
from dtrain_cli.runs.ending import note, user_has_stopped
from dtrain_cli.runs.index import KnownRun, WhereRecord, known_runs, make_known, own_record, where_of
from dtrain_cli.runs.report import is_alive
from dtrain_cli.targets import slurm_jobs
from dtrain_cli.targets.signals import SignalInbox
from dtrain_cli.targets.slurm_allocation import Allocation, Srun, read_allocation
from dtrain_cli.targets.slurm_jobs import JOB, RUNNING, WAITING, JobReport, JobScript, option_name

_LAST_S = 10.0
"""The longest wait for the rest of the output of a job that is over: other machines write it."""
UNKNOWN_MAX = 5
"""Answers in a row that Slurm knows no such job; it forgets one minutes after its end."""


class JobOfRun(RunElsewhere):
    """A job that runs a launch; the command that has submitted it shows its `output`."""

    def __init__(self, files: RunFiles, job: str, output: Sequence[Path] = ()) -> None:
        super().__init__(files, job)
        self.name = f"job {job}"
        tails = (LogTail(None, path, line_bytes_max=None) for path in output)
        self._output = [(tail, Outlet(fd)) for fd, tail in enumerate(tails, 1)]
        self._unknown = 0
        self._ended = False

    def look(self) -> View:
        return self.view_of(slurm_jobs.show(self.job))

    def view_of(self, report: JobReport | None) -> View:
        """Return what a report says of the run; None of a job that Slurm has forgotten."""
        self._unknown = 0 if report else self._unknown + 1
        if report is None:
            forgotten = self._unknown >= UNKNOWN_MAX or not self._output
            sentence = f"Slurm knows no {self.name} any more"
            return self._failed(1, sentence, sentence) if forgotten else View(RunState.STARTING)
        sentence, code = f"{self.name} is {report.state}", report.exit_code if report.over else None
        if report.state in WAITING and report.reason not in ("None", ""):
            sentence += f" ({report.reason})"
        sentence += f", exit code {code}" if code else ""
        if report.restarts:
            sentence += ", requeued " + ("once" if report.restarts == 1 else f"{report.restarts} times")
        more = f"; it may begin at {report.begins}" if report.begins else ""
        ends = {None: RunState.STARTING, 0: RunState.SUCCEEDED, 128 + signal.SIGTERM: RunState.STOPPED}
        if report.state not in WAITING and code not in ends:
            return self._failed(code, sentence, f"{sentence}; its words are in {report.err}")
        state = RunState.PENDING if report.state in WAITING else ends[code]
        return View(state, code, sentence + more, [sentence])

    def _failed(self, code: int | None, sentence: str, message: str) -> View:
        failure = FailureRecord(self.name, message, FailureKind.LAUNCHER, now_text(), exit_code=code)
        return View(RunState.FAILED, code, message, [sentence], (), failure)

    def show(self) -> bool:
        shown = []
        for tail, outlet in self._output:
            outlet.flush()
            lines = [] if outlet.clogged else tail.read(self._ended)
            shown += lines
            outlet.write("".join(f"{line}\n" for line in lines))
        return bool(shown)

    def close(self, end: View | None) -> None:
        self._ended = end is not None
        deadline_s = time.monotonic() + _LAST_S
        while self._ended and self.show() and time.monotonic() < deadline_s:
            pass
        for tail, _ in self._output if end else ():
            if not tail.path.exists():
                say(f"{tail.path} cannot be seen from here; it is on the first node of the job")

    def cancel(self) -> None:
        slurm_jobs.cancel(self.job)

    def tell_to_stop(self) -> None:
        record = own_record(self.files.directory)
        if record is None or record.launcher_pid is None:
            self.cancel()
        else:
            note(KnownRun(self.files, record))
            slurm_jobs.tell_to_stop(self.job)


FOLDER = "slurm"
"""The folder for the output of jobs, beside that of the runs."""


def job_of(options: LaunchOptions, now: datetime) -> tuple[JobScript, Path]:
    """Return the job of a launch and its run directory, which JOB may end; nothing is written."""
    workload, spec = read_named(options)
    if spec.slurm.notice_s < spec.slurm.grace_s:
        few = f"slurm.time is {spec.slurm.time_s} s, too little for slurm.grace_s of {spec.slurm.grace_s} s"
        say(f"{few}: the job is told to save and stop {spec.slurm.notice_s} s before its end")
    runs_dir, label = runs_directory(options), f"{now:%Y%m%d-%H%M%S}-{spec.name}"
    run_dir = chosen_directory(options, spec.name) or runs_dir / f"{label}-{JOB}"
    # What was written comes last, and wins over what stands before it.
    command = [
        *(spec.python or sys.executable, "-P", "-m", "dtrain_cli.main", "launch"),
        *("--on", On.SLURM, "--runs-dir", str(runs_dir), "--run-dir", str(run_dir)),
        *(*options.given, *options.behind),
    ]
    out, err = (runs_dir.with_name(FOLDER) / f"{label}-%j.{ending}" for ending in ("out", "err"))
    return JobScript(spec, command, workload.cwd, out, err), run_dir


def launch(options: LaunchOptions) -> int:
    """Launch on the nodes of this allocation; outside of one, submit a job that does, and follow it.

    Raises:
        SpecError: the spec, the program or the command is wrong; nothing has been started or left behind.
        RunError: the run directory cannot be used, or Slurm refuses the job.
        HostError: a node cannot be used.
    """
    os.environ.pop(SECRET, None)  # of another run
    allocation = read_allocation(os.environ)
    if allocation is not None:
        return _launch_on_nodes(options, allocation)
    script, run_dir = job_of(options, datetime.now())
    array = any(option_name(each) in ("--array", "-a") for each in script.spec.slurm.options)
    if array and not options.detach:
        raise SpecError("slurm.options: a command follows one job; submit an array with --detach")
    try:
        script.out.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{script.out.parent} cannot be made: {error.strerror}") from None
    job = slurm_jobs.submit(script.text())
    files = RunFiles(Path(str(run_dir).replace(JOB, job)))
    say(f"job {job} is submitted; files of the run: {files.directory}")
    out, err = (Path(str(path).replace("%j", job)) for path in (script.out, script.err))
    run = JobOfRun(files, job, (out, err))
    if not array:
        _make_known(files, job, err.stem, script, runs_directory(options))
        say(f"output of the job: {out} and {err.name}")
    if options.detach:
        run.leave()
        print(job)  # noqa: T201
        return 0
    return follow(run, SignalInbox())[1]


def _make_known(files: RunFiles, job: str, run_id: str, script: JobScript, runs_dir: Path) -> None:
    """Write down that a run waits for its job; where its folder is made on the nodes alone, they do so."""
    with contextlib.suppress(OSError, RunError):
        files.create()
        tasks = [TaskRecord(str(task)) for task in tasks_of(script.spec.cluster)]
        earlier = own_record(files.directory) or RunRecord(run_id, script.spec.name, tasks=tasks)
        if not is_alive(files, earlier):
            waits = RunRecord(earlier.run, earlier.name, saved=earlier.saved, tasks=earlier.tasks)
            make_known(files, runs_dir, earlier.run, WhereRecord(On.SLURM, job=job), waits)


def plan(options: LaunchOptions) -> int:
    """Print the script that `launch` would submit, and what it means on stderr; nothing is submitted."""
    script, run_dir = job_of(options, datetime.now())
    print(script.text(), end="")  # noqa: T201
    nodes = f"{script.nodes} {'node' if script.nodes == 1 else 'nodes'}"
    say(f"a job of {nodes} for {script.spec.cluster}; submit it with `sbatch FILE`")
    say(f"files of the run: {run_dir}, which all nodes have to see")
    say(f"output of the job: {script.out} and {script.err.name}")
    if not script.out.parent.is_dir():
        say(f"that folder has to be there before: mkdir -p {script.out.parent}")
    return 0


def _launch_on_nodes(options: LaunchOptions, allocation: Allocation) -> int:
    scenes: list[Scene] = []

    def target(scene: Scene) -> FleetTarget:
        scenes.append(scene)
        hosts = allocation.hosts(read_hosts(scene.spec.hosts) if scene.spec.hosts else ())
        opener = Srun(allocation, scene.spec.python or sys.executable, options.foreign)
        place = allocation.places(hosts, scene.spec.cluster, scene.spec.place)
        scene = replace(scene, spec=replace(scene.spec, place=place))
        hosts = _with_addresses(hosts, scene.spec.network)
        folders = {host.host: slurm_folder(place) for place, host in enumerate(hosts)}
        return fleet_target(scene, On.SLURM, hosts, opener, allocation.job, folders)

    options = replace(options, detach=options.detach and not allocation.batch)  # it was for the submission
    code = launcher.run(_resumed(options, allocation), target, allocation.job)
    told = code == 128 + signal.SIGTERM and allocation.batch and bool(scenes)
    if told and scenes[0].spec.slurm.requeue and not user_has_stopped(scenes[0].files):
        _begin_again(allocation.job)
    return code


def _begin_again(job: str) -> None:
    """Requeue a job that was told to stop, and still runs: its time is over, or another job takes its nodes.

    A job that was cancelled does not run any more. At the end of the notice Slurm requeues only what lives.
    """
    try:
        if (report := slurm_jobs.show(job)) is not None and report.state == RUNNING:
            say(f"job {job} was told to stop: it is requeued, and goes on from its last step")
            slurm_jobs.requeue(job)
    except RunError as error:
        say(f"{error}; submit the job again with --resume to go on")


def _resumed(options: LaunchOptions, allocation: Allocation) -> LaunchOptions:
    if allocation.restarts == 0 or options.resume is not None:
        return options
    known = (run.files for run in known_runs(runs_directory(options)))  # the newest that the job has begun
    begun = (files.directory for files in known if where_of(files).job == allocation.job)
    directory = options.run_dir or next(begun, None)
    if directory is None or not RunFiles(directory).run.exists():
        return options
    return replace(options, run_dir=directory, resume="", given=("--resume=", *options.given))


def _with_addresses(hosts: Sequence[Host], network: NetworkSection) -> list[Host]:
    """Return the nodes with the addresses that Slurm knows, where the spec says nothing of them.

    This node's own name may mean a loopback address here: others reach it where it reaches them. If that
    holds for all nodes, they are one machine.
    """
    lacking = [host.host for host in hosts if host.address is None]
    if network.interface is not None or not lacking:
        return list(hosts)
    addresses = slurm_jobs.node_addresses(lacking)
    far = next((each for each in addresses.values() if not is_loopback(f"{each}:0")), None)
    if far is not None:
        addresses |= {node: own_host(far) for node, each in addresses.items() if is_loopback(f"{each}:0")}
    lost = next((node for node in lacking if node not in addresses), None)
    if lost is not None and len(hosts) > 1:
        instead = f"write `hosts: [{{host: {lost}, address: ...}}]` in the spec, or set network.interface"
        raise HostError(f"{lost}: its address in Slurm cannot be resolved here; {instead}")
    return [replace(host, address=host.address or addresses.get(host.host)) for host in hosts]
