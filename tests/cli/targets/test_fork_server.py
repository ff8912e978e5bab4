"""The launcher's side of the fork server: its orders and the other's reports must never wait for each
other.
"""

import os
import select
import signal
import socket
import threading
from types import SimpleNamespace

import pytest

from dtrain.process import start_protocol
from dtrain.process.start_protocol import Exited, Started, StartTask
from dtrain_cli.targets import cold_start
from dtrain_cli.targets.cold_start import LifeLine
from dtrain_cli.targets.fork_server import ForkServer

ORDERS, REPORTS = 500, 5_000
TOLD_EARLY = 10


@pytest.fixture
def warm(monkeypatch):
    """A fork server, and the other end of its socket."""
    ends = []

    def popen(command, *, pass_fds, **_):
        ends.append(socket.socket(fileno=os.dup(pass_fds[0])))
        return SimpleNamespace(pid=1)

    monkeypatch.setattr(cold_start.subprocess, "Popen", popen)
    server = ForkServer(LifeLine())
    yield server, ends[0]
    ends[0].close()


def order(number):
    return StartTask(
        f"worker:{number}",
        0,
        ["program.py"],
        {"TF_CONFIG": "x" * 4000},
        {},
        "/",
        "/dev/null",
        needs_grpc=False,
    )


def test_an_order_that_is_quoted_shows_no_secret():
    shown = repr(
        StartTask("worker:0", 0, [], {}, {"DTRAIN_SECRET": "hush"}, "/", "/dev/null", needs_grpc=True)
    )
    assert "DTRAIN_SECRET" in shown
    assert "hush" not in shown


@pytest.mark.timeout(30)
def test_orders_are_sent_while_the_other_end_only_reports(warm):
    server, other = warm
    sent = [Started(f"worker:{number}", 0, number + 1) for number in range(REPORTS)]
    taken = []

    def report_first_and_then_take_orders():
        other.sendall(b"".join(map(start_protocol.encode, sent)))
        lines = start_protocol.Lines(start_protocol.STARTS.decode)
        while len(taken) < ORDERS:
            taken.extend(lines.feed(other.recv(1 << 16)))

    thread = threading.Thread(target=report_first_and_then_take_orders, daemon=True)
    thread.start()
    for number in range(ORDERS):
        server.order(order(number))
    thread.join()
    heard = []
    while len(heard) < REPORTS:
        heard += server.reports()
    assert heard == sent
    assert [each.task for each in taken] == [f"worker:{number}" for number in range(ORDERS)]
    assert not server.unread


def test_what_was_heard_while_sending_is_not_lost_when_the_other_end_dies(warm):
    server, other = warm
    other.sendall(start_protocol.encode(Exited("worker:0", 0, 0, 1)))
    other.shutdown(socket.SHUT_RDWR)
    server.order(order(1))
    assert server.over
    assert server.unread
    assert server.reports() == [Exited("worker:0", 0, 0, 1)]
    assert not server.unread


@pytest.mark.timeout(60)
def test_a_task_that_is_told_to_stop_while_it_is_being_started_stops(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import signal; signal.pause()")
    server = ForkServer(LifeLine())
    try:
        for number in range(TOLD_EARLY):
            server.order(
                StartTask(
                    *(f"worker:{number}", 0, [str(program)], {}, {}, str(tmp_path)),
                    log=str(tmp_path / "log"),
                    needs_grpc=False,
                )
            )
        ends = {}
        while len(ends) < TOLD_EARLY:
            select.select([server], [], [])
            for report in server.reports():
                if isinstance(report, Started):
                    os.kill(report.pid, signal.SIGTERM)
                else:
                    ends[report.task] = report.status
    finally:
        server.kill()
    assert set(ends.values()) == {128 + signal.SIGTERM}
