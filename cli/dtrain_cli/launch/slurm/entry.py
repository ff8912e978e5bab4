"""`dtrain launch --on slurm` and `dtrain plan --on slurm`."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from dtrain.config import Host, NetworkSection, SlurmSection, read_hosts
from dtrain.config.choices import On
from dtrain.errors import RunError
from dtrain.process.private_variables import SECRET
from dtrain.runs.files import RunFiles, default_runs_dir, read_record
from dtrain_cli.console.streams import say
from dtrain_cli.fleet.target import FleetTarget
from dtrain_cli.launch import launcher
from dtrain_cli.launch.launcher import Scene
from dtrain_cli.launch.on_hosts import fleet_target, slurm_folder
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.slurm.following import Follower
from dtrain_cli.launch.slurm.submission import Submission, submission
from dtrain_cli.runs.index import known_runs
from dtrain_cli.runs.stop import user_has_stopped
from dtrain_cli.runs.where import WhereRecord
from dtrain_cli.targets.slurm import commands
from dtrain_cli.targets.slurm.allocation import Allocation, read_allocation
from dtrain_cli.targets.slurm.srun import Srun

_TERMINATED = 143


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
    job, ready = _submit(options)
    if options.detach:
        print(job)  # noqa: T201
        return 0
    return Follower(job, ready.script.out, ready.script.err, say).follow()


def plan(options: LaunchOptions) -> int:
    """Print the script that `launch` would submit, and what it means on stderr; nothing is submitted."""
    ready = _submission(options)
    script = ready.script
    print(script.text(), end="")  # noqa: T201
    nodes = f"{script.nodes} {'node' if script.nodes == 1 else 'nodes'}"
    say(f"a job of {nodes} for {script.spec.cluster}; submit it with `sbatch FILE`")
    say(f"files of the run: {ready.run_dir}, which all nodes have to see")
    say(f"output of the job: {script.out} and {script.err.name}")
    if not script.out.parent.is_dir():
        say(f"that folder has to be there before: mkdir -p {script.out.parent}")
    return 0


def _submission(options: LaunchOptions) -> Submission:
    ready = submission(options, datetime.now())
    slurm = ready.script.spec.slurm
    if slurm.notice_s < slurm.grace_s:
        few = f"slurm.time is {slurm.time_s} s, too little for slurm.grace_s of {slurm.grace_s} s"
        say(f"{few}: the job is told to save and stop {slurm.notice_s} s before its end")
    return ready


def _submit(options: LaunchOptions) -> tuple[str, Submission]:
    ready = _submission(options)
    script = ready.script
    try:
        script.out.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{script.out.parent} cannot be made: {error.strerror}") from None
    job = commands.submit(script.text())
    say(f"job {job} is submitted; files of the run: {ready.run_dir}")
    return job, ready


def _launch_on_nodes(options: LaunchOptions, allocation: Allocation) -> int:
    """Launch with agents by srun; let the job begin again if its time is over before the run is."""
    scenes: list[Scene] = []

    def target(scene: Scene) -> FleetTarget:
        scenes.append(scene)
        hosts = allocation.hosts(read_hosts(scene.spec.hosts) if scene.spec.hosts else ())
        opener = Srun(allocation, scene.spec.python or sys.executable, options.foreign)
        first = [host for host in hosts if not host.spare]
        place = allocation.places(first, scene.spec.cluster, scene.spec.place)
        scene = replace(scene, spec=replace(scene.spec, place=place))
        hosts = _with_addresses(hosts, scene.spec.network)
        folders = {host.host: slurm_folder(place) for place, host in enumerate(hosts)}
        return fleet_target(scene, On.SLURM, hosts, opener, allocation.job, folders)

    code = launcher.run(_resumed(options, allocation), target)
    wishes = scenes[0].spec.slurm if scenes else SlurmSection()
    stopped = bool(scenes) and user_has_stopped(scenes[0].files)
    if code == _TERMINATED and allocation.batch and wishes.requeue and not stopped:
        _begin_again(allocation.job, wishes.notice_s)
    return code


def _begin_again(job: str, grace_s: float) -> None:
    """Requeue the job if its time was over; one that was cancelled stays so."""
    try:
        if commands.is_ending(job, grace_s):
            say(f"the time of job {job} is over: it is requeued, and goes on from its last step")
            commands.requeue(job)
    except RunError as error:
        say(f"{error}; submit the job again with --resume to go on")


def _resumed(options: LaunchOptions, allocation: Allocation) -> LaunchOptions:
    """Return the options with which a job that was requeued goes on; others stay as they are."""
    if allocation.restarts == 0 or options.resume is not None:
        return options
    directory = options.run_dir or _run_of(allocation.job, options.runs_dir or default_runs_dir())
    if directory is None or not RunFiles(directory).run.exists():
        return options
    return replace(options, run_dir=directory, resume="", given=("--resume=", *options.given))


def _run_of(job: str, runs_dir: Path) -> Path | None:
    """Return the directory of the newest run that a job has begun."""
    for known in known_runs(runs_dir.absolute()):
        where = read_record(known.files.where, WhereRecord)
        if where is not None and where.job == job:
            return known.files.directory
    return None


def _with_addresses(hosts: Sequence[Host], network: NetworkSection) -> list[Host]:
    """Return the nodes with the addresses that Slurm knows, where the spec says nothing of them."""
    lacking = [host.host for host in hosts if host.address is None]
    if network.interface is not None or not lacking:
        return list(hosts)
    addresses = commands.node_addresses(lacking)
    return [replace(host, address=host.address or addresses.get(host.host)) for host in hosts]
