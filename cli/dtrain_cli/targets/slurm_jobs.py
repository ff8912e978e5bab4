"""Jobs of Slurm: the script of one, Slurm's own commands, each with a deadline, and what they report."""

import re
import shlex
import signal
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from dtrain.cluster.hosts import compress_hosts
from dtrain.config import RunSpec, read_hosts
from dtrain.errors import RunError, SpecError
from dtrain.process.plain_text import plain, plain_line
from dtrain_cli.placement import hosts_of_addresses, place
from dtrain_cli.targets.engine_command import answer_of
from dtrain_cli.targets.slurm_allocation import Allocation

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z:/_]*)=(\S*)")
_CODE = re.compile(r"(\d{1,3}):(\d{1,3})")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
RUNNING = "RUNNING"
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
GOING = frozenset({RUNNING, "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})


class JobReport(msgspec.Struct, frozen=True):
    """A job as Slurm knows it: its state in Slurm's word, for what reason it waits, and until when.

    `code` is the exit code of its script, 128+n for signal n; `err` the file to which
    Slurm and the script have written.
    """

    state: str
    reason: str
    code: int
    restarts: int
    begins: str | None = None
    err: str | None = None

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


def read_job(text: str) -> JobReport | None:
    """Parse one line of `scontrol show job -o`; None if it is about no job."""
    fields = dict(_FIELD.findall(text))
    if "JobState" not in fields:
        return None
    code = _CODE.fullmatch(fields.get("ExitCode", ""))
    exit_code = 0 if code is None else int(code[1]) or (128 + int(code[2]) if int(code[2]) else 0)
    restarts, begins = fields.get("Restarts", ""), fields.get("StartTime", "")
    return JobReport(
        state=fields["JobState"],
        reason=fields.get("Reason", "None"),
        code=exit_code,
        restarts=int(restarts) if restarts.isdecimal() and len(restarts) < 10 else 0,
        begins=begins if fields["JobState"] in WAITING and _TIME.fullmatch(begins) else None,
        err=fields.get("StdErr"),
    )


def read_node_addresses(text: str) -> dict[str, str]:
    shown = (dict(_FIELD.findall(line)) for line in text.splitlines())
    return {each["NodeName"]: each["NodeAddr"] for each in shown if each.keys() >= {"NodeName", "NodeAddr"}}


_WORDS_MAX = 300
_NO_JOB = "Invalid job id"
_JOB = re.compile(r"([0-9]+)(?:;.*)?")


def submit(script: str) -> str:
    """Hand a script to sbatch; return the job's number. Raise a `RunError` if sbatch refuses it."""
    answer = _answer("sbatch", "--parsable", script=script)
    found = _JOB.fullmatch(answer.strip().splitlines()[-1] if answer.strip() else "")
    if found is None:
        raise RunError(f"sbatch answered {answer.strip()[:_WORDS_MAX]!r}, expected the number of a job")
    return found[1]


def show(job: str) -> JobReport | None:
    """Return the state of a job; None if Slurm knows none. Raise a `RunError` if Slurm does not answer."""
    try:
        return read_job(_answer("scontrol", "show", "job", "-o", job).partition("\n")[0])
    except RunError as error:
        if _NO_JOB in str(error):
            return None
        raise


def requeue(job: str) -> None:
    """Let a job begin again; this ends its present processes."""
    _answer("scontrol", "requeue", job)


def cancel(job: str) -> None:
    _answer("scancel", job)


def tell_to_stop(job: str) -> None:
    """Send SIGTERM to the launcher that a job's script has become, and to none of its tasks."""
    _answer("scancel", "--batch", "--signal=TERM", job)


def node_addresses(nodes: Sequence[str]) -> dict[str, str]:
    """Return the address of each node that this machine can resolve; its own may be a loopback address."""
    shown = read_node_addresses(_answer("scontrol", "show", "node", "-o", compress_hosts(nodes)))
    found = {}
    for node in nodes:
        with suppress(OSError):
            answers = socket.getaddrinfo(shown.get(node, node), None, type=socket.SOCK_STREAM)
            found[node] = str(answers[0][4][0])
    return found


def _answer(*command: str, script: str = "") -> str:
    return answer_of(command, "`on: slurm` needs Slurm's commands", script)


_NEXT_PART = "#SBATCH hetjob\n"
_SAYS_TASKS = ("--ntasks-per-node", "--ntasks", "-n", "--exclusive")
"""Options of the user's with which the job asks for processors itself."""
JOB = "$SLURM_JOB_ID"
_OF_THE_JOB = re.compile(r"(\$SLURM_[A-Z_]+)")
"""Words that the job's shell replaces: each element of an array has its own."""


class JobScript(msgspec.Struct, frozen=True):
    """A job that runs one launch, `command`; `out` is for what that prints, `err` for its own lines."""

    spec: RunSpec
    command: Sequence[str]
    cwd: Path
    out: Path
    err: Path

    @property
    def nodes(self) -> int:
        return sum(nodes for nodes, _ in self._parts())

    def parts(self) -> list[list[str]]:
        """Return the options of sbatch of each part of the job; most have one part.

        The first part of a heterogeneous job holds what concerns all of it. Source: "Heterogeneous Job
        Support" in the documentation of Slurm.
        """
        slurm, servers = self.spec.slurm, self.spec.slurm.servers
        requeue, signal_at = "requeue" if slurm.requeue else "no-requeue", f"B:TERM@{slurm.notice_s}"
        of_the_job = [
            *(f"--job-name={self.spec.name}", f"--chdir={self.cwd}", f"--output={self.out}"),
            *(f"--error={self.err}", "--open-mode=append", f"--{requeue}", f"--signal={signal_at}"),
        ]
        machines = [(slurm.partition, slurm.options)]
        if servers is not None:
            machines.insert(0, (servers.partition or slurm.partition, servers.options))
        parts = [self._machines(*part, *asked) for part, asked in zip(self._parts(), machines, strict=True)]
        return [[*of_the_job, *parts[0]], *parts[1:]]

    def text(self) -> str:
        """Return the script: its shell becomes the launch, so that signals reach it."""
        parts = ("".join(f"#SBATCH {_quoted(option)}\n" for option in part) for part in self.parts())
        setup = "".join(f"{line}\n" for line in self.spec.slurm.setup)
        words = " ".join(map(_shell_word, self.command))
        return f"#!/bin/bash\n{_NEXT_PART.join(parts)}\n{setup}exec {words}\n"

    def _parts(self) -> list[tuple[int, int]]:
        """Return the nodes of each part, and the tasks of its fullest node: each gets a processor."""
        slurm, cluster = self.spec.slurm, self.spec.cluster
        hosts = read_hosts(self.spec.hosts) if self.spec.hosts else hosts_of_addresses(cluster)
        counts = [*([slurm.servers.nodes] if slurm.servers else []), slurm.nodes or len(hosts) or 1]
        names = tuple(tuple(f"{part}-{node}" for node in range(count)) for part, count in enumerate(counts))
        nodes = Allocation("", names, (None,) * len(names), batch=True, restarts=0)
        if hosts:
            return [(counts[0], max(Counter(place(cluster, hosts, self.spec.place).values()).values()))]
        placed = place(cluster, nodes.hosts(()), nodes.places(nodes.hosts(()), cluster, self.spec.place))
        tasks = Counter(host.host for host in placed.values())
        return [(len(part), max(1, *(tasks[name] for name in part))) for part in names]

    def _machines(self, nodes: int, tasks: int, partition: str | None, more: Sequence[str]) -> list[str]:
        """Return the options about the machines of one part, and its time, which each part has of its own."""
        slurm, options = self.spec.slurm, [f"--nodes={nodes}"]
        if not any(option_name(option) in _SAYS_TASKS for option in more):
            options.append(f"--ntasks-per-node={tasks}")
        if self.spec.hosts:
            names = [host.host for host in read_hosts(self.spec.hosts)]
            options.append(f"--nodelist={compress_hosts(names)}")
        for name, value in (("time", slurm.time), ("partition", partition), ("account", slurm.account)):
            if value is not None:
                options.append(f"--{name}={value}")
        return [*options, *more]


def option_name(option: str) -> str:
    return option.partition("=")[0] if option.startswith("--") else option[:2]


def _shell_word(word: str) -> str:
    _check_plain(word)
    pieces = [piece for piece in _OF_THE_JOB.split(word) if piece] or [""]
    return "".join(f'"{each}"' if _OF_THE_JOB.match(each) else shlex.quote(each) for each in pieces)


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
