"""The way to the nodes of an allocation: one `srun` a node, whose streams are those of the agent there.

Source: srun(1). A site's WaitTime and KillOnBadExit would end other tasks with the first one that ends.
"""

import os
import re
import subprocess

from dtrain.errors import DtrainError
from dtrain_cli.targets.slurm.allocation import Allocation

OPTIONS = (
    "--nodes=1",
    "--ntasks=1",
    "--overlap",
    "--kill-on-bad-exit=0",
    "--wait=0",
    "--unbuffered",
    "--cpu-bind=none",
    "--quiet",
)
_OF_THE_JOB = re.compile(
    r"SLURM_(NTASKS|NPROCS|NTASKS_PER_[A-Z]+|CPUS_PER_TASK|TRES_PER_TASK|DISTRIBUTION|EXACT|EXCLUSIVE"
    r"|NNODES|JOB_NUM_NODES|OVERCOMMIT|CPU_BIND.*|HINT)(_HET_GROUP_\d+)?"
)
"""Variables that srun would take for options: they speak of the whole job."""
_BY_CHANCE = re.compile(
    r"temporarily|Requested nodes are busy|Socket timed out|Communication connection|Job step creation"
)
_WORDS_MAX = 300


class NoSrunError(DtrainError):
    """There is no `srun` on this machine."""

    exit_code = 125


class Srun:
    """The opener of agents on the nodes of one allocation."""

    def __init__(self, allocation: Allocation, python: str, foreign: bool) -> None:
        """Open agents with this interpreter; `foreign` if they start no program of dtrain's."""
        self._allocation = allocation
        self._python = python
        self._foreign = foreign

    def command(self, host: str) -> list[str]:
        """Return the command line of one agent."""
        part = self._allocation.part_of(host)
        of_part = [] if part is None else [f"--het-group={part}"]
        agent = [self._python, "-P", "-m", "dtrain_cli.agent", *(["--command"] if self._foreign else [])]
        return ["srun", *OPTIONS, *of_part, f"--nodelist={host}", "--", *agent]

    def open(self, host: str) -> "subprocess.Popen[bytes]":
        """Start the agent of a node; raise a `NoSrunError` without an srun."""
        environment = {name: value for name, value in os.environ.items() if not _OF_THE_JOB.fullmatch(name)}
        try:
            return subprocess.Popen(
                self.command(host),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise NoSrunError(f"{host}: there is no srun here") from None

    def explain(self, host: str, code: int, words: str) -> tuple[str, bool]:
        """Return why an srun has ended before its agent spoke, and whether another try may succeed."""
        lines = [line.strip() for line in words.splitlines() if line.strip()]
        quoted = f" ({lines[-1][:_WORDS_MAX]})" if lines else ""
        if code < 0:
            return f"{host}: srun was killed by signal {-code}", True
        if "No module named" in words and "dtrain" in words:
            return (
                f"{host}: {self._python} has no dtrain there; name one that has by `python` in the spec",
                False,
            )
        if "No such file or directory" in words and self._python in words:
            return f"{host}: there is no {self._python} there; set `python` in the spec", False
        return f"{host}: srun has ended with exit code {code}{quoted}", _BY_CHANCE.search(words) is not None
