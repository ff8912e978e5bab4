"""Signals while a task waits for others: it ends at once with the promised code, and nothing is left."""

import signal
import socket

import pytest


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_server_that_waits_for_its_leader_ends_by_a_signal(launcher, tmp_path, number, code):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    (tmp_path / "s.yaml").write_text(f"cluster: {{chief: ['localhost:1'], ps: ['localhost:{port}']}}\n")
    (tmp_path / "temporary").mkdir()
    command = launcher.dtrain(
        *("ps", "--spec", "s.yaml", "--index", "0"), environment={"TMPDIR": str(tmp_path / "temporary")}
    )
    first = command.process.stderr.readline()
    assert "ps:0" in first, first
    command.send(number)
    assert command.end() == code, command.err
    assert "Traceback" not in command.err
    assert command.pids() == []
    assert list((tmp_path / "temporary").iterdir()) == []
