"""The findings about hosts, and the table and sentences that a user reads. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

CLOCK_S = 2.0
"""A clock that differs by more is named: certificates and the times in logs go by it."""
_DASH = "-"


@dataclass
class HostFound:
    """One host.

    Attributes:
        host: its name.
        login_s: from the start of its login to the first word of its agent.
        python: the version there; likewise `dtrain`.
        dtrain: the version there.
        clock_s: how much later its clock is than this machine's.
        sees_folder: whether the working directory of this command is there the same folder.
        address: at which other hosts reach it.
        problem: why it cannot be used, with its name.
        unreached: why it cannot connect to another host, by that host's name.
    """

    host: str
    login_s: float | None = None
    python: str | None = None
    dtrain: str | None = None
    clock_s: float | None = None
    sees_folder: bool | None = None
    address: str | None = None
    problem: str | None = None
    unreached: dict[str, str] = field(default_factory=dict)


HEADINGS = ("host", "ssh", "Python", "dtrain", "clock", "address", "this folder")


def row(found: HostFound) -> tuple[str, ...]:
    """Return the cells of a host, below `HEADINGS`."""
    if found.login_s is None:
        return (found.host, "no", *[_DASH] * 5)
    folder = {True: "seen", False: "not there", None: _DASH}[found.sees_folder]
    clock = _DASH if found.clock_s is None else f"{found.clock_s:+.3f} s"
    known = (found.python or _DASH, found.dtrain or _DASH)
    return (found.host, f"{found.login_s:.1f} s", *known, clock, found.address or _DASH, folder)


def table(hosts: Sequence[HostFound]) -> Iterator[str]:
    """Yield the lines of the table of hosts."""
    rows = [HEADINGS, *map(row, hosts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def problems(hosts: Sequence[HostFound]) -> Iterator[str]:
    """Yield why these hosts cannot run a cluster together, a sentence each."""
    address = {found.host: found.address for found in hosts}
    for found in hosts:
        if found.problem is not None:
            yield found.problem
        for other, why in found.unreached.items():
            yield (
                f"{found.host} ({found.address}) cannot reach {other} ({address.get(other)}): {why}; open "
                "its ports in the firewalls (`network.ports` names them), or give `network.interface`"
            )


def remarks(hosts: Sequence[HostFound], folder: str) -> Iterator[str]:
    """Yield what does not stop a cluster, but is worth knowing."""
    for found in hosts:
        if found.clock_s is not None and abs(found.clock_s) > CLOCK_S:
            late = "ahead of" if found.clock_s > 0 else "behind"
            yield (
                f"{found.host}: its clock is {abs(found.clock_s):.1f} s {late} this machine's; the times in "
                "logs and certificates go by it"
            )
    seen = [found.host for found in hosts if found.sees_folder]
    unseen = [found.host for found in hosts if found.sees_folder is False]
    if unseen and seen:
        yield f"{folder} is on {', '.join(seen)} the same folder as here, and not on {', '.join(unseen)}"
    elif unseen:
        yield f"no host sees {folder}: code is sent to them, and the chief's checkpoints stay on its host"
