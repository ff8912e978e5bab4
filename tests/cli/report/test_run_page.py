"""The page: complete in itself, small, and safe from what runs call themselves."""

import json
import re
from html.parser import HTMLParser

from cli.report.conftest import LEDGER, tell
from cli.report.told_runs import hour_of_twenty

from dtrain.runs.files import FailureRecord
from dtrain_cli.console.page import stack, strip
from dtrain_cli.console.run_page import run_page
from dtrain_cli.runs import history

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'"


class Elements(HTMLParser):
    """All elements and attributes of a page, and the texts of its tables' cells, row by row."""

    def __init__(self, text):
        super().__init__()
        self.names, self.attributes, self.rows, self._in = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        self._in = tag in ("td", "th")
        if self._in:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._in = self._in and tag not in ("td", "th")

    def handle_data(self, data):
        if self._in:
            self.rows[-1][-1] += data


def data_of(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1])


def test_the_page_fetches_nothing_and_may_not(tmp_path, story_of):
    tell(tmp_path / "a")
    text = run_page(story_of("a"))
    page = Elements(text)
    assert not {"link", "img", "iframe", "object"} & set(page.names)
    assert not [name for name, _ in page.attributes if name in ("src", "href", "action", "srcset")]
    policy = next(value for name, value in page.attributes if name == "content" and "default-src" in value)
    assert "default-src 'none'" in policy
    assert "http" not in policy
    assert not re.search(r"@import|url\(", text)


def test_names_and_messages_stay_texts(tmp_path, story_of):
    failure = FailureRecord(EVIL, EVIL, traceback=EVIL, log=EVIL, likewise=[EVIL], exit_code=1)
    tell(tmp_path / "a", EVIL, failure=failure, state="failed")
    tell(tmp_path / "b", EVIL)
    plain = Elements(run_page(story_of("b")))
    tell(tmp_path / "c", "digits")
    assert [name for name in plain.names if name in ("script", "img")] == ["script"] * 3
    for text in (run_page(story_of("a")), run_page(story_of("a", "c"))):
        page = Elements(text)
        assert [name for name in page.names if name in ("script", "img")] == ["script"] * 3
        assert not [name for name, _ in page.attributes if name.startswith("on")]
        data_of(text)  # it is whole
    labels = [
        each["label"] for chart in data_of(run_page(story_of("a", "c")))["charts"] for each in chart["series"]
    ]
    assert f"{EVIL}: steps" in labels


def test_tables_have_the_numbers_of_the_charts(tmp_path, story_of, monkeypatch):
    read = history.read_report
    monkeypatch.setattr(history, "read_report", lambda *given: {**read(*given), "goodput": LEDGER})
    tell(tmp_path / "a", failure=FailureRecord("ps:0", "died: SIGKILL", last_lines=["the end"]))
    text = run_page(story_of("a"))
    rows = Elements(text).rows
    assert ["evaluation", "0.4", "0.1333 at 15", "0.4 at 5", "0.1333 at 15"] in rows
    assert ["10.8", "10", "rolled back by 5 steps"] in rows
    assert ["worker:0", "", "", "25.0%", "20.0%", "5.0%", "50.0%", "ps:0 40.0%"] in rows
    assert "ps:0 failed: died: SIGKILL" in text
    assert "the end" in text
    assert "&quot;updates&quot;" in text


def test_bars_are_as_wide_as_shares_and_strips_as_high():
    assert re.findall(r"width:([\d.]+)%;background:var\(--(\w+)\)", stack({"good": 0.75, "wait": 0.25})) == [
        ("75.00", "good"),
        ("25.00", "wait"),
    ]
    shapes = re.findall(r'd="(.*?)"', strip([(0.0, 1.0), None, (0.25, 0.5)], ("input", "wait")))
    assert shapes == ["M2 0.75h1v0.25h-1z", "M0 0.00h1v1.00h-1zM2 0.25h1v0.50h-1z"]


def test_an_hour_of_twenty_tasks_is_less_than_500_kilobytes(tmp_path, story_of, monkeypatch):
    read = history.read_report
    tasks = [{**LEDGER["tasks"][1], "task": f"worker:{index}"} for index in range(15)]
    ledger = {**LEDGER, "tasks": tasks}
    monkeypatch.setattr(history, "read_report", lambda *given: {**read(*given), "goodput": ledger})
    hour_of_twenty(tmp_path / "hour")
    text = run_page(story_of("hour"))
    assert len(text.encode()) < 500_000
    assert len(data_of(text)["charts"]) == 6
