"""`dtrain launch` and `plan` with `--on ssh`, also detached, and what `dtrain rm` removes on those hosts."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec.structs import replace

from dtrain.cluster import TaskId
from dtrain.config import Host, RunSpec
from dtrain.config.choices import On
from dtrain.errors import DtrainError, SpecError
from dtrain.process.plain_text import plain, plain_data
from dtrain.process.private_variables import SECRET
from dtrain.runs.files import RunRecord, read_record, write_record
from dtrain.runs.journal import now_text
from dtrain.runs.states import RunState
from dtrain_cli.agent import host_call
from dtrain_cli.agent.host_call import Detached, DetachedLaunch, Leftovers, Removed
from dtrain_cli.agent.messages import MAGIC
from dtrain_cli.code import CodeArchive, code_files, may_leave, pack
from dtrain_cli.console.streams import say
from dtrain_cli.fleet.host_rules import AT_ONCE
from dtrain_cli.fleet.link import HostError
from dtrain_cli.fleet.target import FleetRun, FleetTarget
from dtrain_cli.launch import launcher
from dtrain_cli.launch.launcher import Scene
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import chosen_directory, read_named, runs_directory
from dtrain_cli.placement import hosts_of, place
from dtrain_cli.plan.run_plan import Workload
from dtrain_cli.runs.index import (
    KnownRun,
    WhereRecord,
    locked_run_directory,
    make_known,
    new_run_id,
    where_of,
)
from dtrain_cli.runs.report import ProcessMeter
from dtrain_cli.targets.ssh import HERE, NO_SSH, AgentOpener, Ssh, login_command


def launch_by_ssh(options: LaunchOptions) -> int:
    """Start the tasks on other hosts by ssh, watch them, stop them; return the exit code."""
    os.environ.pop(SECRET, None)  # of another run
    if options.detach and HERE not in os.environ:
        return _launch_detached(options)
    options = replace(options, detach=False)

    def target(scene: Scene) -> FleetTarget:
        opener = Ssh(scene.spec.python or sys.executable, options.foreign)
        return fleet_target(scene, On.SSH, hosts_of(scene.spec), opener)

    return launcher.run(options, target)


def fleet_target(
    scene: Scene,
    engine: On,
    hosts: list[Host],
    opener: AgentOpener,
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
        code=lambda: _packed(workload, spec, scene.say),
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


def _packed(workload: Workload, spec: RunSpec, say: Callable[[str], None]) -> tuple[Path, CodeArchive]:
    """Return the folder of a program that is sent, and its files as an archive."""
    section = spec.code or {}
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
    return folder, pack(folder, may_leave(folder, names, spec.security, say))


def plan(options: LaunchOptions) -> int:
    spec = read_named(options)[1]
    hosts = hosts_of(spec)
    ssh = Ssh(spec.python or sys.executable, options.foreign)
    placed = place(spec.cluster, hosts, spec.place)
    tasks = {
        host.host: [str(task) for task in sorted(placed) if placed[task].host == host.host] for host in hosts
    }
    logins = {host.host: ssh.command(host.host) for host in hosts}
    if options.json:
        rows = ((host.host, host.address, logins[host.host], tasks[host.host]) for host in hosts)
        listed = [dict(zip(("host", "address", "login", "tasks"), row, strict=True)) for row in rows]
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


T = TypeVar("T")
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
        pythons = [python for _, python in visits]
        answers = list(pool.map(_removed, orders, pythons))
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


def _removed(order: Leftovers, python: str) -> Removed | str:
    return _asked(order.host, python, order, Removed)


def _asked(
    host: str, python: str, call: Leftovers | DetachedLaunch, kind: type[T], timeout_s: float = ANSWER_S
) -> T | str:
    """Have a host carry out a call; return its answer, or why there is none."""
    command = [python, "-P", "-m", host_call.__name__]
    reason = ""
    for _ in range(_TRIES):
        begun_s = time.monotonic()
        try:
            done = subprocess.run(
                login_command(host, command),
                input=msgspec.json.encode(call),
                capture_output=True,
                timeout=timeout_s,
            )
        except FileNotFoundError:
            return f"{host}: {NO_SSH}"
        except subprocess.TimeoutExpired:
            return f"{host}: no answer within {timeout_s:g} s"
        before, magic, answer = done.stdout.partition(MAGIC + b"\n")
        if magic:
            try:
                return msgspec.json.decode(answer, type=kind)
            except (ValueError, RecursionError) as error:
                return f"{host}: its answer is not one of this version: {error}"
        words = (before + b"\n" + done.stderr).decode(errors="replace")
        reason, again = Ssh(python, foreign=False).explain(host, done.returncode, words)
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
        done = host_call.remove(Leftovers(slurm_folder(number), [run]))
        found = found or bool(done.found)
        yield from (f"what run {run} left on its nodes stays: {why}" for why in done.problems.values())
    if not found and place.hosts:
        nodes = ", ".join(place.all_hosts)
        yield (
            f"what run {run} left on its nodes ({nodes}) cannot be seen from here, and stays there, in "
            "dtrain/hosts/slurm-N of the state directory"
        )


_UP_S = 60.0


def _launch_detached(options: LaunchOptions) -> int:
    """Send the folder to the first host, start the launcher there, and return when the run is up.

    Raises:
        SpecError: the spec or the program is wrong, or lies where it is not sent from.
        HostError: the host cannot be used, or the launch has failed there.
    """
    workload, spec = read_named(options)
    hosts = [host.host for host in hosts_of(spec)]
    first = next(host.host for host in hosts_of(spec) if not host.spare)
    runs_dir = runs_directory(options)
    new_id = new_run_id(spec.name, datetime.now())
    directory = chosen_directory(options, spec.name) or runs_dir / new_id
    with locked_run_directory(directory, options.resume is not None) as files:
        earlier, before = read_record(files.run, RunRecord), where_of(files)
        if earlier is not None and before.launcher != first:
            raise SpecError(f"--resume: the run's launcher was on {before.launcher or 'this machine'}")
        run_id = earlier.run if earlier else new_id
        folder, archive = _packed(workload, spec, say)
        for path in (options.spec, options.program):
            if folder != workload.cwd or (path and (path.is_absolute() or ".." in path.parts)):
                raise SpecError(
                    f"--detach: {path or folder} is not sent: name files below this folder, by paths from it"
                )
        order = DetachedLaunch(
            run=run_id,
            host=first,
            digest=archive.digest,
            code=archive.data,
            options=[*options.given, "--on", On.SSH, *(["--resume="] if earlier else [])],
            behind=list(options.behind),
            environment={name: os.environ[name] for name in spec.secrets},
            wait_s=2 * spec.wait.start_s + _UP_S,
        )
        write_record(files.spec, spec)
        record = RunRecord(run_id, spec.name, started=now_text(), host=first)
        where = WhereRecord(On.SSH, hosts, earlier=before.all_hosts, launcher=first)
        make_known(files, runs_dir, run_id, where, record)
        say(f"starting the launcher of run {run_id} on {first}")
        python = spec.python or sys.executable
        answer = _asked(first, python, order, Detached, order.wait_s + ANSWER_S)
        record.state = RunState.FAILED if isinstance(answer, str) else answer.state or RunState.FAILED
        write_record(files.run, record)
    if isinstance(answer, str):
        raise HostError(answer)
    if record.state in (RunState.FAILED, RunState.STOPPED):
        raise HostError(f"{first}: the launch has ended there:\n{plain(answer.said).strip()}")
    say(
        f"run {run_id} is {record.state}, and needs this machine no more: its launcher is on {first}; "
        f"look at it with `dtrain status {run_id}` and `dtrain logs -f {run_id}`, end it with "
        f"`dtrain stop {run_id}`"
    )
    return 0


def _command_there(run: KnownRun, words: Sequence[str], behind: Sequence[str] = ()) -> list[str]:
    launcher = where_of(run.files).launcher
    assert launcher is not None
    there = [_python(run), "-P", "-m", "dtrain_cli.main", *words, run.record.run, *behind]
    return login_command(launcher, there)


def end_as(run: KnownRun, words: Sequence[str], behind: Sequence[str]) -> NoReturn:
    """End this process with what a command of dtrain's prints and returns on the launcher's host."""
    raise SystemExit(subprocess.run(_command_there(run, words, behind), stdin=subprocess.DEVNULL).returncode)


class DetachedRun:
    """A run whose launcher is on its first host: other commands ask it there as they ask a `RunElsewhere`."""

    what_stays = ""

    def __init__(self, run: KnownRun) -> None:
        self.name = f"run {run.record.run}"
        self._run = run

    def show_logs(self, tasks: Collection[TaskId], last: int | None, follow: bool, as_json: bool) -> bool:
        return False  # the command itself is given there, by `end_as`

    def remove(self) -> str | None:
        return None  # `clean_hosts` asks all hosts of a run

    def stop(self, wait_s: float) -> bool:
        """Stop the run in order; raise a `HostError` if it runs on after `wait_s`, or its host is silent."""
        done = self._ask("stop", f"--wait={wait_s:g}")
        if done.returncode:
            raise HostError(f"{self._run.record.host}: {self.name} is not stopped: {_said(done.stderr)}")
        return True

    def report(self, meter: ProcessMeter | None = None) -> dict[str, Any]:
        """Return the present report, as `read_report` does; the record here is brought up to date."""
        run, done = self._run, self._ask("status", "--json")
        try:
            report = plain_data(msgspec.json.decode(done.stdout.strip().rpartition(b"\n")[2]))
            state = RunState(report["state"])
        except (ValueError, KeyError, TypeError, RecursionError):
            why = _said(done.stderr)
            raise HostError(f"{run.record.host}: no report of {self.name}: {why}") from None
        record = run.record
        record.state, record.ended, record.exit_code = state, report.get("ended"), report.get("exit_code")
        write_record(run.files.run, record)
        return {**report, "run_dir": str(run.files.directory), "damaged": []}

    def _ask(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(_command_there(self._run, words), capture_output=True, stdin=subprocess.DEVNULL)


def _said(words: bytes) -> str:
    return " ".join(plain(words.decode(errors="replace")).split())[-300:]
