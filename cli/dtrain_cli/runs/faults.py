"""Faults on purpose: what `dtrain chaos` does to a task, and what a spec's `simulate` section does when.

The launcher of this machine's tasks is not asked by `dtrain chaos`: it sees what becomes of the task, and
deals with it as with any other misfortune.
"""

import os
import random
import signal
import socket
from collections.abc import Container
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dtrain.cluster import TaskId
from dtrain.config import KillFault, PauseFault, SimulateSection
from dtrain.config.choices import On
from dtrain.errors import RunError, SpecError
from dtrain.messages.membership import TaskStatus
from dtrain.process.start_protocol import name_of_forked
from dtrain.runs.files import RunFiles, RunRecord, Slowdown, TaskRecord, read_record, write_record
from dtrain.runs.joined import JoinedRecord
from dtrain.runs.states import LIVE_RUN_STATES, LIVE_TASK_STATES
from dtrain_cli.runs.index import ATTACHED, Journal, other_host, where_of
from dtrain_cli.runs.report import is_alive, with_joined

SIGNALS = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP, "resume": signal.SIGCONT}


class RunningTask:
    """One attempt of a task that runs now; `pid` leads its group."""

    def __init__(self, directory: Path, task: TaskId) -> None:
        """Raise a `SpecError` if the run has no such task, a `RunError` if it is not running."""
        self.task = task
        self._files = RunFiles(directory)
        self._run = _read_live(self._files)
        self._tasks = with_joined(self._files, self._run.tasks)
        record = self._record()
        if record.state not in LIVE_TASK_STATES or record.pid is None:
            raise RunError(f"{task} of run {self._run.run} is not running: it is {record.state}")
        self.pid = record.pid
        self._attempt = record.attempt

    def signal(self, action: str) -> None:
        """Signal the task's whole group; on another host, its launcher does."""
        where = where_of(self._files)
        if where.engine in ATTACHED:
            write_record(self._files.signal(self.task, self._attempt), SIGNALS[action])
            self._note(action, signal=SIGNALS[action].name)
            return
        if where.engine is not On.LOCAL:
            raise RunError(f"{self.task} is a task of {where.engine}: signal it by the engine's own command")
        if (host := self._record().host or other_host(self._run)) not in (None, socket.gethostname()):
            raise RunError(f"{self.task} runs on {host}: its process can be signalled there alone")
        self._check_identity()
        try:
            os.killpg(self.pid, SIGNALS[action])
        except ProcessLookupError:
            raise RunError(f"{self.task} has ended meanwhile (pid {self.pid})") from None
        except PermissionError:
            raise RunError(f"{self.task} (pid {self.pid}) belongs to another user") from None
        self._note(action, signal=SIGNALS[action].name)

    def slow(self, factor: float | None) -> str | None:
        """Slow the task's own computation by `factor` until this attempt ends, and return what that costs.

        None undoes it. Raises a `RunError` if the task does not train with dtrain.
        """
        status = read_record(self._files.status(self.task), TaskStatus)
        if status is None or status.attempt != self._attempt:
            raise RunError(
                f"{self.task} has reported no status: it is still starting, or is no program of dtrain's; "
                "other commands can be killed, paused and resumed, but not slowed down"
            )
        order = self._files.slow(self.task, self._attempt)
        if factor is None:
            order.unlink(missing_ok=True)
        else:
            write_record(order, Slowdown(factor))
        self._note("slow", factor=factor)
        return cost_of_slowness(status, factor or 1.0)

    def _record(self) -> TaskRecord:
        for record in self._tasks:
            if record.task == str(self.task):
                return record
        names = ", ".join(record.task for record in self._tasks) or "no tasks"
        raise SpecError(f"run {self._run.run} has no {self.task}; it has {names}")

    def _check_identity(self) -> None:
        """Refuse a pid that does not lead a session below its owner: another process may have it by now."""
        import psutil

        try:
            above = psutil.Process(self.pid).parents()
            parents = {*(process.pid for process in above), *(process.name() for process in above)}
            leads = os.getsid(self.pid) == self.pid
        except (psutil.Error, ProcessLookupError):
            raise RunError(f"{self.task} has ended meanwhile (pid {self.pid})") from None
        joined = read_record(self._files.joined(self.task), JoinedRecord)
        owner = joined.owner_pid if joined else self._run.launcher_pid
        if not leads or not parents & {owner, name_of_forked(owner)}:
            raise RunError(
                f"process {self.pid} was not started by the launcher of run {self._run.run}; nothing was "
                "done to it (use `kill` for tasks that you have started yourself)"
            )

    def _note(self, action: str, **facts: object) -> None:
        journal = Journal(self._files, self._run, warn=lambda text: None)
        journal.event("chaos", task=str(self.task), attempt=self._attempt, action=action, **facts)


def cost_of_slowness(said: TaskStatus, factor: float) -> str | None:
    """Return ``a step computes 1.0 ms of 25: x 8 makes it up to 32``: waits for others may hide a part."""
    if said.step_s is None or said.computing_s is None or factor == 1:
        return None
    times_s = said.computing_s, said.step_s, said.step_s + (factor - 1) * said.computing_s
    computes, takes, slow = (f"{1000 * s:.{1 if s < 0.01 else 0}f}" for s in times_s)
    return f"a step computes {computes} ms of {takes}: x {factor:g} makes it up to {slow}"


def _read_live(files: RunFiles) -> RunRecord:
    record = read_record(files.run, RunRecord)
    if record is None:
        raise RunError(f"there is no run in {files.directory}")
    if record.state not in LIVE_RUN_STATES:
        raise RunError(f"run {record.run} has {record.state}; chaos needs a running one")
    if not is_alive(files, record):
        raise RunError(f"run {record.run} is stale: its launcher has died, and its tasks with it")
    return record


AnyFault = KillFault | PauseFault


class Fault(msgspec.Struct, frozen=True):
    """A signal that is due, and what to say of it."""

    task: TaskId
    signal: int
    text: str


class FaultSchedule:
    """The decision which faults are due, by the run's step or the seconds since its start."""

    def __init__(self, simulate: SimulateSection) -> None:
        chance = random.Random(simulate.seed)
        faults: list[AnyFault] = [*simulate.kill, *simulate.pause]
        self._waiting: list[AnyFault] = []
        for fault in faults:  # the seed draws one step, or one second, between the two that the spec gives
            if isinstance(fault.at_step, tuple):
                fault = replace(fault, at_step=chance.randint(*fault.at_step))
            elif isinstance(fault.at_s, tuple):
                fault = replace(fault, at_s=chance.uniform(*fault.at_s))
            self._waiting.append(fault)
        self._paused: list[tuple[float, TaskId]] = []

    def due(self, elapsed_s: float, step: int | None, there: Container[TaskId] | None = None) -> list[Fault]:
        """Return the faults that are due; those of tasks that are not `there` (None: all are) come later."""
        faults = [
            Fault(task, signal.SIGCONT, "resumed") for end_s, task in self._paused if elapsed_s >= end_s
        ]
        self._paused = [(end_s, task) for end_s, task in self._paused if elapsed_s < end_s]
        for fault in [fault for fault in self._waiting if _is_due(fault, elapsed_s, step)]:
            task = TaskId.parse(fault.task)
            if there is not None and task not in there:
                continue
            self._waiting.remove(fault)
            if isinstance(fault, PauseFault):
                self._paused.append((elapsed_s + fault.for_s, task))
                faults.append(Fault(task, signal.SIGSTOP, f"paused for {fault.for_s:g} s"))
            else:
                faults.append(Fault(task, signal.SIGKILL, "killed"))
        return faults

    @property
    def over(self) -> bool:
        return not self._waiting and not self._paused

    def missed(self) -> list[str]:
        return [
            f"{fault.task} was not {'paused' if isinstance(fault, PauseFault) else 'killed'}"
            for fault in self._waiting
        ]


def _is_due(fault: AnyFault, elapsed_s: float, step: int | None) -> bool:
    if isinstance(fault.at_step, int):
        return step is not None and step >= fault.at_step
    return isinstance(fault.at_s, float | int) and elapsed_s >= fault.at_s
