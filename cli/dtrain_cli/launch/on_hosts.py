"""`dtrain launch --on ssh`: the walk of a launch whose tasks run on other hosts."""

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dtrain.config import Host
from dtrain.config.choices import On
from dtrain.errors import SpecError
from dtrain.process.private_variables import SECRET
from dtrain.runs.files import RunFiles, write_record
from dtrain_cli.code import Archive, code_files, may_leave, pack
from dtrain_cli.fleet.link import Opener
from dtrain_cli.fleet.target import FleetRun, FleetTarget
from dtrain_cli.launch import launcher
from dtrain_cli.launch.launcher import Scene
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.placement.placing import hosts_of
from dtrain_cli.runs.where import WhereRecord, where_of
from dtrain_cli.targets.ssh import Ssh


def launch_by_ssh(options: LaunchOptions) -> int:
    """Start the tasks on other hosts by ssh, watch them, stop them; return the exit code.

    Raises:
        SpecError: the spec, the program or the command is wrong; nothing has been started or left behind.
        RunError: the run directory cannot be used, or another launch uses it.
        HostError: a host cannot be reached or used.
    """
    os.environ.pop(SECRET, None)  # of another run
    return launcher.run(options, lambda scene: _by_ssh(scene, options.foreign))


def _by_ssh(scene: Scene, foreign: bool) -> FleetTarget:
    opener = Ssh(scene.spec.python or sys.executable, foreign)
    return fleet_target(scene, On.SSH, hosts_of(scene.spec), opener)


def fleet_target(
    scene: Scene,
    engine: On,
    hosts: list[Host],
    opener: Opener,
    job: str | None = None,
    folders: Mapping[str, str] | None = None,
) -> FleetTarget:
    """Return the target of a run on hosts, whichever way they are opened.

    Args:
        scene: of the launch.
        engine: whose hosts they are.
        hosts: to use.
        opener: the way to them.
        job: by which the engine knows the launch.
        folders: the names of hosts' folders for runs, where these are not the hosts' own.
    """
    spec, workload = scene.spec, scene.workload
    write_record(scene.files.where, _where(scene.files, engine, [host.host for host in hosts], job))
    program = workload.program
    run = FleetRun(
        run_id=scene.run_id,
        spec=spec,
        hosts=hosts,
        workload=workload,
        files=scene.files,
        secrets={name: os.environ[name] for name in spec.secrets},
        digest=hashlib.sha256(program.read_bytes()).hexdigest() if program is not None else None,
        code=lambda: _packed(scene),
        folders=folders or {},
        always_sent=spec.code is not None,
    )
    return FleetTarget(run, opener, scene.signals, scene.say)


def slurm_folder(place: int) -> str:
    """Return the name of a node's folder for runs, by its place among the nodes.

    A job that is requeued gets other nodes, and their disk is the same.
    """
    return f"slurm-{place}"


def _where(files: RunFiles, engine: On, hosts: list[str], job: str | None) -> WhereRecord:
    """Return the place of a run; the hosts of earlier launches stay known."""
    before = where_of(files)
    known = before.all_hosts if before.engine is engine else []
    return WhereRecord(engine, hosts, job, [host for host in known if host not in hosts])


def _packed(scene: Scene) -> tuple[Path, Archive]:
    workload, section = scene.workload, scene.spec.code or {}
    folder = _code_folder(workload.program, section.get("from"), workload.cwd)
    if workload.program is not None and not workload.program.absolute().is_relative_to(folder):
        raise SpecError(f"code.from: {folder} does not hold the program {workload.program}")
    names = code_files(folder, section.get("exclude", ()))
    return folder, pack(folder, may_leave(folder, names, scene.spec.security, scene.say))


def _code_folder(program: Path | None, said: str | None, cwd: Path) -> Path:
    """Return the folder that is sent: what the spec says; else the working directory, or the folder of a
    program that lies elsewhere.
    """
    if said is not None:
        return (cwd / said).resolve()
    if program is None or program.absolute().is_relative_to(cwd):
        return cwd
    return program.absolute().parent
