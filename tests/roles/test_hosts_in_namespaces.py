"""The same steps over 1, 2 and 3 hosts that only a network connects, with hosts that die and cables that are cut."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launching import wait_until
from roles.test_host_steps import STEPS, trajectory
from security.three_hosts import SwitchedHosts

TESTS = Path(__file__).parents[1]
LEASE_S, LONG_LEASE_S = 3.0, 20.0
"""The lease where a cable is cut, and elsewhere: a busy machine may keep a host silent for seconds."""
PROGRAM = """
import sys, time
from pathlib import Path
from roles.test_host_steps import Replica

host, count, ip, folder, pause = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5]

def said(host, made, weights):
    if weights is not None:
        (folder / f"writing-{host}").write_bytes(weights)
        (folder / f"writing-{host}").rename(folder / f"weights-{host}")
    (folder / f"made-{host}-{made}").touch()
    while made == 2 and pause == "pause" and not (folder / "go").exists():
        time.sleep(0.01)

replica = Replica(host, True, said, ip, lease_s=float(sys.argv[6]))
(folder / f"here-{host}").write_text(replica.listener.address)
(folder / f"here-{host}").rename(folder / f"address-{host}")
while len(list(folder.glob("address-*"))) < count:
    time.sleep(0.01)
replica.addresses = [(folder / f"address-{other}").read_text() for other in range(count)]
replica.train()
"""


class Run:
    """One process on each of some hosts."""

    def __init__(self, hosts, count, folder, pause, lease_s):
        self.folder = folder
        environment = os.environ | {"PYTHONPATH": str(TESTS)}
        self.processes = [
            subprocess.Popen(
                [
                    *hosts.on(host),
                    sys.executable,
                    "-c",
                    PROGRAM,
                    str(host),
                    str(count),
                    hosts.ip(host),
                    str(folder),
                    pause,
                    str(lease_s),
                ],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
            for host in range(count)
        ]

    def wait_made(self, host, step):
        wait_until((self.folder / f"made-{host}-{step}").exists, f"step {step} at host {host}")

    def weights(self, *hosts):
        for host in hosts:
            wait_until((self.folder / f"weights-{host}").exists, f"the end of host {host}")
        return {(self.folder / f"weights-{host}").read_bytes() for host in hosts}

    def close(self):
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def run(tmp_path):
    if os.getuid() or not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        pytest.skip("network namespaces need root, and the commands ip, nsenter and unshare")
    closing = []

    def run(count, pause="none", lease_s=LONG_LEASE_S):
        hosts = SwitchedHosts(count)
        closing.append(hosts)
        started = Run(hosts, count, tmp_path, pause, lease_s)
        closing.append(started)
        return hosts, started

    yield run
    for each in reversed(closing):
        each.close()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_bits_are_the_same_on_one_two_and_three_hosts(run, count):
    _, started = run(count)
    assert started.weights(*range(count)) == {trajectory(STEPS).tobytes()}


def test_a_host_that_is_killed_leaves_the_step_to_the_others(run):
    _, started = run(3, "pause")
    for host in range(3):
        started.wait_made(host, 2)
    started.processes[0].kill()
    (started.folder / "go").touch()
    assert started.weights(1, 2) == {trajectory(STEPS).tobytes()}


def test_a_host_whose_cable_is_cut_is_left_behind_and_stands_and_ends_when_it_is_mended(run):
    hosts, started = run(3, "pause", LEASE_S)
    for host in range(3):
        started.wait_made(host, 2)
    hosts.unplug(0)
    (started.folder / "go").touch()
    assert started.weights(1, 2) == {trajectory(STEPS).tobytes()}
    assert not (started.folder / "weights-0").exists(), "one of three does not go on alone"
    hosts.plug(0)
    assert "LeftBehindError: " in started.processes[0].communicate(timeout=60)[1]
    assert not (started.folder / "weights-0").exists(), "nor where the others have ended"
