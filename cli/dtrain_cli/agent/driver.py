"""An agent: facts and ports of its host, and its loop of orders, ends of tasks, changed files, the lease."""

import contextlib
import errno
import hashlib
import ipaddress
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import repeat
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dtrain.cluster import TaskId
from dtrain.errors import RunError
from dtrain.formats.bounded_reading import open_regular
from dtrain.process.file_lock import lock
from dtrain.process.resources import allow_open_files, usable_cores
from dtrain.process.start_protocol import Exited, MessageStream, Refused, Report, StartTask
from dtrain.runs.files import RunFiles, Slowdown, write_record
from dtrain_cli.agent import messages
from dtrain_cli.agent.copies import ArrivingCheckpoint, CopiedFiles, checkpoint_parts, made_parts
from dtrain_cli.agent.lease import REST_S, Lease
from dtrain_cli.agent.messages import Held, HoldPorts, HostFacts
from dtrain_cli.agent.run_folders import LOCK, WORK, SentCode, no_room, open_lock, run_folder
from dtrain_cli.launch.policies.ordered_stop import RemainingTask
from dtrain_cli.plan.ports import HeldPorts, pick_port
from dtrain_cli.targets.local import LocalTarget, LocalTask
from dtrain_cli.targets.signals import STOP_SIGNALS, SignalInbox
from dtrain_cli.targets.target import Event, TargetFailed


def welcome(environment: Mapping[str, str]) -> HostFacts:
    return HostFacts(
        version=version("dtrain"),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        executable=sys.executable,
        host=socket.gethostname(),
        monotonic_s=time.monotonic(),
        wall_s=time.time(),
        cores=usable_cores(environment),
        reached_at=reached_at(environment.get("SSH_CONNECTION", "")),
        addresses=_addresses(),
        no_room=no_room(next(each for each in run_folder("", "").parents if each.is_dir())),
    )


def reached_at(connection: str) -> str | None:
    """Return the server's address in SSH_CONNECTION (ssh(1)): client, its port, server, its port."""
    words = connection.split()
    return words[2].partition("%")[0] if len(words) == 4 and words[2] != "UNKNOWN" else None


def _addresses() -> dict[str, list[str]]:
    import psutil

    found: dict[str, list[str]] = {}
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6) and entry.netmask:
                prefix = int(ipaddress.ip_address(entry.netmask)).bit_count()
                found.setdefault(name, []).append(f"{entry.address.partition('%')[0]}/{prefix}")
    return found


_PICKS_MAX = 100
_TRIED_AT_ONCE = 256
_OTHER_FILES = 128


def hold(order: HoldPorts, held: HeldPorts) -> Held:
    allow_open_files(2 * (len(held.ports) + order.count) + _OTHER_FILES)
    where = f"{order.first} to {order.last}" if order.first else "any"
    problem = f"{order.count} free ports are needed on {order.address} ({where})"
    found: list[int] = []
    with contextlib.suppress(RunError):  # this machine has no free port left
        for port in _candidates(order, held):
            if len(found) == order.count:
                break
            try:
                held.hold(order.address, port)
                found.append(port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    problem = f"{order.address} cannot be bound: {error.strerror}"
                    break
    whole = len(found) == order.count
    for port in found[-1:] if whole and order.loose else () if whole else found:
        held.release(port)
    return Held(found) if whole else Held([], problem)


def _candidates(order: HoldPorts, held: HeldPorts) -> Iterator[int]:
    yield from order.wanted
    taken = {*order.wanted, *held.ports}
    if order.first:
        yield from (port for port in range(order.first, order.last + 1) if port not in taken)
    else:
        yield from (pick_port() for _ in range(order.count + _PICKS_MAX))


def unreachable(addresses: Sequence[str], timeout_s: float) -> dict[str, str]:
    """Return why each address (``host:port``) that does not answer cannot be reached."""
    with ThreadPoolExecutor(max(1, min(len(addresses), _TRIED_AT_ONCE))) as pool:
        reasons = pool.map(_why_unreachable, addresses, repeat(timeout_s))
        return {address: why for address, why in zip(addresses, reasons, strict=True) if why}


def _why_unreachable(address: str, timeout_s: float) -> str | None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except OSError as error:
        return error.strerror or f"no answer within {timeout_s:g} s"
    return None


LOOK_S = {True: 0.25, False: 0.5}
"""The time between two looks at the files of the tasks: while they print (True), and while they do not."""
_CROWDED_S = 0.02
_CROWDED_BYTES = 1 << 20
"""While so much waits to be sent, no files are read."""
_STREAMING_S = 0.2
"""The longest time for which files are sent before orders are read again."""
_LAST_WORD_S = 2.0
"""The longest wait for a launcher that does not read, before the tasks are killed."""


class RunHere:
    """The files of one run on this host, which no other agent touches meanwhile.

    Raise a `WaitTimeoutError` if an earlier agent holds them for over `wait_s`.
    """

    def __init__(self, folder: Path, known: dict[str, int], wait_s: float) -> None:
        self.folder, self.files = folder, RunFiles(folder)
        self.files.create()
        self.lock = open_lock(folder / LOCK)
        if not lock(self.lock, wait_s, "end, an earlier agent of this run"):
            raise RunError(f"{folder / LOCK} cannot be locked; let runs be kept on another disk there")
        self.copied = CopiedFiles(folder, known)
        self.arriving = ArrivingCheckpoint(self.files.checkpoints)
        self.code = SentCode()

    def slow_down(self, order: messages.SlowOrder) -> None:
        slow = self.files.slow(TaskId.parse(order.task), order.attempt)
        with contextlib.suppress(OSError):  # the next one replaces it
            if order.factor is None:
                slow.unlink(missing_ok=True)
            else:
                write_record(slow, Slowdown(order.factor))


class HostAgent:
    """One agent; `run` serves its launcher until the stream ends or the lease has run out."""

    def __init__(self, launcher: MessageStream[messages.Order], target: LocalTarget) -> None:
        self._launcher = launcher
        self._target = target
        self._signals = SignalInbox()
        self._ports = HeldPorts()
        self._run: RunHere | None = None
        self._lease = Lease(time.monotonic())
        self._tasks: dict[TaskId, LocalTask] = {}
        self._signalled_s: dict[TaskId, float] = {}
        self._made: Iterator[messages.MadePart | messages.AllMade] | None = None
        self._look_s = 0.0
        target.wake_on(launcher)
        target.wake_on(self._signals)

    def run(self) -> None:
        self._launcher.send(messages.MAGIC + b"\n")
        self._launcher.send(welcome(os.environ))
        while self._launcher.writable and not (self._launcher.over or self._lease_is_over()):
            self._launcher.pump()
            try:
                self._turn()
            except (RunError, ValueError, OSError, OverflowError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                self._launcher.send(messages.Failed(f"its agent failed: {reason:.1000}"))
                self._launcher.finish(_LAST_WORD_S)
                break
        self._target.close()
        self._ports.close()

    def _turn(self) -> None:
        now_s = time.monotonic()
        wait_s = _CROWDED_S if self._launcher.waiting_bytes else LOOK_S[False]
        wait_s = 0.0 if self._made is not None else wait_s
        until_s = self._look_s if self._look_s > now_s else now_s + wait_s
        events = self._target.events(min(until_s, now_s + wait_s))
        for number in self._signals.read():  # first: tasks that have ended since may have got the same signal
            if number in STOP_SIGNALS:  # the launcher stops its tasks in order everywhere; they got no signal
                self._launcher.send(messages.Signalled(number))
        for event in events:
            self._report(event)
        for order in self._launcher.read():
            self._obey(order)
        self._send_made()
        now_s = time.monotonic()
        if self._lease.order is None and now_s >= self._look_s and self._run is not None:
            printed = False
            if self._launcher.waiting_bytes < _CROWDED_BYTES:
                for news in self._run.copied.news():
                    self._launcher.send(news)
                    printed = printed or isinstance(news, messages.Appended)
            self._look_s = now_s + LOOK_S[printed]
        there = (RemainingTask(task, self._signalled_s.get(task)) for task in self._tasks)
        for task, number in self._lease.due(there, now_s):
            self._signalled_s.setdefault(task, now_s)
            self._tasks[task].signal(number)

    def _send_made(self) -> None:
        until_s = time.monotonic() + _STREAMING_S
        while self._made is not None and (left_s := until_s - time.monotonic()) > 0:
            if self._launcher.waiting_bytes < _CROWDED_BYTES:
                if (part := next(self._made, None)) is None:
                    self._made = None
                    return
                self._launcher.send(part)
            self._launcher.finish(left_s)
            if not self._launcher.writable:
                return

    def _lease_is_over(self) -> bool:
        return self._lease.order is not None and not self._tasks

    def _obey(self, order: messages.Order) -> None:
        too_early = messages.FileOrder | StartTask | messages.SlowOrder
        if isinstance(order, too_early if self._run is None else messages.BeginRun):
            raise RunError(f"an order is out of turn: {order!s:.80}")
        if (answer := self._answer(order)) is not None:
            self._launcher.send(answer)

    def _answer(self, order: messages.Order) -> msgspec.Struct | None:
        match order:
            case messages.Ping(heard_s=heard_s):
                self._lease.renew(heard_s)
                return messages.Pong(time.monotonic())
            case messages.BeginRun():
                return self._begin(order)
            case messages.FindFile(path=path, digest=digest):
                return messages.Done(None if _holds(path, digest) else "there is no such file")
            case messages.HoldPorts():
                return hold(order, self._ports)
            case messages.Listen(on=on):
                self._ports.listen(on)
                return messages.Done()
            case messages.ReleasePorts():
                self._ports.close()
            case messages.Try(addresses=addresses, timeout_s=timeout_s):
                return messages.Tried(unreachable(addresses, timeout_s))
            case _ if self._run is not None:
                return self._answer_of_run(order, self._run)
        return None

    def _answer_of_run(self, order: messages.Order, run: RunHere) -> msgspec.Struct | None:
        match order:
            case StartTask():
                return self._start(order, run)
            case messages.SignalOrder():
                task = self._tasks.get(TaskId.parse(order.task))
                if task is not None and task.attempt == order.attempt:
                    task.signal(order.number)
            case messages.SlowOrder():
                run.slow_down(order)
            case messages.Fetch(step=step):
                folder, saved = run.folder / WORK, run.files.checkpoints
                self._made = made_parts(folder) if step is None else checkpoint_parts(saved, step)
            case messages.MadePart() | messages.AllMade():
                if problems := run.arriving.write(order):
                    raise RunError(f"the launcher's checkpoint has not arrived: {problems[0]}")
            case messages.CodePart():
                return run.code.receive(order, run.folder)
        return None

    def _begin(self, order: messages.BeginRun) -> messages.RunReady:
        folder = run_folder(order.host, order.run)
        run = RunHere(folder, order.known, order.lease_s + REST_S)
        self._lease = Lease(time.monotonic(), order.lease_s)  # the wait for the earlier agent does not count
        self._run = run
        known = order.program is None or _holds(order.program, order.digest)
        return messages.RunReady(str(folder), known and Path(order.cwd).is_dir(), run.files.newest_step)

    def _start(self, order: StartTask, run: RunHere) -> Refused | None:
        task = TaskId.parse(order.task)
        if self._lease.order is not None:  # the launcher starts it again with the agent that comes next
            return None
        try:
            run.files.status(task).unlink(missing_ok=True)
            here = replace(order, log=str(run.files.log(task, order.attempt)))
            self._tasks[task] = self._target.start_ordered(here)
        except OSError as error:
            reason = f"cannot be started: {error.strerror} ({error.filename or 'fork'})"
            return Refused(order.task, order.attempt, reason)
        run.copied.follow(task, order.attempt)
        return None

    def _report(self, event: Event) -> None:
        if not isinstance(event, Report):
            if isinstance(event, TargetFailed):
                self._launcher.send(messages.Failed(event.reason))
            return
        task = TaskId.parse(event.task)
        there = self._tasks.get(task)
        if isinstance(event, Exited | Refused) and there is not None and there.attempt == event.attempt:
            del self._tasks[task]
            for news in self._run.copied.rest(task) if self._run else ():
                self._launcher.send(news)
        if self._lease.order is None:  # else the next agent tells it: the lease has ended the task
            self._launcher.send(event)


def _holds(path: str, digest: str | None) -> bool:
    try:
        with open(open_regular(path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError:
        return False
