"""The commands that compare: figures with a baseline, and one checkout with another."""

import pytest
from benchmarks import compare, many_replicas, pairs
from benchmarks.figures import Figure


def lines(path, *figures):
    path.write_text("".join(f"{figure.to_json()}\n" for figure in figures))
    return path


@pytest.mark.parametrize(
    ("before", "after", "unit", "promised", "times"),
    [
        (100, 110, "steps/s", None, 1.1),
        (100, 80, "ms", None, 1.25),
        (10, 20, "s", "<= 30", 0.5),
        (2, 1, "x", ">= 1", 0.5),
        (2, 1, "x", "<= 3", 2.0),
        (0, 0, "processes", None, 1.0),
    ],
)
def test_better_is_above_one_whatever_the_unit(tmp_path, before, after, unit, promised, times):
    old, new = (
        compare.read_figures(lines(tmp_path / name, Figure("f", [value], unit, promised)))
        for name, value in (("old", before), ("new", after))
    )
    assert compare.improvement(old["f"], new["f"]) == pytest.approx(times)


@pytest.mark.parametrize(("ratio", "code"), [(2.0, 0), (1.9, 0), (1.8, 1)])
def test_a_ratio_that_fell_by_more_than_noise_is_told_by_the_exit_code(tmp_path, capsys, ratio, code):
    old = lines(tmp_path / "old", Figure("line / TensorFlow", [2.0], "x", ">= 1"))
    new = lines(tmp_path / "new", Figure("line / TensorFlow", [ratio], "x", ">= 1"))
    assert compare.main([str(new), str(old)]) == code
    assert ("worse" in capsys.readouterr().out) == bool(code)


def test_seconds_of_another_machine_are_shown_and_do_not_count(tmp_path, capsys):
    old = lines(tmp_path / "old", Figure("start", [1.0], "s"), Figure("gone", [1.0], "s"))
    assert compare.main([str(lines(tmp_path / "new", Figure("start", [3.0], "s"))), str(old)]) == 0
    out = capsys.readouterr().out
    assert "0.33" in out
    assert "gone: was not measured now" in out


def test_another_result_is_told(tmp_path, capsys):
    old = lines(tmp_path / "old", Figure("f", [1.0], "s", result=[1, 2]))
    assert compare.main([str(lines(tmp_path / "new", Figure("f", [0.5], "s", result=[1, 3]))), str(old)]) == 1
    assert "another result" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["no json", "[1]", '{"figure": 1}'])
def test_a_line_that_is_no_figure_is_named(tmp_path, capsys, line):
    (tmp_path / "new").write_text(f"{line}\n")
    with pytest.raises(SystemExit) as ended:
        compare.main([str(tmp_path / "new"), str(tmp_path / "new")])
    assert ended.value.code == 2
    assert "new:1: this line is no figure" in capsys.readouterr().err


@pytest.mark.parametrize("command", [pairs.main, many_replicas.main])
def test_only_checkouts_are_compared(tmp_path, capsys, command):
    with pytest.raises(SystemExit) as ended:
        command([str(tmp_path), str(tmp_path)])
    assert ended.value.code == 2
    assert "is no checkout of dtrain" in capsys.readouterr().err


def test_a_checkout_beside_itself_shows_how_much_two_runs_of_it_differ(tmp_path, monkeypatch):
    runs = iter(
        [(100.0, 2.0), (110.0, 3.0), (130.0, 2.0), (100.0, 2.0)]
    )  # the second pair begins with the other
    monkeypatch.setattr(pairs, "measured", lambda tree, case, folder: next(runs))
    said, median = pairs.compare("line sync", tmp_path, tmp_path, 2)
    assert median == pytest.approx((1.1 + 1.3) / 2)
    assert "1.200 x (1.100 to 1.300), CPU 1.250 x, n=2" in said


@pytest.mark.night("it only measures")
@pytest.mark.parametrize("measure", [many_replicas.on_one_host, many_replicas.over_hosts])
def test_every_replica_says_what_a_step_costs_it(tmp_path, measure):
    assert measure(compare.BASELINES.parents[1], 4, 20, tmp_path) > 0


def test_stored_baselines_are_figures_of_the_benchmarks():
    baselines = sorted(compare.BASELINES.glob("*.jsonl"))
    benchmarks = {path.name for path in compare.BASELINES.parent.glob("test_*.py")} - {"test_compare.py"}
    assert compare.newest_baseline() == baselines[-1]
    for baseline in baselines:
        figures = compare.read_figures(baseline).values()
        assert {figure["benchmark"] for figure in figures} <= benchmarks
        assert all(figure["n"] == len(figure["runs"]) and figure["measured"] for figure in figures)


def test_a_file_of_figures_is_no_worse_than_itself(capsys):
    baseline = str(compare.newest_baseline())
    assert compare.main([baseline]) == 0
    assert "1.00" in capsys.readouterr().out
