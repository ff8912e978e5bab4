"""The page of troubleshooting explains messages that dtrain gives."""

import re

from docs.pages import ROOT
from row_by_row import every_row

PAGE = ROOT / "docs" / "troubleshooting.md"
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
SOURCE = "\n".join(
    path.read_text() for folder in ("runtime", "cli") for path in (ROOT / folder).rglob("*.py")
)
JOINED = re.sub(r"\"\s*\n\s*f?\"", "", SOURCE)


def literal_parts(message: str) -> list[str]:
    """The parts of a message between those that differ."""
    return [part for part in (part.strip() for part in message.split("...")) if len(part) > 3]


@every_row("message", MESSAGES, ids=str)
def test_every_message_is_one_that_the_source_has(message):
    parts = literal_parts(message)
    assert parts
    pattern = r"[^\n]{0,120}?".join(map(re.escape, parts))
    assert re.search(pattern, JOINED), message


def test_the_page_explains_messages_of_every_time_of_a_run():
    assert len(MESSAGES) > 20
