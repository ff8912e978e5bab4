"""A signal before the loop of a launch is obeyed, and a fork server that still imports ends with its launcher."""

import os
import select
import signal
import subprocess
import sys

import pytest

from dtrain_cli.targets.cold_start import LifeLine
from dtrain_cli.targets.fork_server import ForkServer

EARLY = """
import os, signal, sys, time
from dtrain_cli import main
from dtrain_cli.launch import engines, launcher

class Told(engines.ForkServer):
    def __init__(self, line, early, bare):
        super().__init__(line, early, bare=bare)
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


COUNTED = """
import subprocess, sys
start = subprocess.Popen.__init__
def counted(self, words, **more):
    start(self, words, **more)
    if "--fork-server" in words:
        print("fork server", self.pid, file=sys.stderr)
subprocess.Popen.__init__ = counted
from dtrain_cli import main
main.main()
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("words", "code", "started"),
    [
        (["launch", "--workers", "1", "--ps", "1", "--no-evaluator", "p.py"], 1, 1),
        (["launch", "--workers", "none", "p.py"], 2, 1),
        (["launch", "on_slurm.yaml", "p.py"], 2, 1),
        (["launch", "--help"], 0, 0),
        (["launch", "--", "/bin/true"], 0, 1),
        (["check", "on_slurm.yaml"], 2, 0),
    ],
)
def test_a_launch_starts_one_fork_server_before_it_reads_its_words_and_leaves_none(
    tmp_path, words, code, started
):
    (tmp_path / "p.py").touch()
    (tmp_path / "on_slurm.yaml").write_text("on: slurm\n")
    environment = {name: value for name, value in os.environ.items() if name != "DTRAIN_FORK_SERVER"}
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *words],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    pids = [int(line.split()[-1]) for line in done.stderr.splitlines() if line.startswith("fork server")]
    assert len(pids) == started
    assert all(map(ends, pids))


REFUSED = """
import errno, subprocess, sys
start = subprocess.Popen.__init__
def refuse(self, words, **more):
    if "--fork-server" in words:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    start(self, words, **more)
subprocess.Popen.__init__ = refuse
from dtrain_cli import main
main.main()
"""
ELSEWHERE = """
import sys
sys.platform = "darwin"
from dtrain_cli import main
main.main()
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("words", "line"), [(REFUSED, "Resource temporarily unavailable"), (ELSEWHERE, "launch needs Linux")]
)
def test_a_fork_server_that_cannot_be_started_is_one_line(tmp_path, words, line):
    (tmp_path / "p.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", words, "launch", "p.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "DTRAIN_FORK_SERVER"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1
