import re

import pytest
from row_by_row import every_row

from dtrain.cluster import TaskId
from dtrain.messages.membership import TaskStatus
from dtrain_cli.console.live_table import (
    LiveTable,
    most_telling,
    pace_of,
    sparkline,
    time_left,
)
from dtrain_cli.runs.advice import Row, slow_replicas


def rows(count: int) -> list[Row]:
    status = TaskStatus(
        "", 1, "here", step=150, max_steps=400, loss=0.25, examples_per_s=12345.6, staleness_mean=1.25
    )
    return [Row(TaskId.parse(f"worker:{index}"), "running", 0, status) for index in range(count)]


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def test_every_task_has_a_line_and_the_progress_is_below():
    lines = plain(LiveTable("my-run").render(rows(3), width=80, height=24, colour=True))
    assert lines[2].split() == ["worker:0", "running", "150", "0.2500", "12,346", "1.25"]
    assert lines[-1].startswith("my-run")
    assert "step 150/400" in lines[-1]
    assert all(len(line) < 80 for line in lines)


def test_the_time_that_is_left_follows_from_the_steps_so_far(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr("dtrain_cli.console.live_table.time.monotonic", lambda: now_s[0])
    table, some = LiveTable("my-run"), rows(2)
    assert "left" not in table.render(some, width=80, height=24, colour=False)
    now_s[0] = 110.0
    for row in some:
        row.status.step = 200
    last = plain(table.render(some, width=80, height=24, colour=False))[-1]
    assert last.endswith("0:40 left")
    assert len(last) < 80
    ended = [Row(row.task, "stopped", 0, row.status) for row in some]
    assert "left" not in table.render(ended, width=80, height=24, colour=False)


def test_the_time_that_is_left_is_counted_anew_after_a_rollback():
    """A server dies at step 2456 of 2519 after 20 minutes; 63 steps take 1.2 s since then."""
    pace, told = None, []
    for at_s, step in [(0.0, 0), (1200.0, 2456), (1230.0, 0), (1231.2, 63)]:
        pace = pace_of(pace, step, at_s)
        told.append(time_left(pace, 2519, at_s))
    assert told == ["", "0:30 left", "", "0:46 left"]


@every_row("width", [80, 100, 120])
@every_row("late", [None, 520])
def test_two_remarks_stand_whole_beside_all_numbers_at_the_usual_widths(width, late):
    """In sync there is no staleness, and gradients may come too late; in async it is the other way round."""

    def row(name, rate):
        said = TaskStatus(name, 1, "here", step=12345, loss=0.25, examples_per_s=rate, input_share=0.34)
        if late is None:
            said.staleness_mean = 3.04
        elif name == "worker:1":
            said.stale_gradients = late
        return Row(TaskId.parse(name), "running", 0, said)

    evaluator = Row(
        TaskId.parse("evaluator:0"),
        "running",
        0,
        TaskStatus("", 1, "here", waiting_for="the next checkpoint"),
    )
    some = [row("chief:0", 3100.0), row("worker:0", 3000.0), row("worker:1", 775.0), evaluator]
    heading, _, first, _, slow, idle, *_ = plain(LiveTable("").render(some, width, height=24, colour=False))
    column = "staleness" if late is None else "too late"
    assert re.split("  +", heading.rstrip()) == ["task", "state", "step", "loss", "ex/s", column]
    assert re.split("  +", slow)[-2:] == ["3.04" if late is None else "520", "3.9 x slower, input 34%"]
    assert first.rstrip().endswith("  input 34%")
    assert idle.rstrip().endswith("  idle")
    assert max(map(len, (heading, first, slow, idle))) < width


def test_a_replica_near_the_bound_is_called_slow_or_not_and_no_remark_comes_and_goes():
    table = LiveTable("")

    def called_slow(factor):
        rates = {"worker:0": 100.0, "worker:1": 100.0, "worker:2": 100.0 / factor}
        some = [
            Row(TaskId.parse(name), "running", 0, TaskStatus(name, 1, "here", examples_per_s=rate))
            for name, rate in rates.items()
        ]
        return "x slower" in table.render(some, width=80, height=24, colour=False)

    factors = [1.9, 2.1, 1.9, 2.1, 1.7, 1.2, 1.9]
    assert [called_slow(factor) for factor in factors] == [False, True, True, True, True, False, False]


def test_a_remark_is_cut_before_a_number_is_dropped_and_holds_all_that_there_is_to_say():
    def row(index, rate, **said):
        status = TaskStatus(
            "", 1, "here", step=150, loss=0.25, examples_per_s=rate, staleness_mean=1.0, **said
        )
        return Row(TaskId.parse(f"worker:{index}"), "running", 0, status)

    path = "worker:1 (at ps:0), " + 100 * "x"
    some = [row(0, 100.0, waiting_for=path), row(1, 10.0, input_share=0.15), row(2, 100.0)]
    for width in (64, 80, 100, 120):
        heading, _, waits, slow, *_ = plain(LiveTable("").render(some, width=width, height=24, colour=False))
        assert heading.split() == ["task", "state", "step", "loss", "ex/s", "staleness"]
        assert re.search(r"1\.00  waits for .*…$", waits)
        assert len(waits) == width - 1
        assert re.search(r" 10  +1\.00  10\.0 x slow", slow)
    assert slow.rstrip().endswith("10.0 x slower, input 15%")


def test_a_task_that_waits_for_others_is_not_called_slow():
    def row(index, share, **said):
        status = TaskStatus("", 1, "here", examples_per_s=64.0, waiting_share=share, **said)
        return Row(TaskId.parse(f"worker:{index}"), "running", 0, status)

    some = [row(0, 0.95, waiting_for="worker:2", input_share=0.2), row(1, 0.98), row(2, 0.0)]
    text = LiveTable("").render(some, width=100, height=24, colour=False)
    assert "waits for worker:2, input 20%" in text
    assert text.count("x slower") == 1


def test_gradients_that_came_too_late_have_a_column_where_there_are_any():
    synchronous = [TaskStatus("", 1, "here", step=9, stale_gradients=late) for late in (0, 62)]
    some = [
        Row(TaskId.parse(f"worker:{index}"), "running", 0, said) for index, said in enumerate(synchronous)
    ]
    lines = plain(LiveTable("my-run").render(some, width=80, height=24, colour=False))
    assert re.split("  +", lines[0]) == ["task", "state", "step", "too late"]
    assert [line.split()[3:] for line in lines[2:4]] == [[], ["62"]]
    synchronous[1].stale_gradients = 0
    assert "late" not in LiveTable("my-run").render(some, width=80, height=24, colour=False)


def test_an_idle_evaluator_waits_for_nobody():
    idle = TaskStatus("", 1, "here", step=0, waiting_for="the next checkpoint")
    waiting = TaskStatus("", 1, "here", step=7, waiting_for="worker:3")
    some = [*rows(12), Row(TaskId.parse("evaluator:0"), "running", 0, idle)]
    assert "evaluator:0  running     0                             idle" in plain(
        LiveTable("my-run").render(some, width=80, height=24, colour=False)
    )
    assert [str(row.task) for row in most_telling(some, 2)] == ["worker:0"]
    some[5] = Row(some[5].task, "running", 0, waiting)
    assert [str(row.task) for row in most_telling(some, 2)] == ["worker:5"]


def test_who_is_slow_is_seen_although_all_wait_for_the_slowest():
    def row(name, examples_per_s, waiting_share):
        status = TaskStatus(name, 1, "here", examples_per_s=examples_per_s, waiting_share=waiting_share)
        return Row(TaskId.parse(name), "running", 0, status)

    synchronous = [row("chief:0", 100.0, 0.8), row("worker:0", 100.0, 0.81), row("worker:1", 100.0, 0.0)]
    assert slow_replicas(synchronous) == {TaskId.parse("worker:1"): pytest.approx(1 / 0.195)}
    assert slow_replicas([row("chief:0", 100.0, 0.1), row("worker:0", 22.5, 0.1)]) == {
        TaskId.parse("worker:0"): pytest.approx(100 / 22.5)
    }
    assert slow_replicas([row("worker:0", 100.0, 0.0), row("ps:0", 1.0, 0.0)]) == slow_replicas(rows(0)) == {}
    assert "5.1 x slower" in LiveTable("my-run").render(synchronous, width=80, height=24, colour=False)


def test_a_task_that_is_bound_by_its_input_or_stands_still_for_it_is_named():
    reads = {"input_share": 0.372, "monotonic_s": 50.0}
    tasks = [
        Row(TaskId.parse("worker:0"), "running", 0, TaskStatus("", 1, "here", **reads)),
        Row(
            TaskId.parse("worker:1"),
            "running",
            0,
            TaskStatus("", 1, "here", reading_monotonic_s=46.8, **reads),
        ),
        Row(TaskId.parse("worker:2"), "running", 0, TaskStatus("", 1, "here", input_share=0.09)),
    ]
    text = LiveTable("my-run").render(tasks, width=80, height=24, colour=False)
    assert "input 37%" in text
    assert "reads its next batch for 3 s" in text
    assert text.partition("advice")[0].count("input") == 1


@pytest.mark.parametrize(
    ("width", "columns"),
    [(80, "task state step loss ex/s staleness"), (50, "task state step loss ex/s"), (30, "task state step")],
)
def test_a_narrow_terminal_shows_fewer_columns_and_those_whole(width, columns):
    lines = plain(LiveTable("my-run").render(rows(3), width=width, height=24, colour=False))
    assert lines[0].split() == columns.split()
    assert "worker:2" in lines[4]
    assert "running" in lines[4]
    assert all(len(line) < width for line in lines)
    assert "…" not in "".join(lines[:5])


def test_a_small_terminal_shows_those_in_trouble():
    server = Row(TaskId.parse("ps:0"), "running", 0, TaskStatus("", 1, "here", step=399))
    many = [*rows(50), server]
    many[31] = Row(many[31].task, "restarting", 2, None)
    lines = plain(LiveTable("my-run").render(many, width=80, height=12, colour=False))
    assert len(lines) < 12
    assert any("worker:31" in line and "restarting (2x)" in line for line in lines)
    assert any("ps:0" in line for line in lines)
    assert any("more tasks" in line for line in lines)


def test_the_default_cluster_fits_the_smallest_terminal_and_a_smaller_one_shows_every_role():
    names = ["chief:0", "worker:0", "worker:1", "ps:0", "ps:1", "evaluator:0"]
    default = [Row(TaskId.parse(name), "running", 0, TaskStatus(name, 1, "here", step=7)) for name in names]
    default[2].status.step = 3
    lines = plain(LiveTable("my-run").render(default, width=40, height=10, colour=False))
    assert [line.split()[0] for line in lines[2:-1]] == names
    assert len(lines) < 10
    lines = plain(LiveTable("my-run").render(default, width=40, height=9, colour=False))
    assert [line.split()[0] for line in lines[2:-2]] == ["chief:0", "worker:1", "ps:0", "evaluator:0"], (
        "the one that is behind"
    )
    assert lines[-2] == "and 2 more tasks"


def test_a_sparkline_goes_from_the_least_to_the_greatest_and_leaves_out_what_is_no_number():
    assert sparkline([3.0, 2.0, float("nan"), 1.0, float("inf")]) == "█▄ ▁ "
    assert sparkline([1.0, 1.0]) == "▁▁"


def test_rounds_of_local_steps_have_their_steps_and_traffic_at_80_columns():
    some = [
        Row(TaskId.parse(name), "running", 0, TaskStatus(name, 1, "here", step=12, max_steps=60, loss=0.25))
        for name in ("chief:0", "worker:0")
    ]
    for row in some:
        row.status.local_steps, row.status.bytes_sent, row.status.examples_per_s = 240, 2_200_000, 7543.0
    heading, _, first, *_, progress = plain(LiveTable("run").render(some, 80, height=24, colour=False))
    assert re.split("  +", heading.rstrip())[-2:] == ["local steps", "sent"]
    assert re.split("  +", first.rstrip())[-2:] == ["240", "2.2 MB"]
    assert "round 12/60" in progress
    assert max(map(len, (heading, first, progress))) < 80
