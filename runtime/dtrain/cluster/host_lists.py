"""Slurm's compressed lists of hosts, ``n[001-003,7],login``, and of counts, ``2(x3),1``."""

import re
from collections.abc import Iterator, Sequence

from dtrain.errors import SpecError

HOSTS_MAX = 100_000
_NAMES = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_COUNT = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")


def expand_hosts(text: str) -> list[str]:
    """Return the names of a compressed list, in its order; numbers keep their leading zeros.

    Raises:
        SpecError: it is no such list, or has more than `HOSTS_MAX` hosts.
    """
    if not text or ",".join(_NAMES.findall(text)) != text:
        raise SpecError(f"expected a list of hosts such as n[001-003,7],login, found {text[:80]!r}")
    hosts: list[str] = []
    for name in _NAMES.findall(text):
        hosts += _expand(name, text)
        if len(hosts) > HOSTS_MAX:
            raise SpecError(f"expected at most {HOSTS_MAX} hosts, found more in {text[:80]!r}")
    return hosts


def _expand(name: str, text: str) -> list[str]:
    found = _BRACKETS.search(name)
    if found is None:
        return [name]
    before, after = name[: found.start()], name[found.end() :]
    numbers = [number for part in found[1].split(",") for number in _numbers(part, text)]
    endings = _expand(after, text)
    if len(numbers) * len(endings) > HOSTS_MAX:
        raise SpecError(f"expected at most {HOSTS_MAX} hosts, found more in {text[:80]!r}")
    return [f"{before}{number}{ending}" for number in numbers for ending in endings]


def _numbers(part: str, text: str) -> Iterator[str]:
    found = _RANGE.fullmatch(part)
    if found is None:
        raise SpecError(f"expected numbers such as 001-003 in brackets, found {part[:40]!r} in {text[:80]!r}")
    first, last = found[1], found[2] or found[1]
    if not 0 <= int(last) - int(first) < HOSTS_MAX:
        raise SpecError(f"expected a range from a smaller to a larger number, found {part[:40]!r}")
    return (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def compress_hosts(hosts: Sequence[str]) -> str:
    """Return the hosts in the compressed form, in their order."""
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
    """Return the numbers of tasks by node: ``2(x3),1`` is 2, 2, 2, 1.

    Raises:
        SpecError: it is no such list.
    """
    counts: list[int] = []
    for part in text.split(","):
        found = _COUNT.fullmatch(part)
        if found is None or int(found[2] or 1) > HOSTS_MAX:
            raise SpecError(f"expected counts such as 2(x3),1, found {text[:80]!r}")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts
