"""The script of a job that runs a launch on its nodes, as `sbatch` reads it. Pure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dtrain.cluster import Role
from dtrain.cluster.host_lists import compress_hosts
from dtrain.config import ROLES, RunSpec, read_hosts
from dtrain.errors import SpecError
from dtrain.process.plain_text import plain, plain_line
from dtrain_cli.placement import place

_NEXT_PART = "#SBATCH hetjob\n"
_SAYS_CPUS = ("-c", "--cpus-per-task", "--exclusive", "--ntasks", "-n", "--cpus-per-gpu")
"""Options of the user's with which the job asks for processors itself."""


@dataclass(frozen=True)
class JobScript:
    """A job that runs one launch.

    Attributes:
        spec: of the run.
        command: the launch that its script becomes.
        cwd: where it starts.
        out: the file for what the launch prints; likewise `err`.
        err: the file for the launch's own lines.
    """

    spec: RunSpec
    command: Sequence[str]
    cwd: Path
    out: Path
    err: Path

    @property
    def nodes(self) -> int:
        """The number of machines that the job asks for."""
        servers = self.spec.slurm.servers
        return self._worker_nodes + (servers.nodes if servers is not None else 0)

    def parts(self) -> list[list[str]]:
        """Return the options of sbatch of each part of the job, one a line of the script; most have one part.

        The first part of a heterogeneous job holds what concerns all of it. Source: "Heterogeneous Job
        Support" in the documentation of Slurm.
        """
        slurm = self.spec.slurm
        name, job = f"--job-name={self.spec.name}", self._of_the_job()
        if slurm.servers is None:
            machines = self._machines(self._tasks_per_node(), slurm.partition, slurm.options)
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

    def _tasks_per_node(self) -> int:
        """Return the largest number of tasks on one node: each gets a processor."""
        if self.spec.hosts:
            placed = list(place(self.spec.cluster, read_hosts(self.spec.hosts), self.spec.place).values())
            return max(placed.count(host) for host in placed)
        tasks = sum(self.spec.cluster.count(role) for role in ROLES)
        return -(-tasks // self.nodes)


def _name(option: str) -> str:
    return option.partition("=")[0] if option.startswith("--") else option[:2]


def _quoted(option: str) -> str:
    """Return an option as a line of #SBATCH has it: sbatch takes quotes as a shell does."""
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
