"""Slurm's own commands: submit, show, requeue, cancel. Each has a deadline."""

import ipaddress
import os
import re
import socket
import subprocess
from collections.abc import Sequence
from datetime import datetime

from dtrain.cluster.host_lists import compress_hosts
from dtrain.config.targets.slurm_section import EARLY_S
from dtrain.errors import RunError
from dtrain_cli.targets.slurm.job_report import JobReport, read_job, read_node_addresses

_COMMAND_S = 60.0
_WORDS_MAX = 300
_NO_JOB = "Invalid job id"
_JOB = re.compile(r"([0-9]+)(?:;.*)?")


def submit(script: str) -> str:
    """Hand a script to sbatch; return the job's number.

    Raises:
        RunError: sbatch refuses it, or is not there.
    """
    answer = _run(["sbatch", "--parsable"], script)
    found = _JOB.fullmatch(answer.strip().splitlines()[-1] if answer.strip() else "")
    if found is None:
        raise RunError(f"sbatch answered {answer.strip()[:_WORDS_MAX]!r}, expected the number of a job")
    return found[1]


def show(job: str) -> JobReport | None:
    """Return how a job stands; None if Slurm does not know it any more.

    Raises:
        RunError: Slurm cannot be asked.
    """
    try:
        return read_job(_run(["scontrol", "show", "job", "-o", job]).partition("\n")[0])
    except RunError as error:
        if _NO_JOB in str(error):
            return None
        raise


def requeue(job: str) -> None:
    """Let a job begin again; this ends its present processes. Raise a `RunError` if Slurm refuses."""
    _run(["scontrol", "requeue", job])


def cancel(job: str) -> None:
    """End a job; raise a `RunError` if Slurm refuses."""
    _run(["scancel", job])


def run_on_node(job: str, node: str, command: Sequence[str], wait_s: float) -> str:
    """Run a command on a node of a job; return why it has not ended well, or nothing.

    A command that ends the job may be killed with it.

    Raises:
        RunError: srun is not there, or the command has not ended in time.
    """
    srun = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--quiet"]
    try:
        done = subprocess.run(
            [*srun, "--", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=wait_s + _COMMAND_S,
        )
    except FileNotFoundError:
        raise RunError(f"the run is in job {job} of Slurm, and there is no srun here") from None
    except subprocess.TimeoutExpired:
        raise RunError(f"srun has not answered within {wait_s + _COMMAND_S:g} s") from None
    words = " ".join(done.stderr.split())[-_WORDS_MAX:] or f"exit code {done.returncode}"
    return words if done.returncode else ""


def is_ending(job: str, grace_s: float) -> bool:
    """Return whether a running job is at the end of its time, as far as Slurm says."""
    report = show(job)
    return report is not None and report.is_ending(datetime.now(), grace_s + EARLY_S)


def node_addresses(nodes: Sequence[str]) -> dict[str, str]:
    """Return the address of each node, without those that mean the asking machine itself.

    Raises:
        RunError: Slurm cannot be asked.
    """
    shown = read_node_addresses(_run(["scontrol", "show", "node", "-o", compress_hosts(nodes)]))
    found = {}
    for node in nodes:
        address = _resolved(shown.get(node, node))
        if address is not None and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            found[node] = address
    return found


def _resolved(name: str) -> str | None:
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    return str(entries[0][4][0])


def _run(command: list[str], script: str = "") -> str:
    try:
        done = subprocess.run(
            command,
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_S,
            env={**os.environ, "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise RunError(f"on: slurm needs Slurm's commands, and there is no {command[0]} here") from None
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]} has not answered within {_COMMAND_S:g} s") from None
    if done.returncode != 0:
        words = " ".join(done.stderr.split())[:_WORDS_MAX] or f"exit code {done.returncode}"
        raise RunError(f"{command[0]} failed: {words}")
    return done.stdout
