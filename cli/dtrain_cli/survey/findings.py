"""The findings about hosts, and the table and sentences that a user reads. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

CLOCK_S = 2.0
"""A clock that differs by more is named: certificates and the times in logs go by it."""
PAIRS_SHOWN_HOSTS = 8
"""With more hosts, only the slowest links of each are shown."""
_SLOWEST = 3
_DASH = "-"


@dataclass(frozen=True)
class LinkFound:
    """The connection from one host to another.

    Attributes:
        latency_s: from a byte to its echo.
        bytes_per_s: one way, towards the other host.
        problem: why there is none.
    """

    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    problem: str | None = None


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
        links: to the other hosts.
    """

    host: str
    login_s: float | None = None
    python: str | None = None
    dtrain: str | None = None
    clock_s: float | None = None
    sees_folder: bool | None = None
    address: str | None = None
    problem: str | None = None
    links: dict[str, LinkFound] = field(default_factory=dict)


def rounds(hosts: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield rounds of pairs, each host in at most one pair of a round, so that measurements do not disturb
    each other; every pair of hosts comes once.
    """
    ring: list[str | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(one, other) for one, other in pairs if one is not None and other is not None]
        ring = [ring[0], ring[-1], *ring[1:-1]]


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
    """Yield the lines of the table of hosts, and of the links between them."""
    rows = [HEADINGS, *map(row, hosts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    linked = [found for found in hosts if found.links]
    if not linked:
        return
    yield ""
    few = len(hosts) <= PAIRS_SHOWN_HOSTS
    slowest = "" if few else f", the {_SLOWEST} slowest of each"
    width = max(len("from  "), *(len(found.host) for found in hosts))
    yield f"{'from'.ljust(width)}  {'to'.ljust(width)}  latency    bandwidth{slowest}"
    for found in linked:
        for other, link in _shown(found.links, few):
            yield f"{found.host.ljust(width)}  {other.ljust(width)}  {link_text(link)}"


def _shown(links: Mapping[str, LinkFound], few: bool) -> Iterable[tuple[str, LinkFound]]:
    if few:
        return sorted(links.items())
    return sorted(links.items(), key=lambda each: (each[1].problem is None, each[1].bytes_per_s))[:_SLOWEST]


def link_text(link: LinkFound) -> str:
    """Return latency and bandwidth of a link, or that there is none."""
    if link.problem is not None:
        return f"no: {link.problem}"
    mbit_s = link.bytes_per_s * 8 / 1e6
    bandwidth = f"{mbit_s / 1000:.1f} Gbit/s" if mbit_s >= 1000 else f"{mbit_s:.0f} Mbit/s"
    return f"{f'{link.latency_s * 1000:.2f} ms'.ljust(9)}  {bandwidth}"


def problems(hosts: Sequence[HostFound]) -> Iterator[str]:
    """Yield why these hosts cannot run a cluster together, a sentence each."""
    address = {found.host: found.address for found in hosts}
    for found in hosts:
        if found.problem is not None:
            yield found.problem
        for other, link in found.links.items():
            if link.problem is not None:
                yield (
                    f"{found.host} ({found.address}) cannot reach {other} ({address.get(other)}): "
                    f"{link.problem}; open its ports in the firewalls (`network.ports` names them), or give "
                    "`network.interface`"
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
