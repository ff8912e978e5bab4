"""The allocation of a job, as its variables describe it, and the way to its nodes: one `srun` each.

Source: sbatch(1), salloc(1), srun(1). A site's WaitTime and KillOnBadExit would end other tasks with the
first one that ends.
"""

import os
import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from dtrain.cluster.hosts import HOSTS_MAX, PARTS_MAX, expand_hosts
from dtrain.config import ClusterSection, Host
from dtrain.config.targets import Places
from dtrain.errors import SpecError
from dtrain.process.ranks import number_of
from dtrain_cli.placement import place
from dtrain_cli.targets.ssh import AgentOpener

JOB = "SLURM_JOB_ID"
_BATCH = "BATCH"
_SHOWN = 8


class Allocation(msgspec.Struct, frozen=True):
    """The nodes of one job.

    Attributes:
        job: its number; of a heterogeneous job the first part's.
        nodes: of each part of a heterogeneous job; others have one part.
        slots: how many tasks each node of a part takes at most, where the job says so.
        batch: whether this process runs in the job's batch script, and not below salloc.
    """

    job: str
    nodes: tuple[tuple[str, ...], ...]
    slots: tuple[int | None, ...]
    batch: bool
    restarts: int

    def part_of(self, node: str) -> int | None:
        """Return the part of a heterogeneous job to which a node belongs; None where there is but one."""
        if len(self.nodes) == 1:
            return None
        return next(part for part, names in enumerate(self.nodes) if node in names)

    def hosts(self, chosen: Sequence[Host]) -> list[Host]:
        """Return the nodes as hosts of a run, of which `chosen`, the spec's `hosts`, may choose some.

        Raise a `SpecError` if a host is none of the nodes.
        """
        slots = {name: count for names, count in zip(self.nodes, self.slots, strict=True) for name in names}
        for host in chosen:
            if host.host not in slots:
                known = ", ".join([*list(slots)[:_SHOWN], *(["..."] if len(slots) > _SHOWN else [])])
                raise SpecError(f"hosts: {host.host} is no node of job {self.job}, which has {known}")
        if chosen:
            return [replace(host, slots=host.slots or slots[host.host]) for host in chosen]
        return [Host(name, count) for name, count in slots.items()]

    def places(self, hosts: Sequence[Host], cluster: ClusterSection, wishes: Places) -> Places:
        """Return the places of roles: of a heterogeneous job the later parts are for the workers alone.

        `wishes`, the spec's `place`, comes first. A part without room for its tasks changes nothing.
        """
        if len(self.nodes) == 1 or isinstance(wishes, str) or not isinstance(cluster.worker, int):
            return wishes
        names = [
            [host.host for host in hosts if (host.host in self.nodes[0]) is own and not host.spare]
            for own in (True, False)
        ]
        first, others = map(tuple, names)
        if not first or not others:
            return wishes
        placed: Places = {"chief": first[0], "ps": first, "worker": others, **wishes}
        try:
            place(cluster, hosts, placed)
        except SpecError:
            return wishes
        return placed


def read_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """Return the allocation that the variables of a process describe; None without one.

    Raise a `SpecError` if they are not as Slurm sets them.
    """
    job = environment.get(JOB)
    if not job:
        return None
    parts = _number(environment, "SLURM_HET_SIZE", 1, PARTS_MAX)
    endings = [f"_HET_GROUP_{part}" for part in range(parts)] if parts > 1 else [""]
    nodes: tuple[tuple[str, ...], ...] = ()
    for ending in endings:
        room = HOSTS_MAX - sum(map(len, nodes))
        nodes += (tuple(expand_hosts(_text(environment, f"SLURM_JOB_NODELIST{ending}"), room)),)
    slots = tuple(_number(environment, f"SLURM_NTASKS_PER_NODE{ending}", 0) or None for ending in endings)
    return Allocation(
        job=job,
        nodes=nodes,
        slots=slots,
        batch=environment.get("ENVIRONMENT") == _BATCH,
        restarts=_number(environment, "SLURM_RESTART_COUNT", 0),
    )


def _text(environment: Mapping[str, str], name: str) -> str:
    if not (text := environment.get(name)):
        raise SpecError(f"{JOB} is set and {name} is not: this is no allocation of Slurm as sbatch makes it")
    return text


def _number(environment: Mapping[str, str], name: str, default: int, largest: int = 10**9) -> int:
    return number_of(environment, name, largest) if environment.get(name) else default


OPTIONS = (
    *("--nodes=1", "--ntasks=1", "--overlap", "--kill-on-bad-exit=0", "--wait=0"),
    *("--unbuffered", "--cpu-bind=none", "--quiet"),
)
_OF_THE_JOB = re.compile(
    r"SLURM_(NTASKS|NPROCS|NTASKS_PER_[A-Z]+|CPUS_PER_TASK|TRES_PER_TASK|DISTRIBUTION|EXACT|EXCLUSIVE"
    r"|NNODES|JOB_NUM_NODES|OVERCOMMIT|CPU_BIND.*|HINT|EXPORT_ENV)(_HET_GROUP_\d+)?"
)
"""Variables that srun would take for options: they speak of the whole job, or of how it was submitted."""
_BY_CHANCE = re.compile(
    r"temporarily|Requested nodes are busy|Socket timed out|Communication connection|Job step creation"
)


class Srun(AgentOpener):
    """The opener of agents on the nodes of one allocation."""

    name, missing = "srun", "there is no srun here"

    def __init__(self, allocation: Allocation, python: str, foreign: bool) -> None:
        super().__init__(python, foreign)
        self._allocation = allocation

    def command(self, host: str) -> list[str]:
        part = self._allocation.part_of(host)
        of_part = [] if part is None else [f"--het-group={part}"]
        return ["srun", *OPTIONS, *of_part, f"--nodelist={host}", "--", *self.agent]

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not _OF_THE_JOB.fullmatch(name)}

    def reason(self, host: str, code: int, words: str, quoted: str) -> tuple[str, bool] | None:
        if "No such file or directory" in words and self.python in words:
            return self.no_python("")
        ended = f"srun has ended with exit code {code}{quoted}", _BY_CHANCE.search(words) is not None
        return None if "No module named" in words else ended
