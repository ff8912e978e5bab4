"""The `slurm` section: the wishes for a job that runs the cluster."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dtrain.config.problems import Problem, at_least

_TIME = re.compile(r"[0-9]+(-[0-9]{1,2}(:[0-9]{1,2}){0,2}|(:[0-9]{1,2}){0,2})")
EARLY_S = 60
"""By so much Slurm may signal a job earlier than it was asked to (--signal in sbatch(1))."""
_WORD = re.compile(r"[A-Za-z0-9_.,:+@/-]+")
_OWN = {
    "--nodes": "slurm.nodes",
    "-N": "slurm.nodes",
    "--time": "slurm.time",
    "-t": "slurm.time",
    "--partition": "slurm.partition",
    "-p": "slurm.partition",
    "--account": "slurm.account",
    "-A": "slurm.account",
    "--requeue": "slurm.requeue",
    "--no-requeue": "slurm.requeue",
    "--signal": "slurm.grace_s",
    "--job-name": "name",
    "-J": "name",
    "--ntasks-per-node": None,
    "--open-mode": None,
    "--output": None,
    "-o": None,
    "--error": None,
    "-e": None,
    "--wrap": None,
    "--parsable": None,
}
"""Options that a job gets from dtrain, and the key of the spec that says them."""


@dataclass(frozen=True)
class ServerNodesSection:
    """The nodes of another kind on which the chief, the evaluator and the servers of a run have their places.

    Attributes:
        nodes: how many.
        partition: where they are; None: that of the other nodes.
        options: more options of sbatch for them, a word each.
    """

    nodes: int = 1
    partition: str | None = None
    options: tuple[str, ...] = ()

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude."""
        yield from at_least(self, 1, "nodes")
        yield from _word_problems(self, "partition")
        yield from _options_problems(self.options)


@dataclass(frozen=True)
class SlurmSection:
    """The job of a run that is handed to Slurm.

    Attributes:
        nodes: how many machines it asks for; None: one for each of `hosts`, else one.
        time: its limit, as sbatch takes it: ``2:00:00``, ``1-12``, or minutes; None: the partition's.
        partition: where it runs; None: the default.
        account: which is charged; None: the user's.
        requeue: whether it goes on by itself after the time limit and after a node was lost.
        grace_s: seconds before the time limit at which Slurm signals the job, to save and stop.
        options: more options of sbatch, a word each.
        servers: makes the job a heterogeneous one, of which the first part is for the chief and the servers;
            `nodes`, `partition` and `options` are those of the workers then. None: the nodes are of one kind.
    """

    nodes: int | None = None
    time: str | int | None = None
    partition: str | None = None
    account: str | None = None
    requeue: bool = True
    grace_s: int = 120
    options: tuple[str, ...] = ()
    servers: ServerNodesSection | None = None

    @property
    def time_s(self) -> int:
        """Return the time limit in seconds; 0: it is the partition's, or there is none."""
        days, dash, rest = str(self.time or 0).rpartition("-")
        numbers = [int(number) for number in rest.split(":")]
        units = (3600, 60, 1) if dash or len(numbers) == 3 else (60, 1)
        return int(days or 0) * 86400 + sum(n * unit for n, unit in zip(numbers, units, strict=False))

    @property
    def notice_s(self) -> int:
        """Return how long before the time limit Slurm is asked to signal the job.

        That is `grace_s`, but at most a quarter of a time that is hardly longer: the job would be told to
        stop as soon as it has begun.
        """
        short = 0 < self.time_s <= self.grace_s + EARLY_S
        return min(self.grace_s, max(1, self.time_s // 4)) if short else self.grace_s

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude."""
        yield from at_least(self, 1, "nodes")
        if self.time is not None and not _TIME.fullmatch(str(self.time)):
            yield ("time",), f"expected a time such as 2:00:00, 1-12:00 or minutes, found {self.time!r}"
        yield from _word_problems(self, "partition", "account")
        if not 1 <= self.grace_s <= 65535:
            yield (
                ("grace_s",),
                f"expected seconds from 1 to 65535, as --signal takes them, found {self.grace_s}",
            )
        yield from _options_problems(self.options)
        if self.servers is not None:
            yield from ((("servers", *path), text) for path, text in self.servers.problems())


def _word_problems(section: SlurmSection | ServerNodesSection, *names: str) -> Iterator[Problem]:
    for name in names:
        word = getattr(section, name)
        if word is not None and (not _WORD.fullmatch(word) or word.startswith("-")):
            yield (name,), f"expected a name, found {word[:80]!r}"


def _options_problems(options: tuple[str, ...]) -> Iterator[Problem]:
    for index, option in enumerate(options):
        if problem := _option_problem(option):
            yield ("options", index), problem


def _option_problem(option: str) -> str | None:
    if not option.startswith("-") or option.strip("-") == "" or not option.isprintable():
        return f"expected an option of sbatch such as --constraint=avx2, found {option[:80]!r}"
    name = option.partition("=")[0] if option.startswith("--") else option[:2]
    if name not in _OWN:
        return None
    key = _OWN[name]
    return f"{name} is set by dtrain; say {key} instead" if key else f"{name} is set by dtrain itself"
