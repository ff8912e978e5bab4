"""What a task's trace holds, and what tracing costs where it is off."""

import json
import logging
import sys
import threading

import pytest

from dtrain.runs.events import ConfigChanged, MemberLost
from dtrain.runs.trace import Header, Trace, read_trace


class Clock:
    def __init__(self):
        self.now_s = 10.0

    def __call__(self):
        self.now_s += 0.5
        return self.now_s


HEADER = Header(task="worker:0", attempt=0, pid=1, host="here", at_s=10.0, wall_s=1000.0)


def test_what_is_not_traced_is_called_as_it_is(tmp_path):
    def step():
        return 7

    trace = Trace(None)
    assert trace.timed("compute", step) is step
    trace.span("wait", 0.0, 1.0)
    trace.event(MemberLost(member="worker:1"))
    trace.flush()
    assert not list(tmp_path.iterdir())


def test_events_and_spans_have_their_times_and_fields(tmp_path):
    path = tmp_path / "attempt-0" / "trace.jsonl"
    trace = Trace(path, Clock())
    trace.write(HEADER)
    assert trace.timed("compute", lambda x, *, y: x + y)(1, y=2) == 3
    trace.event(ConfigChanged(step=20, stops=False))
    trace.span("wait", 3.0, 4.5, "ps:0")
    trace.flush()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {
            "line": "task",
            "task": "worker:0",
            "attempt": 0,
            "pid": 1,
            "host": "here",
            "at_s": 10.0,
            "wall_s": 1000.0,
        },
        {"line": "span", "name": "compute", "at_s": 10.5, "for_s": 0.5, "whom": None},
        {"line": "event", "at_s": 11.5, "what": {"event": "config changed", "step": 20, "stops": False}},
        {"line": "span", "name": "wait", "at_s": 3.0, "for_s": 1.5, "whom": "ps:0"},
    ]


def test_a_call_that_fails_is_measured_and_fails(tmp_path):
    trace = Trace(tmp_path / "trace.jsonl", Clock())
    with pytest.raises(ZeroDivisionError):
        trace.timed("compute", lambda: 1 / 0)()
    trace.flush()
    assert [line.name for line in read_trace(tmp_path / "trace.jsonl")] == ["compute"]


def test_a_line_that_a_kill_has_cut_off_is_left_out(tmp_path):
    path = tmp_path / "trace.jsonl"
    trace = Trace(path, Clock())
    trace.write(HEADER)
    trace.span("wait", 1.0, 2.0)
    trace.flush()
    path.write_bytes(path.read_bytes()[:-9])
    assert read_trace(path) == [HEADER]


def test_a_disk_that_refuses_does_not_stop_training(tmp_path):
    (tmp_path / "file").touch()
    trace = Trace(tmp_path / "file" / "trace.jsonl", Clock())
    trace.span("wait", 1.0, 2.0)
    trace.flush()
    trace.flush()


def test_threads_that_flush_at_once_write_every_line_once(tmp_path):
    trace = Trace(tmp_path / "trace.jsonl", Clock())
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    over = threading.Event()

    def flush():
        while not over.is_set():
            trace.flush()

    threads = [threading.Thread(target=flush) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for number in range(3000):
            trace.span("wait", float(number), float(number))
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    trace.flush()
    assert [line.at_s for line in read_trace(tmp_path / "trace.jsonl")] == [float(n) for n in range(3000)]


def test_events_are_logged_for_a_program_that_asks(caplog):
    with caplog.at_level(logging.INFO, "dtrain"):
        Trace(None).event(MemberLost(member="worker:1"))
    assert caplog.messages == ["member lost: member worker:1"]
    caplog.clear()
    Trace(None).event(MemberLost(member="worker:1"))
    assert not caplog.messages
