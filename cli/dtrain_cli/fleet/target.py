"""The tasks of a run on other hosts, each through the agent of its host; see `dtrain_cli.targets.target`.

At the end, what the leader has written in its working directory comes to that of the launcher.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import ClusterSection, Host, RunSpec
from dtrain.config.targets import AUTO
from dtrain.errors import RunError
from dtrain.process.start_protocol import Exited, Refused, Started
from dtrain.runs.files import RunFiles, SavedRecord, default_runs_dir, open_own, read_record
from dtrain.runs.json_file import replace_json
from dtrain_cli.agent import messages
from dtrain_cli.agent.copies import FetchedFiles
from dtrain_cli.agent.lease import LEASE_S
from dtrain_cli.agent.run_folders import WORK
from dtrain_cli.code import CodeArchive, digest_of, mib, shown
from dtrain_cli.fleet.agents import AgentAnswer, Agents, News, StreamEnded
from dtrain_cli.fleet.host_rules import Gone, address_of
from dtrain_cli.fleet.locations import Locations, RemotePlace, launch_there
from dtrain_cli.fleet.mirror import (
    LOST_STATUS,
    Mirror,
    OrdersForTasks,
    SecondPlace,
    keep_failure,
)
from dtrain_cli.fleet.preparation import Preparation
from dtrain_cli.plan.run_plan import HostShare, TaskLaunch, Workload
from dtrain_cli.targets.local import start_order
from dtrain_cli.targets.signals import STOP_SIGNALS, SignalInbox, signal_name
from dtrain_cli.targets.ssh import AgentOpener
from dtrain_cli.targets.target import Event, HasFileno, HostLost, HostNews, StopAsked, TargetFailed

SILENCE_S = 30.0
"""The longest wait for the next part of a file."""
_TICK_S = 0.2
_SHOWN = 5


def fetch(
    agents: Agents, host: str, files: FetchedFiles, signals: SignalInbox, say: Callable[[str], None]
) -> None:
    if (problem := _received(agents, host, files, signals)) is not None:
        files.problems.append(problem)
    files.drop()
    if files.names:
        say(f"fetched from {host}, {mib(files.nbytes)}: {shown(files.names)}")
    if files.apart:
        say(f"fetched from {host}, kept apart from files that no fetch has brought: {shown(files.apart)}")
    for problem in files.problems[:_SHOWN]:
        say(f"not fetched from {host}: {problem}")
    if len(files.problems) > _SHOWN:
        say(f"not fetched from {host}: {len(files.problems) - _SHOWN} more files")


def _received(agents: Agents, host: str, files: FetchedFiles, signals: SignalInbox) -> str | None:
    if not agents.alive.is_up(host):
        return "the host cannot be reached"
    agents.send(host, messages.Fetch())
    deadline_s = time.monotonic() + SILENCE_S
    while time.monotonic() < deadline_s and not files.full:
        for news in agents.turn(time.monotonic() + _TICK_S):
            match news:
                case AgentAnswer(host=here, answer=messages.MadePart() as part) if here == host:
                    files.write(part)
                    deadline_s = time.monotonic() + SILENCE_S
                case AgentAnswer(host=here, answer=messages.AllMade(problems=problems)) if here == host:
                    files.problems += problems
                    return None
                case StreamEnded(host=here, reason=reason) if here == host:
                    return reason
                case Gone(host=here, silent_s=silent_s) if here == host:
                    return f"no word of the host for {silent_s:.0f} s"
        for number in signals.read():
            if number in STOP_SIGNALS:
                return f"{signal_name(number)} ended the fetching"
    return None if files.full else f"no word of the host's agent for {SILENCE_S:g} s"


def brought_file(cwd: Path) -> Path:
    return default_runs_dir().absolute().with_name("fetched") / f"{digest_of(os.fsencode(cwd))}.json"


def earlier(cwd: Path) -> dict[str, str]:
    try:
        os.close(open_own(brought_file(cwd).parent))
        return read_record(brought_file(cwd), dict[str, str]) or {}
    except (OSError, RunError):  # then nothing here is replaced
        return {}


def remember(cwd: Path, brought: Mapping[str, str]) -> None:
    """Keep the digests of fetched files that are still there; a failure costs the next fetch."""
    path = brought_file(cwd)
    with contextlib.suppress(OSError, RunError):
        RunFiles(path.parent).create()
        there = {name: digest for name, digest in brought.items() if os.path.lexists(cwd / name)}
        replace_json(path, there, private=True)


def apart_text(folder: Path) -> str | None:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return f"kept apart from files of yours, in {folder}: {shown(names)}" if names else None


class FleetRun(msgspec.Struct, frozen=True):
    """The run of a fleet.

    Attributes:
        secrets: the variables that the spec's `secrets` names.
        digest: of the program; None for a command.
        code: packs the code of the program, with its folder; called only if a host needs it.
        folders: the names of hosts' folders for runs, where they are not the hosts' own: a chief that is
            started again on another host of a shared disk finds its checkpoints by them.
        always_sent: whether hosts use the code that is sent although the launcher's path leads to it there.
        replaced: by lost host, the spare host that has all of its tasks.
    """

    run_id: str
    spec: RunSpec
    hosts: Sequence[Host]
    workload: Workload
    files: RunFiles
    secrets: Mapping[str, str]
    digest: str | None
    code: Callable[[], tuple[Path, CodeArchive]]
    folders: Mapping[str, str] = msgspec.field(default_factory=dict)
    always_sent: bool = False
    replaced: Mapping[str, str] = msgspec.field(default_factory=dict)


class FleetTask(msgspec.Struct):
    """The handle of one attempt of a task on another host."""

    agents: Agents
    host: str
    task: TaskId
    attempt: int
    writes_stacks: bool

    def signal(self, number: int) -> None:
        self.agents.send(self.host, messages.SignalOrder(str(self.task), self.attempt, number))


class FleetTarget:
    """The tasks of one run on its hosts. Nothing is opened before `hold_addresses`."""

    def __init__(
        self, run: FleetRun, opener: AgentOpener, signals: SignalInbox, say: Callable[[str], None]
    ) -> None:
        self._run = run
        self._locations = Locations(run.hosts, run.replaced)
        self._mirror = Mirror(run.files.directory, self._locations.may_write)
        self._lease_s = max(LEASE_S, run.spec.wait.server_s)
        self._agents = Agents(opener, self._begin, self._mirror, self._lease_s)
        self._preparation = Preparation(self._agents, signals, say)
        self._signals = signals
        self._say = say
        self._places: dict[str, RemotePlace] = {}
        self._unheld: set[str] = set()
        """The hosts that are back, and hold the ports of their tasks not yet again."""
        self._logins: dict[str, int] = {}
        self._second: SecondPlace | None = None
        self._queued: list[Event] = []
        self._orders = OrdersForTasks(run.files)
        self._attempts: dict[TaskId, int] = {}
        self._master: tuple[str, int] | None = None

    # -- the start

    def hold_addresses(self, cluster: ClusterSection) -> ClusterSpec:
        """Log in to the hosts, send the code, hold ports, and try each pair, as `Preparation` does."""
        run = self._run
        self._locations.assign(cluster, run.spec.place)
        self._agents.wake_on(self._signals)
        self._preparation.log_in([host.host for host in self._locations.hosts], run.spec.wait.start_s)
        self._lay_out_code()
        self._find_addresses()
        orders = {host: self._hold(host, ports) for host, ports in self._locations.wanted(cluster).items()}
        held = self._preparation.hold_ports(orders)
        self._find_master()
        addresses = self._locations.assign_ports(cluster, held)
        self._preparation.try_pairs(self._locations.pairs(run.workload.foreign), self._locations.addresses)
        return addresses

    def _begin(self, host: str) -> messages.BeginRun:
        workload = self._run.workload
        program = None if workload.program is None else str(workload.program.absolute())
        known = self._mirror.sizes.setdefault(host, {})
        folder = self._run.folders.get(host, host)
        cwd = str(workload.cwd)
        return messages.BeginRun(
            self._run.run_id, folder, program, self._run.digest, cwd, self._lease_s, dict(known)
        )

    def _lay_out_code(self) -> None:
        lacking, cwd = [], self._run.workload.cwd
        for host, member in self._agents.members.items():
            assert member.ready is not None
            assert member.welcome is not None
            run_dir, python = member.ready.run_dir, member.welcome.executable
            self._places[host] = RemotePlace(run_dir, str(cwd), python)
            if self._run.always_sent or not member.ready.in_place:
                lacking.append(host)
        if lacking:
            folder, archive = self._run.code()
            self._preparation.send_code(lacking, archive)
            for host in lacking:
                place = self._places[host]
                self._places[host] = replace(place, cwd=f"{place.run_dir}/{WORK}", code=folder)

    def _find_addresses(self) -> None:
        network = self._run.spec.network
        hosts = self._locations.hosts
        for host in hosts:
            welcome = self._agents.members[host.host].welcome
            assert welcome is not None
            alone = len(hosts) == 1
            self._locations.addresses[host.host] = address_of(host, welcome, network, alone)
        self._locations.check_addresses()

    def _hold(self, host: str, wanted: Sequence[int]) -> messages.HoldPorts:
        network = self._run.spec.network
        address = self._locations.addresses[host] if network.bind == AUTO else network.bind
        ports = network.port_range
        first, last = (ports.start, ports.stop - 1) if ports is not None else (0, 0)
        return messages.HoldPorts(address, len(wanted), first, last, [port for port in wanted if port])

    def _find_master(self) -> None:
        if self._run.workload.foreign:
            host = self._locations.host_of(self._locations.leader)
            order = msgspec.structs.replace(self._hold(host, [0]), loose=True)
            (port,) = self._preparation.hold_ports({host: order})[host]
            self._master = self._locations.addresses[host], port
        elif self._run.spec.checkpoint.remote is None:
            self._second = SecondPlace(self._run.files)

    # -- the interface of a target

    def master(self) -> tuple[str, int]:
        assert self._master is not None, "it is a command's"
        return self._master

    def left_there(self, task: TaskId) -> str | None:
        host = self._locations.host_of(task)
        if (place := self._places.get(host)) is None or self._run.workload.foreign:
            return None
        return f"on {host} in {place.run_dir}"

    def newest(self, files: RunFiles) -> SavedRecord | None:
        leader = self._locations.leader
        host, there = self._locations.host_of(leader), self.left_there(leader)
        ready, copy = self._agents.members[host].ready, self._second.step if self._second else None
        step = None if ready is None else ready.newest_step
        if copy is not None and (step is None or step < copy):
            step = copy
            self._send_copy(host)
        return None if step is None or there is None else SavedRecord(step, there)

    def finish(self, say: Callable[[str], None]) -> None:
        until_s = time.monotonic() + SILENCE_S
        self._copy_checkpoint()
        while self._second is not None and self._second.asked and time.monotonic() < until_s:
            if set(self._signals.read()) & set(STOP_SIGNALS):  # the user waits no longer
                break
            self.events(until_s)
        host = self._locations.host_of(self._locations.leader)
        starts_again = self._locations.replaced != self._run.replaced
        if not starts_again and (place := self._places.get(host)) is not None and place.code is not None:
            here = self._run.workload.cwd.absolute()
            files = FetchedFiles(here, second=self._run.files.fetched, brought=earlier(here))
            fetch(self._agents, host, files, self._signals, say)
            remember(here, files.brought)
        self.close()

    def release_addresses(self) -> None:
        for host in self._agents.members:
            self._agents.send(host, messages.ReleasePorts())

    def shares(self) -> Mapping[TaskId, HostShare]:
        shares: dict[TaskId, HostShare] = {}
        for host, member in self._agents.members.items():
            assert member.welcome is not None
            share = HostShare(member.welcome.cores, self._locations.training_on(host))
            shares |= dict.fromkeys(self._locations.tasks_of(host), share)
        return shares

    def host_of(self, launch: TaskLaunch) -> str:
        return self._locations.host_of(launch.task)

    def heard_s(self, task: TaskId) -> float:
        return self._agents.heard_s(self._locations.host_of(task))

    def can_start(self, task: TaskId) -> bool:
        host = self._locations.host_of(task)
        return self._agents.alive.is_up(host) and host not in self._unheld

    def start(self, launch: TaskLaunch) -> FleetTask:
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        launch.log.touch(mode=0o600)
        self._attempts[launch.task] = launch.attempt
        host = self._locations.host_of(launch.task)
        bind = None if self._run.spec.network.bind == AUTO else self._run.spec.network.bind
        there = launch_there(launch, self._places[host], self._run.secrets, bind)
        self._agents.alive.started(launch.task, launch.attempt, host)
        self._agents.send(host, start_order(there))
        return FleetTask(self._agents, host, launch.task, launch.attempt, launch.program is not None)

    def wake_on(self, source: HasFileno) -> None:
        self._agents.wake_on(source)

    def events(self, until_s: float) -> list[Event]:
        if self._queued:
            until_s = 0.0
        for news in self._agents.turn(until_s):
            self._handle_news(news)
        for host, order in self._orders.due(self._attempts, self._locations.host_of):
            self._agents.send(host, order)
        self._copy_checkpoint()
        events, self._queued = self._queued, []
        return events

    def close(self) -> None:
        self._agents.close()

    def _copy_checkpoint(self) -> None:
        if self._second is None or self._second.asked:
            return
        saved: dict[str, int] = {}
        for task, host in self._locations.places.items():
            step = (self._mirror.said(task) or {}).get("saved_step") if task.trains else None
            if step is not None and self._agents.alive.is_up(host):
                saved[host] = max(step, saved.get(host, 0))
        if (due := self._second.due(saved)) is not None:
            self._agents.send(*due)

    def _send_copy(self, host: str) -> None:
        for part in self._second.parts() if self._second is not None else ():
            self._agents.send(host, part)

    # -- what becomes of the hosts

    def _handle_news(self, news: News) -> None:
        match news:
            case HostNews():
                self._queued.append(news)
            case StreamEnded(host=host, reason=reason):
                if self._second is not None:
                    self._second.forget(host)
                if not self._agents.alive.is_up(host):
                    self._logins[host] = self._logins.get(host, -1) + 1
                    if not self._logins[host]:
                        self._report("cut", host, f"{reason}; logging in again")
            case Gone():
                self._note_end(news)
            case AgentAnswer(host=host, answer=answer):
                self._handle_answer(host, answer)

    def _handle_answer(self, host: str, answer: messages.Answer) -> None:
        own = set(map(str, self._locations.tasks_of(host)))
        match answer:
            case Started() | Exited() | Refused() if answer.task not in own:
                return  # a host has no word about tasks of others
            case Started():
                self._queued.append(answer)
            case Exited() | Refused():
                self._agents.alive.ended(TaskId.parse(answer.task), answer.attempt)
                self._queued.append(answer)
            case messages.MadePart() | messages.AllMade() if self._second is not None:
                if why := self._second.write(host, answer):
                    self._report("no copy", host, why)
            case messages.Held() if host in self._unheld:
                self._note_ports(host, answer)
            case messages.Signalled(number=number):
                self._queued.append(StopAsked(number, host))
            case messages.Failed(reason=reason):
                self._report("failed", host, f"{host}: {reason}")

    def _report(self, kind: str, host: str, text: str) -> None:
        self._queued.append(HostNews(kind, host, text))

    def _note_end(self, gone: Gone) -> None:
        """Report that the tasks of a host have ended; a host that is back reserves their ports first."""
        host, logins = gone.host, self._logins.pop(gone.host, 0)
        failed = f" (failed logins: {logins})" if logins else ""
        what = "its agent had ended" if gone.usable else f"no word for {gone.silent_s:.0f} s"
        if gone.usable:
            self._report("back", host, f"{host}: another agent is up there{failed}; its tasks start again")
            self._unheld.add(host)
            ports = [self._locations.port_of(task) for task in self._locations.serving(host)]
            self._agents.send(host, self._hold(host, ports))
        else:
            self._unheld.discard(host)
            self._report("lost", host, f"{host} is lost: {what}{failed}")
            self._lose(host, f"{host} is lost")
        for task, attempt in gone.tasks:
            keep_failure(self._run.files, task, attempt, f"was lost with its host {host}: {what}")
            self._queued.append(Exited(str(task), attempt, LOST_STATUS, 0))

    def _note_ports(self, host: str, held: messages.Held) -> None:
        serving = self._locations.serving(host)
        ports = {self._locations.port_of(task) for task in serving}
        if why := held.lacking(len(serving)) or (ports != set(held.ports) and "ports of its tasks are taken"):
            self._lose(host, f"{host}: {why}", may_return=False)
        else:
            self._unheld.remove(host)

    def _lose(self, host: str, why: str, may_return: bool = True) -> None:
        """Report that a host with tasks is lost, and which spare host could replace it."""
        if not (tasks := self._locations.tasks_of(host)):
            return
        up = [other for other in self._agents.up(self._agents.members) if other != host]
        if not up:
            ask = f"{why}, and no other is heard: is this machine on the network?"
            self._queued.append(TargetFailed(ask))
            return
        spare = None if self._run.workload.foreign else self._locations.replace(host, up)
        replaced = {} if spare is None else {host: spare}
        self._queued.append(HostLost(why, tasks, replaced, may_return))
