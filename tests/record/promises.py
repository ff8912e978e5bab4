"""The list of promises (`tests/promises.md`): which tests would fail if one did not hold.

python tests/record/promises.py      # writes the files anew in which the named tests are by now
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).parents[1]
LIST = TESTS / "promises.md"
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
_DEFINED = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
NO_TEST = "none"


def defined() -> dict[str, list[str]]:
    """Return the files, from the folder of the tests, in which each test is."""
    files: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in dict.fromkeys(_DEFINED.findall(path.read_text())):
            files[name].append(path.relative_to(TESTS).as_posix())
    return files


def promises(text: str) -> list[str]:
    """Return the lines of a list that promise something."""
    return [line for line in text.splitlines() if line.startswith("- ")]


def wrong(text: str, files: Mapping[str, list[str]]) -> list[str]:
    """Return what is wrong with a list: a line without tests, and named tests that are nowhere."""
    found = []
    for line in promises(text):
        promise, _, tests = line.removeprefix("- ").rpartition(": ")
        names = [name for _, name in NAMED.findall(tests)]
        if not names and tests != NO_TEST:
            found.append(f"{promise}: expected tests, or `{NO_TEST}`")
        gone = [name for name in names if name not in files]
        if gone:
            left = "no test of it is left" if len(gone) == len(names) else "others of it are left"
            found.append(f"{promise}: there is no {', '.join(gone)}; {left}")
    return found


def renewed(text: str, files: Mapping[str, list[str]]) -> str:
    """Return a list with the files in which its tests are by now; where several have one, the first by name."""

    def place(match: re.Match[str]) -> str:
        file, name = match.groups()
        there = files.get(name, [])
        return match[0] if file in there or not there else f"`{there[0]}::{name}`"

    return NAMED.sub(place, text)


if __name__ == "__main__":
    LIST.write_text(renewed(LIST.read_text(), defined()))
