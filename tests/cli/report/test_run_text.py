"""The report in a terminal: at most 80 columns, and ASCII where there is no UTF-8."""

import io

import pytest
from cli.report.conftest import LEDGER, tell
from rich.console import Console

from dtrain.runs.files import FailureRecord
from dtrain_cli.console.run_text import print_story
from dtrain_cli.runs import history

EVIL = "\x1b[2Jred\nline"


def printed(story, encoding="utf-8", width=200):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline="")
    print_story(story, Console(file=out, width=width, highlight=False))
    out.flush()
    return raw.getvalue().decode(encoding)


@pytest.fixture
def told(tmp_path, story_of, monkeypatch):
    read = history.read_report
    monkeypatch.setattr(history, "read_report", lambda *given: {**read(*given), "goodput": LEDGER})
    tell(tmp_path / "a", "sync", failure=FailureRecord("ps:0", EVIL))
    tell(tmp_path / "b", EVIL)
    return story_of


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_it_has_every_chart_and_table_in_80_columns(told, names, encoding):
    text = printed(told(*names), encoding)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for said in ("Loss", "Accuracy", "Throughput", "Staleness", "What happened", "rolled back by 5 steps"):
        assert said in text
    assert "epochs, last 0.06667 at step 15" in text
    assert "50.0%" in text


def test_a_curve_falls_from_the_upper_left_to_the_lower_right(told):
    lines = printed(told("a"), "ascii").splitlines()
    at = lines.index("steps, last 0.06667 at step 15")
    top, *_, bottom = (line[10:] for line in lines[at + 1 : at + 5])
    assert top.startswith("#")
    assert top.rstrip() == top[:3].rstrip("#") + "#" * (len(top.rstrip()))
    assert bottom.startswith("#")
    assert bottom.endswith(".")
    assert lines[at + 1].split()[0] == "1"
    assert lines[at + 4].split()[0] == "0.06667"
    assert lines[at + 5].split() == ["1.0", "s", "20.0", "s"]
