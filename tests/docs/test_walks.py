"""The quick start and the tutorials are walked as their readers walk them: files are saved under the names in their
first lines, commands of console blocks are typed, and what a page shows below a command is what it prints.

`...` on a page stands for anything. Blocks of `sh` need another machine or a second terminal, and are only parsed
(test_pages.py).
"""

import itertools
import re
import shlex

import pytest
from docs.pages import ROOT, Block, blocks, name
from launching import Launcher

DEATHS = pytest.mark.long("four runs, in three of which a task dies and is started again after a second")
WALKS = [
    pytest.param(page, marks=DEATHS if page.stem == "5_break_it" else ())
    for page in (ROOT / "docs" / "quick_start.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md")))
]
_NAMED = re.compile(r"# (\w+\.(?:py|yaml))\n")


def not_printed(shown: str, *streams: str) -> list[str]:
    """The lines that a page shows and that none of the streams has behind the lines shown before."""
    left = [iter([" ".join(line.split()) for line in stream.splitlines()]) for stream in streams]
    missing = []
    for line in shown.splitlines():
        pattern = re.compile(re.escape(" ".join(line.split())).replace(re.escape("..."), ".*"))
        copies = [itertools.tee(each) for each in left]
        left = [ahead for ahead, _ in copies]
        found = [any(map(pattern.fullmatch, kept)) for _, kept in copies]
        if not any(found) and line != "...":
            missing.append(line)
        for (ahead, _), here in zip(copies, found, strict=True):
            if here and line != "...":
                any(map(pattern.fullmatch, ahead))
    return missing


def walk(page_blocks: list[Block], launcher: Launcher) -> int:
    """Save the files of a page and type its commands; return how many commands there were."""
    (launcher.folder / "examples").symlink_to(ROOT / "examples")
    typed = 0
    for block in page_blocks:
        named = _NAMED.match(block.text)
        if block.language in ("python", "yaml") and named:
            (launcher.folder / named[1]).write_text(block.text)
        text = block.text.replace("\\\n", "") if block.language == "console" else ""
        for command in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, shown = command.partition("\n")
            words = shlex.split(line)
            assert words[0] in ("dtrain", "python"), f"{block}: {line}"
            own = launcher.run(*words[1:]) if words[0] == "python" else launcher.dtrain(*words[1:])
            assert own.end() == 0, f"{block}: {line}\n{own.err}"
            missing = not_printed(shown, own.err, own.out)
            assert not missing, f"{block}: {line}: not printed: {missing}\n{own.err}\n{own.out}"
            typed += 1
    return typed


@pytest.mark.parametrize("page", WALKS, ids=name)
def test_a_page_is_what_its_reader_sees(page, launcher):
    languages = [block for block in blocks("python", "yaml", "console") if block.page == page]
    if page.stem == "3_my_pytorch_model":
        pytest.importorskip("torch", reason="needs dtrain[torch]")
    assert walk(languages, launcher)


def test_a_page_that_shows_what_is_not_printed_is_found_out():
    printed = "first\na  b\nbetween\nlast\n"
    assert not_printed("a ...\n...\nlast\nsaid\n", printed, "said") == []
    assert not_printed("last\na ...\n", printed, "said") == ["a ..."]
    assert not_printed("a c\n", printed, "") == ["a c"]
