"""A signal before the loop of a launch is obeyed, and a fork server that still imports ends with its launcher."""

import os
import select
import signal
import subprocess
import sys

import pytest

from dtrain_cli.targets.fork_server import ForkServer, LifeLine

EARLY = """
import os, signal, sys, time
from dtrain_cli import main
from dtrain_cli.launch import engines, launcher

class Told(engines.ForkServer):
    def __init__(self, line):
        super().__init__(line)
        print(self.pid, flush=True)

def run(options, target_of):
    os.kill(os.getpid(), {number})
    time.sleep(60)

engines.ForkServer, launcher.run = Told, run
sys.argv = ["dtrain", "launch", {program!r}]
main.main()
"""
IMPORTING = """
import os, time
os.write(int(os.environ["TELL"]), b".")
time.sleep(60)
"""
END_S = 20.0


def ends(pid):
    """Return whether a process has ended, or ends soon."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(process):
        return bool(select.select([process], [], [], END_S)[0])


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_before_the_loop_of_a_launch_ends_it_and_its_fork_server(tmp_path, number, code):
    (tmp_path / "p.py").touch()
    words = EARLY.format(number=int(number), program=str(tmp_path / "p.py"))
    with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True) as launch:
        pid = int(launch.stdout.readline())
        assert launch.wait() == code
    assert ends(pid)


@pytest.mark.timeout(60)
def test_a_fork_server_that_still_imports_ends_with_its_launcher(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text(IMPORTING)  # the first of its imports
    reading, telling = os.pipe()
    os.set_inheritable(telling, True)
    monkeypatch.setenv("TELL", str(telling))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    start = subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda words, pass_fds, **more: start(words, pass_fds=(*pass_fds, telling), **more),
    )
    monkeypatch.delenv("DTRAIN_FORK_SERVER", raising=False)
    pid = os.fork()
    if pid == 0:
        try:
            os.write(telling, ForkServer(LifeLine()).pid.to_bytes(4, "big"))
            signal.pause()
        finally:
            os._exit(1)
    server = int.from_bytes(os.read(reading, 4), "big")
    assert os.read(reading, 1) == b".", "it imports"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert ends(server)
