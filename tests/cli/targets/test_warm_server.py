"""The promises of `dtrain fork-server`: launches take their tasks from it as from a fork server of their own."""

import os
import signal
import socket

import pytest

from dtrain.process import WARM_START_VARIABLE
from dtrain.process.start_protocol import WARM_START_DESCRIPTORS, StartTask
from dtrain_cli.targets import fork_server
from dtrain_cli.targets.cold_start import LifeLine
from dtrain_cli.targets.fork_server import ForkServer

SMALL = ("--ps", "0", "--no-evaluator", "--workers", "1", "--strategy", "multi_worker_mirrored")
PROGRAM = """
import resource
(run_dir / f"seen-{_place['type']}").write_text(json.dumps([
    os.getcwd(), os.environ.get("A_WORD"), sys.path[0], resource.getrlimit(resource.RLIMIT_NOFILE), os.umask(0o22),
    os.path.realpath("/proc/self/fd/0"), sorted(Path(os.path.realpath(f"/proc/self/fd/{n}")).name for n in (1, 2)),
]))
print("said", task, flush=True)
status()
"""


def seen(launch):
    return [(launch.run_dir / f"seen-{role}").read_text() for role in ("chief", "worker")]


@pytest.fixture
def served(launcher):
    """A warm server of the test's own: the command, and the socket's path."""
    command = launcher.dtrain("fork-server", "warm", warm=False)
    assert command.process.stdout.readline() == "dtrain: serves launches with DTRAIN_FORK_SERVER=warm\n"
    return command, launcher.folder / "warm"


def test_tasks_see_what_those_of_a_fork_server_of_the_launchers_own_see(launcher, served):
    program = launcher.program(PROGRAM)
    command, path = served
    told = {"A_WORD": "spoken", "DTRAIN_FORK_SERVER": str(path)}
    warm = launcher.start(*SMALL, program, environment=told)
    cold = launcher.start(*SMALL, program, environment={**told, "DTRAIN_FORK_SERVER": ""})
    assert (warm.end(), cold.end()) == (0, 0)
    assert seen(warm) == seen(cold)
    assert "is not used" not in warm.err
    assert warm.log("worker:0") == "said worker:0\n"
    other = launcher.start(*SMALL, program, environment={**told, "MALLOC_ARENA_MAX": "1"})
    assert other.end() == 0
    assert "is not used: it was started with other surroundings (MALLOC_ARENA_MAX=1)" in other.err
    second = launcher.dtrain("fork-server", "warm", warm=False)
    assert second.end() == 1
    assert second.err == "dtrain: warm: another process listens there; give another SOCKET\n"
    command.send(signal.SIGINT)
    assert command.end() == 0
    assert not path.exists()
    alone = launcher.start(*SMALL, program, environment=told)
    assert alone.end() == 0
    assert f"dtrain: DTRAIN_FORK_SERVER={path} is not used: " in alone.err


def test_a_run_outlives_the_warm_server_and_nothing_outlives_the_run(launcher, served):
    command, path = served
    launch = launcher.start(
        *SMALL, launcher.program("status()\nforever()\n"), environment={"DTRAIN_FORK_SERVER": str(path)}
    )
    launch.wait_running()
    pids = launch.pids()
    assert len(pids) == 4, "two tasks, their fork server, and its keeper"
    command.send(signal.SIGTERM)
    assert command.end() == 0
    assert launch.pids() == pids
    launch.send(signal.SIGKILL)
    launch.wait_gone()


def test_a_warm_server_of_another_user_gets_nothing(tmp_path, monkeypatch, capfd):
    got = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "warm"))
        listener.listen()
        monkeypatch.setenv(WARM_START_VARIABLE, str(tmp_path / "warm"))
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        server = ForkServer(LifeLine())
        server.kill()
        connection, _ = listener.accept()
        with connection:
            got.append(connection.recv(1))
    assert got == [b""]
    assert "is not used: it belongs to another user" in capfd.readouterr().err


def test_a_warm_server_that_answers_too_late_gets_no_order(tmp_path, monkeypatch, capfd):
    """The late server holds one end of the socket for orders. Orders must reach only the fork server that the
    launcher has started in its place.
    """
    monkeypatch.setattr(fork_server, "WARM_START_PATIENCE_S", 0.1)
    monkeypatch.setenv(WARM_START_VARIABLE, str(tmp_path / "warm"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "warm"))
        listener.listen()
        server = ForkServer(LifeLine())
        server.kill()
        connection, _ = listener.accept()
        with connection:
            _, (orders, *others), _, _ = socket.recv_fds(connection, 1, WARM_START_DESCRIPTORS)
        for descriptor in others:
            os.close(descriptor)
        with socket.socket(fileno=orders) as late:
            late.settimeout(20)
            server.order(StartTask("worker:0", 0, [], {}, {}, "/", "/dev/null", needs_grpc=False))
            assert late.recv(1) == b""
    assert "is not used: timed out" in capfd.readouterr().err
