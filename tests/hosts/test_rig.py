"""The hosts on which other tests stand: they are apart, reach each other by ssh, and leave nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts.rig import Rig, needs_hosts
from launching import wait_until

pytestmark = needs_hosts


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("rig"), 2) as rig:
        yield rig


def ssh(rig, host, command, *options):
    words = ("ssh", "-o", "BatchMode=yes", *options, host, command)
    return rig.run("h0", *words, check=False)


def test_hosts_are_reached_by_ssh_and_are_apart(rig):
    assert ssh(rig, "h1", "hostname; cat /proc/uptime").stdout.split()[0] == "h1"
    ages = [float(ssh(rig, name, "cut -d' ' -f1 /proc/uptime").stdout) for name in rig.names]
    assert ages[1] - ages[0] > 50_000
    (rig.state("h1") / "mark").touch()
    assert ssh(rig, "h1", 'ls "${XDG_STATE_HOME%/*}"').stdout.split() == ["mark"]
    assert ssh(rig, "h2", 'ls "${XDG_STATE_HOME%/*}"').stdout == ""
    assert ssh(rig, "h1", f"{sys.executable} -c 'import dtrain; print(1)'").stdout == "1\n"


def test_a_process_of_a_host_is_seen_and_ended_with_it(rig):
    login = subprocess.Popen([*rig.wrapper("h0"), "ssh", "h2", "sleep 1000"], stdin=subprocess.DEVNULL)

    def sleeps():
        return [pid for pid, line in rig.processes("h2").items() if line == "sleep 1000"]

    (pid,) = wait_until(sleeps, "the sleep on h2")
    assert not any("sleep" in line for line in rig.processes("h1").values())
    rig.kill("h2")
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the sleep to end")
    login.kill()
    login.wait()
    rig.revive("h2")
    assert ssh(rig, "h2", "hostname").stdout == "h2\n"


def test_a_cut_cable_lets_nothing_through_until_it_is_back(rig):
    rig.cut("h1")
    assert ssh(rig, "h1", "true", "-o", "ConnectTimeout=1").returncode == 255
    rig.restore("h1")
    assert ssh(rig, "h1", "echo back").stdout == "back\n"


HOLDS_A_RIG = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from hosts.rig import Rig
with Rig(Path({folder!r}), 1) as rig:
    print(*(holder.pid for holder in rig._holders.values()), flush=True)
    sys.stdin.read()
"""


def test_a_killed_test_leaves_no_host(tmp_path):
    program = HOLDS_A_RIG.format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path))
    words = [sys.executable, "-c", program]
    test = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert test.stdout is not None
    pids = [int(word) for word in test.stdout.readline().split()]
    assert len(pids) == 3
    test.send_signal(signal.SIGKILL)
    test.communicate()
    wait_until(lambda: not any(map(_lives, pids)), "the hosts to end")


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
