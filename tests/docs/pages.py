"""The pages of the documentation as the tests read them: their links, anchors, code blocks and commands."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted(
    [
        README,
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "SECURITY.md",
        ROOT / "AGENTS.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]\n]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_PROMPT = re.compile(r"^[\w-]*\$ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    language: str
    text: str
    line: int

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(*languages: str) -> list[Block]:
    """The fenced blocks of all pages in these languages."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            if match[1] in languages:
                found.append(Block(page, match[1], match[2], text.count("\n", 0, match.start()) + 1))
    return found


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def links(page: Path) -> list[str]:
    """Where a page's links lead, but for those to other sites."""
    return [target for target in _LINK.findall(prose(page)) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    plain = (re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", heading) for heading in _HEADING.findall(prose(page)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def inline_code(page: Path) -> list[str]:
    return _CODE.findall(prose(page))


def shell_commands(block: Block) -> Iterator[list[str]]:
    """Each command of a console block as words; commands that are joined by && are several.

    A line that ends in a backslash goes on in the next one.
    """
    for line in _PROMPT.findall(block.text.replace("\\\n", "")):
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), "&&"]:
            if word == "&&":
                yield words
                words = []
            else:
                words.append(word)
