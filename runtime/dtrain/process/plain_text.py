"""Text for people: that of others without what moves a cursor or hides a word, and amounts of bytes."""

import re
from collections.abc import Sequence
from typing import Any

CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""As in a character class: C0 but tab and newline, DEL, C1, separators of lines, marks of direction, and lone
surrogates.
"""
_CONTROL = re.compile(f"[{CONTROLS}]")


def plain(text: str) -> str:
    r"""Return a text with every control character as an escape such as ``\x1b`` or ``\u202e``."""
    return _CONTROL.sub(_escape, text)


def plain_line(text: str) -> str:
    """Return a text as `plain` does, in one line: newlines and tabs are escapes as well."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


def plain_data(data: Any) -> Any:
    """Return mappings, lists and texts within each other with every text in them plain."""
    match data:
        case str():
            return plain(str(data)) if _CONTROL.search(data) else data
        case dict():
            return {plain_data(key): plain_data(value) for key, value in data.items()}
        case list():
            return [plain_data(value) for value in data]
    return data


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"  # JSON has the latter and holds no C0


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first `most` names for a message, at most 80 characters of each; `none` without names."""
    return ", ".join(name[:80] for name in names[:most]) + (", ..." if len(names) > most else "") or "none"


def bytes_text(count: float) -> str:
    """Return ``512 B``, ``1.5 kB`` or ``120 MB``, in powers of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
