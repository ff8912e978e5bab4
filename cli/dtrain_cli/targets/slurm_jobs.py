"""Jobs of Slurm: the script of one, Slurm's own commands, each with a deadline, and what they report."""

import ipaddress
import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from dtrain.cluster import Role
from dtrain.cluster.hosts import compress_hosts
from dtrain.config import ROLES, RunSpec, read_hosts
from dtrain.config.targets import EARLY_S
from dtrain.errors import RunError, SpecError
from dtrain.process.plain_text import plain, plain_line
from dtrain_cli.placement import place

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z:/_]*)=(\S*)")
_CODE = re.compile(r"(\d{1,3}):(\d{1,3})")
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
GOING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})


class JobReport(msgspec.Struct, frozen=True):
    """A job as Slurm knows it: its state in Slurm's word, and for what reason it waits.

    Attributes:
        code: the exit code of its script, 128+n for signal n.
        ends: when its time limit is over, by the clock of Slurm; None: it has not begun, or has no limit.
    """

    state: str
    reason: str
    code: int
    ends: datetime | None
    restarts: int

    @property
    def over(self) -> bool:
        """Whether the job has ended and does not begin again."""
        return self.state not in WAITING | GOING

    @property
    def exit_code(self) -> int:
        if self.state == "COMPLETED" or self.code:
            return self.code
        ended_by_slurm = self.state in ("CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE")
        return 128 + signal.SIGTERM if ended_by_slurm else 1

    def is_ending(self, now: datetime, grace_s: float) -> bool:
        """Return whether a running job has no more time than its grace: TERM was then a notice of that.

        A job that was cancelled is completing, or gone.
        """
        if self.state != "RUNNING" or self.ends is None:
            return False
        return (self.ends - now).total_seconds() <= grace_s


def read_job(text: str) -> JobReport | None:
    """Parse one line of `scontrol show job -o`; None if it is about no job."""
    fields = dict(_FIELD.findall(text))
    if "JobState" not in fields:
        return None
    code = _CODE.fullmatch(fields.get("ExitCode", ""))
    exit_code = 0 if code is None else int(code[1]) or (128 + int(code[2]) if int(code[2]) else 0)
    restarts = fields.get("Restarts", "")
    return JobReport(
        state=fields["JobState"],
        reason=fields.get("Reason", "None"),
        code=exit_code,
        ends=_moment(fields.get("EndTime", "")),
        restarts=int(restarts) if restarts.isdecimal() and len(restarts) < 10 else 0,
    )


def read_node_addresses(text: str) -> dict[str, str]:
    addresses = {}
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if "NodeName" in fields and fields.get("NodeAddr"):
            addresses[fields["NodeName"]] = fields["NodeAddr"]
    return addresses


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:  # "Unknown", "NONE", "n/a"
        return None


_COMMAND_S = 60.0
_WORDS_MAX = 300
_NO_JOB = "Invalid job id"
_JOB = re.compile(r"([0-9]+)(?:;.*)?")


def submit(script: str) -> str:
    """Hand a script to sbatch; return the job's number. Raise a `RunError` if sbatch refuses it."""
    answer = _answer(["sbatch", "--parsable"], script)
    found = _JOB.fullmatch(answer.strip().splitlines()[-1] if answer.strip() else "")
    if found is None:
        raise RunError(f"sbatch answered {answer.strip()[:_WORDS_MAX]!r}, expected the number of a job")
    return found[1]


def show(job: str) -> JobReport | None:
    """Return the state of a job; None if Slurm knows none. Raise a `RunError` if Slurm does not answer."""
    try:
        return read_job(_answer(["scontrol", "show", "job", "-o", job]).partition("\n")[0])
    except RunError as error:
        if _NO_JOB in str(error):
            return None
        raise


def requeue(job: str) -> None:
    """Let a job begin again; this ends its present processes."""
    _answer(["scontrol", "requeue", job])


def cancel(job: str) -> None:
    _answer(["scancel", job])


def run_on_node(job: str, node: str, command: Sequence[str], wait_s: float) -> str:
    """Run a command on a node of a job, which may end with the job; return why it has failed, or nothing.

    Raise a `RunError` if srun is not there, or the command has not ended in time.
    """
    srun = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--quiet"]
    done = _run([*srun, "--", *command], f"the run is in job {job} of Slurm", wait_s + _COMMAND_S)
    words = " ".join(done.stderr.split())[-_WORDS_MAX:] or f"exit code {done.returncode}"
    return words if done.returncode else ""


def is_ending(job: str, grace_s: float) -> bool:
    report = show(job)
    return report is not None and report.is_ending(datetime.now(), grace_s + EARLY_S)


def node_addresses(nodes: Sequence[str]) -> dict[str, str]:
    """Return the address of each node, but for those that mean the asking machine itself."""
    shown = read_node_addresses(_answer(["scontrol", "show", "node", "-o", compress_hosts(nodes)]))
    found = {}
    for node in nodes:
        with suppress(OSError):  # a name that this machine cannot resolve
            address = str(socket.getaddrinfo(shown.get(node, node), None, type=socket.SOCK_STREAM)[0][4][0])
            if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
                found[node] = address
    return found


def _run(command: list[str], need: str, wait_s: float, text: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a command of Slurm with `text` as its input; `need` says why it has to be there."""
    try:
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=wait_s,
            env={**os.environ, "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise RunError(f"{need}, and there is no {command[0]} here") from None
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]} has not answered within {wait_s:g} s") from None


def _answer(command: list[str], script: str = "") -> str:
    """Return what a command of Slurm prints; raise a `RunError` with Slurm's own words if it fails."""
    done = _run(command, "on: slurm needs Slurm's commands", _COMMAND_S, script)
    if done.returncode != 0:
        words = " ".join(done.stderr.split())[:_WORDS_MAX] or f"exit code {done.returncode}"
        raise RunError(f"{command[0]} failed: {words}")
    return done.stdout


_NEXT_PART = "#SBATCH hetjob\n"
_SAYS_CPUS = ("-c", "--cpus-per-task", "--exclusive", "--ntasks", "-n", "--cpus-per-gpu")
"""Options of the user's with which the job asks for processors itself."""


class JobScript(msgspec.Struct, frozen=True):
    """A job that runs one launch, `command`; `out` is for what that prints, `err` for its own lines."""

    spec: RunSpec
    command: Sequence[str]
    cwd: Path
    out: Path
    err: Path

    @property
    def nodes(self) -> int:
        servers = self.spec.slurm.servers
        return self._worker_nodes + (servers.nodes if servers is not None else 0)

    def parts(self) -> list[list[str]]:
        """Return the options of sbatch of each part of the job; most have one part.

        The first part of a heterogeneous job holds what concerns all of it. Source: "Heterogeneous Job
        Support" in the documentation of Slurm.
        """
        slurm = self.spec.slurm
        name, job = f"--job-name={self.spec.name}", self._of_the_job()
        if slurm.servers is None:
            # Each task gets a processor: count the tasks of the node that has most.
            if self.spec.hosts:
                placed = list(place(self.spec.cluster, read_hosts(self.spec.hosts), self.spec.place).values())
                per_node = max(placed.count(host) for host in placed)
            else:
                per_node = -(-sum(self.spec.cluster.count(role) for role in ROLES) // self.nodes)
            machines = self._machines(per_node, slurm.partition, slurm.options)
            return [[name, f"--nodes={self.nodes}", *job, *machines]]
        count = self.spec.cluster.count
        servers = sum(map(count, ROLES)) - count(Role.WORKER)
        per_server_node = -(-servers // slurm.servers.nodes)
        per_worker_node = -(-count(Role.WORKER) // self._worker_nodes)
        partition = slurm.servers.partition or slurm.partition
        return [
            [
                *(name, f"--nodes={slurm.servers.nodes}", *job),
                *self._machines(per_server_node, partition, slurm.servers.options),
            ],
            [
                f"--nodes={self._worker_nodes}",
                *self._machines(per_worker_node, slurm.partition, slurm.options),
            ],
        ]

    def text(self) -> str:
        """Return the script: its shell becomes the launch, so that signals reach it."""
        parts = ("".join(f"#SBATCH {_quoted(option)}\n" for option in part) for part in self.parts())
        for word in self.command:
            _check_plain(word)
        return f"#!/bin/sh\n{_NEXT_PART.join(parts)}\nexec {shlex.join(self.command)}\n"

    @property
    def _worker_nodes(self) -> int:
        return self.spec.slurm.nodes or len(read_hosts(self.spec.hosts) if self.spec.hosts else ()) or 1

    def _of_the_job(self) -> list[str]:
        slurm = self.spec.slurm
        return [
            f"--chdir={self.cwd}",
            f"--output={self.out}",
            f"--error={self.err}",
            "--open-mode=append",
            "--requeue" if slurm.requeue else "--no-requeue",
            f"--signal=B:TERM@{slurm.notice_s}",
        ]

    def _machines(self, tasks_per_node: int, partition: str | None, more: Sequence[str]) -> list[str]:
        """Return the options about the machines of one part, and its time, which each part has of its own."""
        slurm, options = self.spec.slurm, []
        if not any(_name(option) in _SAYS_CPUS for option in more):
            options.append(f"--cpus-per-task={max(1, tasks_per_node)}")
        if self.spec.hosts:
            options.append(
                f"--nodelist={compress_hosts([host.host for host in read_hosts(self.spec.hosts)])}"
            )
        for name, value in (("time", slurm.time), ("partition", partition), ("account", slurm.account)):
            if value is not None:
                options.append(f"--{name}={value}")
        return [*options, *more]


def _name(option: str) -> str:
    return option.partition("=")[0] if option.startswith("--") else option[:2]


def _quoted(option: str) -> str:
    """Quote an option as a shell does, for a line of #SBATCH."""
    _check_plain(option)
    name, equals, value = option.partition("=")
    if not any(letter.isspace() or letter in "\"'\\#" for letter in value):
        return option
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}{equals}"{escaped}"'


def _check_plain(text: str) -> None:
    """Raise a `SpecError` for control characters: sbatch takes what follows a line break for another line."""
    if "\n" in text or plain(text) != text:
        raise SpecError(
            "slurm: expected text without line breaks and control characters in the script of a job, found "
            f"{plain_line(text)[:200]!r}; rename the folder, or put the text into a file"
        )
