"""What a run directory tells over time: every number that its tasks told, its marks, and where time went."""

import json

import pytest
from cli.report.conftest import LEDGER, tell
from cli.report.told_runs import HOUR_S, ToldRun, status
from hypothesis import given
from hypothesis import strategies as some

from dtrain.runs.journal import MetricsLog
from dtrain_cli.runs import history
from dtrain_cli.runs.history import Point, thinned
from dtrain_cli.runs.summary import figures_of, figures_table, numbers_table, time_tables

POINTS = some.lists(some.floats(-1e6, 1e6), min_size=1, max_size=400)


def points_of(story, chart, kind):
    (found,) = (each.points for each in story.charts[chart] if each.kind == kind)
    return found


@given(POINTS, some.integers(1, 20))
def test_a_thinned_series_keeps_its_ends_and_extremes_and_has_no_more_points_than_a_screen_shows(
    values, buckets
):
    points = [Point(float(place), place, value) for place, value in enumerate(values)]
    kept = thinned(points, buckets)
    assert len(kept) <= max(2 * buckets + 2, min(len(points), 2 * buckets))
    rounded = [float(f"{value:.5g}") for value in values]
    seen = [point.value for point in kept]
    assert (min(seen), max(seen)) == (min(rounded), max(rounded))
    assert (kept[0].step, kept[-1].step) == (0, len(points) - 1)
    assert [point.step for point in kept] == sorted({point.step for point in kept})
    assert all(rounded[point.step] == point.value for point in kept)


def test_series_have_what_tasks_told_with_second_and_step(tmp_path, story_of):
    tell(tmp_path / "a")
    story = story_of("a")
    steps = [*range(1, 11), *range(6, 16)]
    expected = [(float(second), step) for second, step in enumerate(steps, 1)]
    assert [point[:2] for point in points_of(story, "loss", "steps")] == expected
    assert [point.value for point in points_of(story, "loss", "steps")][:2] == [1.0, 0.5]
    assert points_of(story, "loss", "evaluation") == [(5.0, 5, 0.4), (20.0, 15, 0.13333)]
    assert points_of(story, "accuracy", "epochs") == [(5.0, 5, 0.25), (20.0, 15, 0.75)]
    assert {point.value for point in points_of(story, "throughput", "all tasks")} == {150.0}
    assert {point.value for point in points_of(story, "throughput of each task", "worker:0")} == {50.0}
    assert {point.value for point in points_of(story, "staleness", "all tasks")} == {1.0}


def test_staleness_is_that_between_two_lines_and_a_restart_makes_none(tmp_path, story_of):
    with ToldRun(tmp_path / "a").clock() as run:
        for at_s, counts in ((1, {0: 4}), (2, {0: 4, 3: 2}), (3, {5: 1}), (4, {5: 2})):
            said = status("worker:0", step=at_s, staleness_counts=counts)
            run.heard(float(at_s), at_s, said)
        run.end([said])
    assert [(point.step, point.value) for point in points_of(story_of("a"), "staleness", "all tasks")] == [
        (1, 0.0),
        (2, 3.0),
        (4, 5.0),
    ]


def test_marks_are_what_befell_the_run_and_not_its_orderly_end(tmp_path, story_of):
    tell(tmp_path / "a")
    assert [(mark.at_s, mark.step, mark.kind, mark.text) for mark in story_of("a").histories[0].marks] == [
        (10.25, 10, "fault", "chaos: kill ps:0"),
        (10.25, 10, "death", "ps:0 died: SIGKILL"),
        (10.5, 10, "restart", "ps:0 started again (attempt 1)"),
        (10.75, 10, "rollback", "rolled back by 5 steps"),
    ]


def test_damaged_lines_hide_no_others(tmp_path, story_of):
    files = tell(tmp_path / "a")
    whole = story_of("a")
    with files.metrics.open("ab") as log:
        log.write(b'{"time": 3, "global_step": 4}\n{"tasks": {"x": 3}, "global_step": 1}\n[1]\n\xff\n{"time"')
    with files.journal.open("ab") as log:
        log.write(b'{"event": ["exited"]}\n{"event": "exited", "time": "yesterday"}\n{{{{\n')
    with files.reports.open("ab") as log:
        log.write(b'{"loss": NaN, "step": 1}\n{"loss": "x", "step": "y"}\n{"loss": []}\n')
    assert story_of("a") == whole


def test_time_is_the_ledgers_and_what_tasks_have_told_lies_over_the_run(tmp_path, story_of, monkeypatch):
    read = history.read_report
    monkeypatch.setattr(history, "read_report", lambda *given: {**read(*given), "goodput": LEDGER})
    tell(tmp_path / "a")
    story = story_of("a")
    (table,) = time_tables(story)
    assert table.heads == ("task", "good", "input", "send", "wait", "waits most for")
    assert table.rows == [
        ("all tasks", "50.0%", "10.0%", "15.0%", "25.0%", "ps:0 20.0%, worker:0 5.0%"),
        ("chief:0", "75.0%", "0.0%", "25.0%", "0.0%", ""),
        ("worker:0", "25.0%", "20.0%", "5.0%", "50.0%", "ps:0 40.0%"),
    ]
    bins = story.histories[0].times["worker:0"].bins
    assert {each for each in bins if each is not None} == {(0.125, 0.625, 0.25)}
    assert figures_table(figures_of(story)).rows[0][-1] == "50.0%"


def test_figures_are_the_last_of_the_best_source(tmp_path, story_of):
    tell(tmp_path / "a")
    (figures,) = figures_of(story_of("a"))
    assert figures["final"] == {"loss": 0.13333, "accuracy": 0.375}
    assert (figures["examples_per_s"], figures["mean_staleness"], figures["steps"]) == (150.0, 1.0, 15)
    assert figures["steps_per_s"] == pytest.approx(14 / 19)


def test_runs_are_named_by_their_names_or_by_their_ids_where_these_are_alike(tmp_path, story_of):
    tell(tmp_path / "a", "sync")
    tell(tmp_path / "b", "async", factor=2.0)
    tell(tmp_path / "c", "sync")
    assert story_of("a", "b").labels == ["sync", "async"]
    story = story_of("a", "c")
    assert story.labels == ["a", "c"]
    table = numbers_table(story.charts["loss"], story.labels)
    assert ("a: steps", "1", "0.06667 at 15", "1 at 1", "0.06667 at 15") in table.rows
    assert "throughput of each task" not in story.charts


def test_a_run_without_numbers_has_no_charts(tmp_path, story_of):
    run = ToldRun(tmp_path / "a")
    run.end([status("worker:0")])
    story = story_of("a")
    assert (story.charts, story.histories[0].marks) == ({}, [])


def test_the_numbers_of_a_week_are_bounded_and_those_of_seconds_are_dense(tmp_path):
    now = [0.0]
    log = MetricsLog(tmp_path / "metrics.jsonl", lambda: now[0])
    counted = {}
    for until_s in (10.0, HOUR_S, 7 * 24 * HOUR_S):
        while now[0] < until_s:
            now[0] += 0.5 if now[0] < HOUR_S else 5.0
            log.update(ToldRun.reply(1))
        counted[until_s] = len((tmp_path / "metrics.jsonl").read_text().splitlines())
    assert counted[10.0] == 20
    assert counted[HOUR_S] < 1200
    assert counted[7 * 24 * HOUR_S] < 2500


def test_more_tasks_have_fewer_lines(tmp_path):
    now = [0.0]
    log = MetricsLog(tmp_path / "metrics.jsonl", lambda: now[0])
    statuses = [status(f"worker:{index}", step=1, loss=0.5, examples_per_s=1.0) for index in range(400)]
    while now[0] < 600.0:
        now[0] += 0.5
        log.update(ToldRun.reply(1, *statuses))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert 20 < len(lines) < 600 / 5


def test_the_first_line_has_versions(tmp_path, story_of):
    files = tell(tmp_path / "a")
    first, second, *_ = map(json.loads, files.metrics.read_text().splitlines())
    assert {"python", "dtrain"} <= first["versions"].keys()
    assert "versions" not in second
    assert story_of("a").histories[0].versions == first["versions"]
