"""The patterns of `code.exclude`, which mean what they mean in `.gitignore`."""

from collections.abc import Sequence
from fnmatch import fnmatchcase


def excluded(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a file, or a folder above it, is left out.

    Args:
        path: of a file, from the folder that is sent, with slashes.
        patterns: a name matches in every folder, a path from the folder that is sent; a slash at the end
            matches folders alone; ``**`` stands for any number of folders.
    """
    return any(_matches(path.split("/"), pattern) for pattern in patterns)


def _matches(path: list[str], pattern: str) -> bool:
    words = pattern.strip("/").split("/")
    anchored = "/" in pattern.rstrip("/")
    last = len(path) - 1 if pattern.endswith("/") else len(path)  # of a file, the last part is no folder
    heads = (path[:depth] for depth in range(1, last + 1))
    return any(_fits(head if anchored else head[-1:], words) for head in heads)


def _fits(parts: list[str], words: list[str]) -> bool:
    if not words or not parts:
        return not parts and all(word == "**" for word in words)
    if words[0] == "**":
        return _fits(parts, words[1:]) or _fits(parts[1:], words)
    return fnmatchcase(parts[0], words[0]) and _fits(parts[1:], words[1:])
