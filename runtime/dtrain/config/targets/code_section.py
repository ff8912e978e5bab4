"""The `code` section: the folder that is sent to hosts which do not have it."""

from collections.abc import Iterator
from typing import TypedDict

from dtrain.config.problems import Problem

CodeSection = TypedDict("CodeSection", {"from": str, "exclude": tuple[str, ...]}, total=False)
"""`from`: the folder that is sent, from the working directory, which is the default. `exclude`: names and
patterns of what is left out, as `.gitignore` has them, with a slash at the end for folders."""


def code_problems(section: CodeSection) -> Iterator[Problem]:
    """Yield the mistakes that types do not exclude."""
    folder = section.get("from", ".")
    if not folder or "\0" in folder:
        yield ("from",), f"expected a folder, found {folder!r}"
    for index, pattern in enumerate(section.get("exclude", ())):
        if not pattern.strip("/") or "\0" in pattern or "\n" in pattern:
            yield ("exclude", index), f"expected a name or pattern such as data/, found {pattern!r}"
        elif ".." in pattern.split("/"):
            yield ("exclude", index), f"expected a pattern below the folder, found {pattern!r}"
