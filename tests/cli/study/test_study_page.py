"""The page of a study: complete in itself, with every trial, and importance that tells what matters from what does not."""

import json
import random
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from dtrain.studies.study_spec import Better, Scale, StudySpec, ValueRange
from dtrain_cli.study.study_page import study_page, write_hparams

PARAMETERS = {
    "rate": ValueRange(1e-3, 10, scale=Scale.LOG),
    "idle": ValueRange(0, 1),
    "kind": ("<b>", "b"),
}


class Cells(HTMLParser):
    """The texts of table cells, row by row, and all attributes that could fetch something."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.fetched, self._in = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        self._in = tag in ("td", "th")
        if self._in:
            self.rows[-1].append("")
        self.fetched += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        if self._in and self.rows:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag):
        self._in = False


def report(count, value_of, direction=Better.MAXIMIZE, **changes):
    chance = random.Random(5)
    trials = []
    for number in range(count):
        values = {
            "rate": 10 ** chance.uniform(-3, 1),
            "idle": chance.random(),
            "kind": chance.choice(["<b>", "b"]),
        }
        row = {
            "trial": number,
            "state": "complete",
            "values": values,
            "step": 7,
            "value": value_of(values),
            "why": None,
        }
        trials.append(row | changes)
    done = [row for row in trials if row["state"] == "complete"]
    ranked = sorted(done, key=lambda row: row["value"], reverse=direction is Better.MAXIMIZE)
    found = {"study": "s", "state": "ended", "trials": trials, "ranking": [row["trial"] for row in ranked]}
    return study_page(found, StudySpec("s", {"loss": direction}, PARAMETERS)), ranked


@pytest.mark.parametrize("direction", list(Better))
def test_every_trial_is_there_the_best_first_and_nothing_is_fetched(direction):
    text, ranked = report(40, lambda values: values["idle"], direction)
    cells = Cells(text)
    assert cells.fetched == []
    assert "<b>" not in text.replace("&lt;b&gt;", "")
    trials = next(index for index, row in enumerate(cells.rows) if row[:2] == ["trial", "state"])
    assert [row[0] for row in cells.rows[trials + 1 :]] == [str(row["trial"]) for row in ranked]
    (parallel,) = (ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text))
    each, best = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])["charts"][0]["series"]
    by_trial = sorted(ranked, key=lambda row: row["trial"])
    assert each["y"] == [row["value"] for row in by_trial]
    assert best["y"] == sorted(best["y"], reverse=direction is Better.MINIMIZE)
    assert best["y"][-1] == ranked[0]["value"]
    assert len(parallel.findall("polyline")) == 40 + len(PARAMETERS) + 1


def test_importance_is_that_of_the_parameter_that_matters():
    text, _ = report(200, lambda values: (values["rate"] < 0.1) + (0.001 if values["kind"] == "b" else 0))
    shares = {row[0]: float(row[1]) for row in Cells(text).rows if row[0] in PARAMETERS}
    assert shares["rate"] > 0.6
    assert shares["idle"] < 0.1
    assert shares["kind"] < 0.1


def test_a_study_without_a_complete_trial_has_its_table_and_one_has_no_variance():
    text, _ = report(2, lambda _: None, state="failed", why="x <y>")
    assert "<svg" not in text
    assert "x &lt;y&gt;" in text
    for count in (1, 2, 5):
        assert "<svg" in report(count, lambda _: 0.5)[0]


def test_tensorboard_reads_the_values_and_the_metric_of_each_trial(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from tensorboard.plugins.hparams import metadata

    rows = [
        {"trial": 0, "values": {"rate": 0.5, "kind": "<b>", "deep": True}, "step": 7, "value": 0.25},
        {"trial": 12, "values": {"rate": 2.0, "kind": "b", "deep": False}, "step": None, "value": None},
    ]
    for _ in range(2):
        write_hparams({"metric": {"loss": "minimize"}, "trials": rows}, tmp_path)
    for folder, row in zip(sorted(tmp_path.iterdir()), rows, strict=True):
        assert folder.name == f"{row['trial']:04d}"
        found = event_accumulator.EventAccumulator(str(folder)).Reload()
        content = found.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
        told = metadata.parse_session_start_info_plugin_data(content).hparams
        kinds = {"rate": "number_value", "kind": "string_value", "deep": "bool_value"}
        assert {name: getattr(told[name], kind) for name, kind in kinds.items()} == row["values"]
        scalars = found.Scalars("loss") if row["value"] is not None else []
        assert [(each.step, each.value) for each in scalars] == ([(7, 0.25)] if scalars else [])
        assert bool(scalars) is (row["value"] is not None)
