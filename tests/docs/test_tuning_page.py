"""The page about tuning: its study runs with its program, and its program of Keras Tuner's shape searches."""

import json

from docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "guide" / "tuning.md"


def texts(language):
    return [block.text for block in blocks(language) if block.page == PAGE]


def test_the_study_of_the_page_runs_with_its_program_and_has_its_page(launcher):
    (study,), (program, _) = texts("yaml"), texts("python")
    (launcher.folder / "study.yaml").write_text(study.replace("max_trial_count: 20", "max_trial_count: 3"))
    (launcher.folder / "train.py").write_text(program)
    tuned = launcher.dtrain("tune", "study.yaml", "train.py")
    assert tuned.end() == 0, tuned.err
    status = launcher.dtrain("tune", "status", "corners", "--json")
    assert status.end() == 0, status.err
    rows = json.loads(status.out)["trials"]
    assert len(rows) == 3
    assert all(row["step"] % 6 == 0 and 0 < row["value"] <= 1 for row in rows)
    written = launcher.dtrain("tune", "report", "corners", "--out", "corners.html")
    assert written.end() == 0, written.err
    assert "units" in (launcher.folder / "corners.html").read_text(encoding="utf-8")


def test_the_search_in_one_program_tells_its_best_model_and_tune_shows_its_study(launcher):
    (launcher.folder / "search.py").write_text(texts("python")[1])
    search = launcher.run("search.py")
    assert search.end() == 0, search.err
    shown = launcher.dtrain("tune", "best", "corners", "--json")
    assert shown.end() == 0, shown.err
    best = json.loads(shown.out)
    assert str(best["values"]) in search.out
    assert f"{best['value']:.6g}" in search.out
    refused = launcher.dtrain("tune", "--resume", "corners")
    assert refused.end() == 2
    assert "which goes on with it" in refused.err
