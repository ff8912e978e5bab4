from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.cluster import TaskId
from dtrain_cli.console import log_lines
from dtrain_cli.console.log_lines import LogTail, collapse

W0, W1, CHIEF = TaskId.parse("worker:0"), TaskId.parse("worker:1"), TaskId.parse("chief:0")


@settings(deadline=None, max_examples=60)
@given(pieces=st.lists(st.binary(max_size=30), max_size=20))
def test_any_bytes_in_any_pieces_give_the_same_lines(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("log") / "output.log"
    path.touch()
    tail, lines = LogTail(W0, path), []
    for piece in pieces:
        with open(path, "ab") as file:
            file.write(piece)
        lines += tail.read()
    lines += tail.read(to_the_end=True)
    at_once = LogTail(W0, path)
    assert lines == at_once.read() + at_once.read(to_the_end=True)
    assert not any(set(line) & {"\n", "\r", "\x1b"} - {"\x1b"} for line in lines)


def test_what_a_slow_reader_misses_is_counted(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(log_lines, "LAG_BYTES_MAX", 1000)
    path = tmp_path / "output.log"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    tail = LogTail(W0, path)
    note, *shown = tail.read()
    assert f"[{1000 - len(shown)} lines not shown" in note
    assert not shown or shown[-1] == "line 999"


STACKS = b"""before
Thread 0x00007f131039a6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f1320dcfb80 (most recent call first):
  File "program.py", line 62 in <module>
after

  File "not of a stack"
"""
CRASH = b"Fatal Python error: Segmentation fault\n\n" + STACKS


def test_stacks_that_were_asked_for_are_left_to_the_file(tmp_path: Path):
    path = tmp_path / "output.log"
    path.write_bytes(STACKS + CRASH)
    everything = LogTail(W0, path).read()
    assert everything == (STACKS + CRASH).decode().splitlines()
    tail = LogTail(W0, path, without_stacks=True)
    crash = CRASH.decode().splitlines()
    assert tail.read() == ["before", "after", "", '  File "not of a stack"', *crash], "a crash is shown whole"


def test_a_missing_file_and_a_very_long_line(tmp_path: Path):
    tail = LogTail(W0, tmp_path / "output.log")
    assert tail.read() == []
    (tmp_path / "output.log").write_text("x" * 10_000 + "\n")
    (line,) = tail.read()
    assert line.endswith("... (1808 more bytes)")


@pytest.mark.parametrize("lag", [1 << 20, 3000])
def test_a_line_is_whole_or_left_out_for_a_reader_that_is_a_program(tmp_path: Path, monkeypatch, lag):
    monkeypatch.setattr(log_lines, "LAG_BYTES_MAX", lag)
    monkeypatch.setattr(log_lines, "_CHUNK_BYTES", 700)
    path, long = tmp_path / "output.log", "{" + "x" * 20_000 + "}"
    tail = LogTail(W0, path, line_bytes_max=None)
    with path.open("a") as file:
        shown = []
        for piece in (long[:500], long[500:9000], long[9000:] + "\nlast\n"):
            file.write(piece)
            file.flush()
            shown += tail.read()
    while more := tail.read(to_the_end=True):
        shown += more
    whole = [line for line in shown if "not shown" not in line]
    assert whole == [long, "last"] if lag > len(long) else set(whole) <= {long, "last"}


def test_a_line_that_is_longer_than_the_lag_is_still_one_line(tmp_path: Path):
    path, long = tmp_path / "output.log", "x" * (2 * log_lines.LAG_BYTES_MAX)
    path.write_text(f"{long}\n")
    assert LogTail(W0, path, line_bytes_max=None).read() == [long]


def test_equal_lines_of_several_tasks_are_shown_once():
    lines = [(W0, "restored"), (W1, "restored"), (W0, "restored"), (CHIEF, "go"), (W0, "go"), (W1, "alone")]
    assert collapse(lines) == [
        ("worker x2", "restored"),
        ("worker:0", "restored"),
        ("tasks x2", "go"),
        ("worker:1", "alone"),
    ]
