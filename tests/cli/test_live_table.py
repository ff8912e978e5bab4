import re

from dtrain.cluster import TaskId
from dtrain.run_files import TaskStatus
from dtrain_cli.live_table import LiveTable, Row, sparkline


def rows(count: int) -> list[Row]:
    status = TaskStatus("", 1, "here", step=150, max_steps=400, loss=0.25, examples_per_s=12345.6, staleness_mean=1.25)
    return [Row(TaskId.parse(f"worker:{index}"), "running", 0, status) for index in range(count)]


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def test_every_task_has_a_line_and_the_progress_is_below():
    lines = plain(LiveTable("my-run").render(rows(3), width=80, height=24, colour=True))
    assert lines[2].split() == ["worker:0", "running", "150", "0.25", "12,346", "1.25"]
    assert lines[-1].startswith("my-run")
    assert "step 150/400" in lines[-1]
    assert all(len(line) < 80 for line in lines)


def test_a_small_terminal_shows_those_in_trouble():
    many = rows(50)
    many[31] = Row(many[31].task, "restarting", 2, None)
    lines = plain(LiveTable("my-run").render(many, width=80, height=12, colour=False))
    assert len(lines) < 12
    assert any("worker:31" in line and "restarting (2x)" in line for line in lines)
    assert any("tasks more" in line for line in lines)


def test_a_sparkline_goes_from_the_least_to_the_greatest_and_leaves_out_what_is_no_number():
    assert sparkline([3.0, 2.0, float("nan"), 1.0, float("inf")]) == "█▄ ▁ "
    assert sparkline([1.0, 1.0]) == "▁▁"
