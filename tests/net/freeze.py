"""What users and their scripts rely on, as text: names, keys, files, messages, exit codes, numbers.

    python tests/net/freeze.py              write what is so now, and print what differs
    python tests/net/freeze.py --to FOLDER  write it there, and print nothing

The files are in `frozen/`. A difference is a change for users: it is decided, and stands in CHANGELOG.md.
"""

import difflib
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

HERE = Path(__file__).parent
FROZEN = HERE / "frozen"
ERRORS = "errors.txt"
"""What stands beside the pages if some of them cannot be made."""
KEPT = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "PYTHONPATH",
    "PYTHONHASHSEED",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPYCACHEPREFIX",
)
"""The variables that may differ from machine to machine; all others are taken away."""


def made() -> tuple[dict[str, str], str]:
    """Return every page by its place in `frozen/`, and the errors of parts that could not be made."""
    with tempfile.TemporaryDirectory(prefix="dtrain-net-") as scratch:
        folder = Path(scratch).resolve()
        for name in os.environ.keys() - set(KEPT):
            del os.environ[name]
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        from net import commands, names, runs, source, spec_keys, wrong_inputs
        from warm_commands import start_warm

        start_warm()
        found: dict[str, str] = {}
        errors = []
        for part in (names, source, commands, wrong_inputs, spec_keys, runs):
            try:
                found |= part.pages(folder)
            except Exception:
                errors.append(f"{part.__name__}: {traceback.format_exc()}")
        return found, "\n".join(errors)


def read(folder: Path) -> dict[str, str]:
    """Return the pages that lie in a folder."""
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.txt")}


def write(found: dict[str, str], folder: Path) -> None:
    """Let a folder have these pages and no other."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in found.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def difference(before: str, after: str, name: str) -> str:
    """Return what differs between two forms of a page; empty: nothing."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"frozen/{name}", f"now/{name}", "", "", 0, ""
    )
    return "\n".join(lines)


def main(words: list[str]) -> None:
    """Write the pages; see the module."""
    sys.path.insert(0, str(HERE.parent))
    found, errors = made()
    if words[:1] == ["--to"]:
        write(found | ({ERRORS: errors} if errors else {}), Path(words[1]))
    elif errors:
        sys.exit(f"nothing is written: some pages cannot be made\n{errors}")
    else:
        before = read(FROZEN)
        write(found, FROZEN)
        for name in sorted({*before, *found}):
            if differs := difference(before.get(name, ""), found.get(name, ""), name):
                print(differs)


if __name__ == "__main__":
    main(sys.argv[1:])
