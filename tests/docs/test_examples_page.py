"""The page of examples has a line for every program, with what that program needs."""

from docs.pages import ROOT, blocks, shell_commands

PAGE = ROOT / "docs" / "guide" / "examples.md"
EXAMPLES = ROOT / "examples"
NO_PROGRAMS = {"images.py"}


def launched() -> dict[str, list[str]]:
    """The words of each program's line."""
    lines = [words for block in blocks("console") if block.page == PAGE for words in shell_commands(block)]
    return {next(word for word in words if word.endswith(".py")): words for words in lines}


def test_every_program_has_a_line_and_a_row():
    programs = {f"examples/{path.name}" for path in EXAMPLES.glob("*.py") if path.name not in NO_PROGRAMS}
    assert set(launched()) == programs
    assert all(f"| `{program}` |" in PAGE.read_text() for program in programs)


def test_each_line_gives_what_its_program_needs():
    for program, words in launched().items():
        text = (ROOT / program).read_text()
        assert ("--quick" in words) == ("images.add_arguments" in text), program
        assert "--strategy" not in words, "launch reads it from the program"
        assert all((ROOT / word).exists() for word in words if "/" in word)
