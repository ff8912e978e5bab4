"""The files of a program in a ConfigMap, whose keys know no folders."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dtrain.errors import SpecError

LIMIT_BYTES = 900_000
"""Of a ConfigMap with all its files: Kubernetes takes 1 MiB, of which the rest of the object needs some."""
_SHOWN = 3


@dataclass(frozen=True)
class Code:
    """The files that the pods get.

    Attributes:
        folder: where they are in the pods; empty: the run has none.
        files: contents by path below the folder; empty where the image holds the code.
    """

    folder: str
    files: Mapping[str, bytes] = field(default_factory=dict)

    def check_size(self) -> None:
        """Raise a `SpecError` unless a ConfigMap can hold the files."""
        sizes = {path: _stored_bytes(content) for path, content in self.files.items()}
        total = sum(sizes.values())
        if total <= LIMIT_BYTES:
            return
        biggest = sorted(sizes, key=lambda path: sizes[path], reverse=True)[:_SHOWN]
        shown = ", ".join(f"{path} ({sizes[path]} bytes)" for path in biggest)
        raise SpecError(
            f"the code has {total} bytes, and a ConfigMap holds {LIMIT_BYTES}; the biggest: {shown}. Leave "
            "files away, or put the code into the image and say its folder there: kubernetes.code_in: /app"
        )

    @property
    def keys(self) -> dict[str, str]:
        """Return the key of each path; two paths never have one."""
        keys: dict[str, str] = {}
        for path in sorted(self.files):
            plain = re.sub(r"[^-._A-Za-z0-9]", "_", path.replace("/", "__"))[:200]
            key, number = f"code.{plain}", 1
            while key in keys.values():
                key, number = f"code.{number}.{plain}", number + 1
            keys[path] = key
        return keys


def text_of(content: bytes) -> str | None:
    """Return a file as text; None where YAML cannot hold it as such."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return text if all(each.isprintable() or each in "\n\t" for each in text) else None


def _stored_bytes(content: bytes) -> int:
    return len(content) if text_of(content) is not None else 4 * -(-len(content) // 3)
