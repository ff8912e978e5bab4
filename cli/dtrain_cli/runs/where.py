"""The place of a run's tasks, beside its record."""

import socket
from dataclasses import dataclass, field

from dtrain.config.choices import On
from dtrain.errors import RunError
from dtrain.runs.files import RunFiles, RunRecord, read_record


@dataclass(frozen=True)
class WhereRecord:
    """The place of a run's tasks.

    Attributes:
        engine: that starts them.
        hosts: on which they run, as the spec names them; empty where the engine decides.
        job: by which the engine knows them; None where they hang on their launcher.
        earlier: hosts of earlier launches of the run, which may have left files there.
    """

    engine: On
    hosts: list[str] = field(default_factory=list)
    job: str | None = None
    earlier: list[str] = field(default_factory=list)

    @property
    def all_hosts(self) -> list[str]:
        """Return the hosts of every launch of the run."""
        return [*self.hosts, *self.earlier]


ATTACHED = (On.SSH, On.SLURM)
"""The engines whose tasks a launcher reaches through agents."""


def where_of(files: RunFiles) -> WhereRecord:
    """Return where the tasks of a run are: on this machine, if no record that can be read says more."""
    try:
        return read_record(files.where, WhereRecord) or WhereRecord(On.LOCAL)
    except (RunError, OSError):
        return WhereRecord(On.LOCAL)


def other_host(record: RunRecord) -> str | None:
    """Return the host of the process that writes a run's record, if it is not this one.

    The record's process ids and the monotonic times of the statuses beside it are that host's then.
    """
    return None if record.host == socket.gethostname() else record.host


def where_text(record: WhereRecord) -> str:
    """Return the place in words: ``local``, ``ssh h1``, ``ssh h1 +3``."""
    hosts = record.hosts
    return " ".join([record.engine, *hosts[:1], *([f"+{len(hosts) - 1}"] if hosts[1:] else [])])
