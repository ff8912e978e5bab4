"""Hosts: the addresses that no other one can reach, and Slurm's compressed lists of names."""

import contextlib
import itertools
import math
import re
import socket
from collections.abc import Iterator, Sequence

from dtrain.errors import SpecError

LOOPBACK = "127.0.0.1"


def host_of(address: str | None) -> str:
    """Return the host of a ``host:port`` address; of none it is empty."""
    return (address or "").rpartition(":")[0]


def is_loopback(address: str) -> bool:
    """Return whether a ``host:port`` address is this host's own, which other hosts cannot reach."""
    host = host_of(address).strip("[]")
    with contextlib.suppress(OSError):
        return socket.inet_pton(socket.AF_INET, host)[0] == 127
    return host in ("localhost", "::1")


HOSTS_MAX = 100_000
NAME_MAX = 255
PARTS_MAX = 128
"""Parts of a heterogeneous job, of which Slurm knows no more."""
_NAMES = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_COUNT = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")


def expand_hosts(text: str, hosts_max: int = HOSTS_MAX) -> list[str]:
    """Return the names of a compressed list, in its order; numbers keep their leading zeros."""
    names = _NAMES.findall(text)
    if not text or ",".join(names) != text:
        raise SpecError(f"expected a list of hosts such as n[001-003,7],login, found {text[:80]!r}")
    parts = []
    for name in names:
        pieces = _BRACKETS.split(name)  # what stands in brackets is every second one
        ranges = [[_range(part, text) for part in inner.split(",")] for inner in pieces[1::2]]
        longest = sum(max(digits for _, digits in each) for each in ranges)
        if sum(map(len, pieces[::2])) + longest > NAME_MAX:
            raise SpecError(f"expected names of at most {NAME_MAX} characters, found {name[:80]!r}")
        hosts_max -= math.prod(sum(len(numbers) for numbers, _ in each) for each in ranges)
        if hosts_max < 0:
            raise SpecError(f"expected at most {HOSTS_MAX} hosts, found more in {text[:80]!r}")
        parts.append((pieces, ranges))
    return [host for pieces, ranges in parts for host in _made(pieces, ranges)]


_Range = tuple[range, int]
"""Numbers, and the digits that each has at least."""


def _range(part: str, text: str) -> _Range:
    found = _RANGE.fullmatch(part)
    if found is None:
        raise SpecError(f"expected numbers such as 001-003 in brackets, found {part[:40]!r} in {text[:80]!r}")
    first, last = found[1], found[2] or found[1]
    if int(last) < int(first):
        raise SpecError(f"expected a range from a smaller to a larger number, found {part[:40]!r}")
    return range(int(first), int(last) + 1), len(first)


def _made(pieces: Sequence[str], ranges: Sequence[Sequence[_Range]]) -> Iterator[str]:
    numbers = [[f"{each:0{digits}}" for those, digits in part for each in those] for part in ranges]
    for chosen in itertools.product(*numbers):
        yield "".join(map("".join, zip(pieces[::2], (*chosen, ""), strict=True)))


def compress_hosts(hosts: Sequence[str]) -> str:
    parts: list[tuple[str, str, list[str]]] = []  # before the number, after it, the numbers
    for host in hosts:
        found = re.fullmatch(r"(.*?)([0-9]+)([^0-9]*)", host)
        before, number, after = found.groups() if found else (host, "", "")
        if parts and number and parts[-1][:2] == (before, after) and parts[-1][2]:
            parts[-1][2].append(number)
        else:
            parts.append((before, after, [number] if number else []))
    return ",".join(
        f"{before}{numbers[0] if len(numbers) == 1 else f'[{_ranges(numbers)}]' if numbers else ''}{after}"
        for before, after, numbers in parts
    )


def _ranges(numbers: Sequence[str]) -> str:
    runs: list[list[str]] = []
    for number in numbers:
        last = runs[-1][-1] if runs else None
        if last is not None and int(number) == int(last) + 1 and number == str(int(number)).zfill(len(last)):
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def expand_counts(text: str) -> list[int]:
    """Return the numbers of tasks by node: ``2(x3),1`` is 2, 2, 2, 1."""
    found = [_COUNT.fullmatch(part) for part in text.split(",")]
    counts = [(int(each[1]), int(each[2] or 1)) for each in found if each is not None]
    nodes, tasks = sum(times for _, times in counts), sum(count * times for count, times in counts)
    if len(counts) < len(found) or max(nodes, tasks) > HOSTS_MAX:
        raise SpecError(f"expected counts such as 2(x3),1, at most {HOSTS_MAX} in all, found {text[:80]!r}")
    return [count for count, times in counts for _ in range(times)]
