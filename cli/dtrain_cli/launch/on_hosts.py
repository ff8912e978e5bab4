"""`dtrain launch` and `plan` with `--on ssh`, and what `dtrain rm` removes on those hosts."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from dtrain.config import Host, RunSpec
from dtrain.config.choices import On
from dtrain.errors import DtrainError, SpecError
from dtrain.process.private_variables import SECRET
from dtrain.runs.files import read_record, write_record
from dtrain_cli.agent import leftovers
from dtrain_cli.agent.leftovers import Leftovers, Removed
from dtrain_cli.agent.messages import MAGIC
from dtrain_cli.code import CodeArchive, code_files, may_leave, pack
from dtrain_cli.fleet.host_rules import AT_ONCE
from dtrain_cli.fleet.link import Opener
from dtrain_cli.fleet.target import FleetRun, FleetTarget
from dtrain_cli.launch import launcher
from dtrain_cli.launch.launcher import Scene
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import read_request
from dtrain_cli.placement import hosts_of, place
from dtrain_cli.runs.index import KnownRun, WhereRecord, where_of
from dtrain_cli.targets.ssh import NO_SSH, Ssh, login_command


def launch_by_ssh(options: LaunchOptions) -> int:
    """Start the tasks on other hosts by ssh, watch them, stop them; return the exit code."""
    os.environ.pop(SECRET, None)  # of another run

    def target(scene: Scene) -> FleetTarget:
        opener = Ssh(scene.spec.python or sys.executable, options.foreign)
        return fleet_target(scene, On.SSH, hosts_of(scene.spec), opener)

    return launcher.run(options, target)


def fleet_target(
    scene: Scene,
    engine: On,
    hosts: list[Host],
    opener: Opener,
    job: str | None = None,
    folders: Mapping[str, str] | None = None,
) -> FleetTarget:
    """Return the target of a run on hosts, whichever way they are opened.

    `job` is the engine's name of the launch; `folders` name hosts' folders for runs, if not by the host.
    """
    spec, workload = scene.spec, scene.workload
    names, before = [host.host for host in hosts if host.host not in scene.replaced], where_of(scene.files)
    known = before.all_hosts if before.engine is engine else []  # those of earlier launches stay known
    earlier = [host for host in known if host not in names]
    write_record(scene.files.where, WhereRecord(engine, names, job, earlier))
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
        replaced=scene.replaced,
    )
    return FleetTarget(run, opener, scene.signals, scene.say)


def slurm_folder(place: int) -> str:
    """Return the name of a node's folder for runs, by its place among the nodes.

    A job that is requeued gets other nodes, and their disk is the same.
    """
    return f"slurm-{place}"


def _packed(scene: Scene) -> tuple[Path, CodeArchive]:
    workload, section = scene.workload, scene.spec.code or {}
    program = workload.program and workload.program.absolute()
    if "from" in section:
        folder = (workload.cwd / section["from"]).resolve()
    elif program is None or program.is_relative_to(workload.cwd):
        folder = workload.cwd
    else:
        folder = program.parent
    if program is not None and not program.is_relative_to(folder):
        raise SpecError(f"code.from: {folder} does not hold the program {workload.program}")
    names = code_files(folder, section.get("exclude", ()))
    return folder, pack(folder, may_leave(folder, names, scene.spec.security, scene.say))


def plan(options: LaunchOptions) -> int:
    workload, spec = read_request(options)
    spec = workload.named(spec)
    hosts = hosts_of(spec)
    ssh = Ssh(spec.python or sys.executable, options.foreign)
    placed = place(spec.cluster, hosts, spec.place)
    tasks = {
        host.host: [str(task) for task in sorted(placed) if placed[task].host == host.host] for host in hosts
    }
    logins = {host.host: ssh.command(host.host) for host in hosts}
    if options.json:
        listed = [
            {
                "host": host.host,
                "address": host.address,
                "login": logins[host.host],
                "tasks": tasks[host.host],
            }
            for host in hosts
        ]
        print(json.dumps({"name": spec.name, "on": spec.on, "hosts": listed}, indent=2))  # noqa: T201
        return 0
    print(f"{spec.name}: {spec.cluster}")  # noqa: T201
    print("each host's address and ports are found when it is logged in to")  # noqa: T201
    for host in hosts:
        at = f" ({host.address})" if host.address else ""
        spare = "spare: it takes over the tasks of a host that is lost"
        does = spare if host.spare else ", ".join(tasks[host.host]) or "no task"
        print(f"\n{host}{at}  {does}\n  {shlex.join(logins[host.host])}")  # noqa: T201
    return 0


_TRIES = 4
_QUICK_S = 2.0
"""An sshd that refuses a login by chance does so at once."""
ANSWER_S = 60.0


def clean_hosts(runs: Sequence[KnownRun]) -> list[str]:
    """Remove what runs have left on their hosts; return a sentence for each host on which something stays."""
    places = {run.record.run: where_of(run.files) for run in runs}
    visits: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if (place := places[run.record.run]).engine is On.SSH:
            for host in place.all_hosts:
                visits.setdefault((host, _python(run)), []).append(run.record.run)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        orders = [Leftovers(host, names) for (host, _), names in visits.items()]
        answers = list(pool.map(_visited, orders, [python for _, python in visits]))
    sentences = [sentence for each in zip(orders, answers, strict=True) for sentence in _problems(*each)]
    return sentences + [
        sentence
        for name, place in places.items()
        if place.engine is On.SLURM
        for sentence in _on_shared_disk(name, place)
    ]


def _python(run: KnownRun) -> str:
    try:
        spec = read_record(run.files.spec, RunSpec)
    except (DtrainError, OSError):
        spec = None
    return (spec.python if spec else None) or sys.executable


def _visited(order: Leftovers, python: str) -> Removed | str:
    reason = ""
    for _ in range(_TRIES):
        begun_s = time.monotonic()
        try:
            done = subprocess.run(
                login_command(order.host, [python, "-P", "-m", leftovers.__name__]),
                input=msgspec.json.encode(order),
                capture_output=True,
                timeout=ANSWER_S,
            )
        except FileNotFoundError:
            return f"{order.host}: {NO_SSH}"
        except subprocess.TimeoutExpired:
            return f"{order.host}: no answer within {ANSWER_S:g} s"
        before, magic, answer = done.stdout.partition(MAGIC + b"\n")
        if magic:
            try:
                return msgspec.json.decode(answer, type=Removed)
            except (ValueError, RecursionError) as error:
                return f"{order.host}: its answer is not one of this version: {error}"
        words = (before + b"\n" + done.stderr).decode(errors="replace")
        reason, again = Ssh(python, foreign=False).explain(order.host, done.returncode, words)
        if not again or time.monotonic() - begun_s > _QUICK_S:  # a host that does not answer is asked once
            break
    return reason


def _problems(order: Leftovers, answer: Removed | str) -> Iterator[str]:
    if isinstance(answer, str):
        runs = f"run {order.runs[0]}" if len(order.runs) == 1 else f"{len(order.runs)} runs"
        folder = f"dtrain/hosts/{order.host} of its state directory"
        yield f"{answer}; what {runs} left there stays, in {folder}"
        return
    for run, problem in answer.problems.items():
        yield f"{order.host}: what run {run} left there stays: {problem}"


def _on_shared_disk(run: str, place: WhereRecord) -> Iterator[str]:
    """Remove what a run on Slurm's nodes has left on a disk that this machine sees too."""
    found = False
    for number in range(len(place.all_hosts)):
        done = leftovers.remove(Leftovers(slurm_folder(number), [run]))
        found = found or bool(done.found)
        yield from (f"what run {run} left on its nodes stays: {why}" for why in done.problems.values())
    if not found and place.hosts:
        nodes = ", ".join(place.all_hosts)
        yield (
            f"what run {run} left on its nodes ({nodes}) cannot be seen from here, and stays there, in "
            "dtrain/hosts/slurm-N of the state directory"
        )
