"""The same steps over 2 and 3 hosts that only a network connects, with hosts that die and cables that are cut."""

import multiprocessing
import os
import shutil
import time

import pytest
from launching import PATIENCE_S, wait_until
from roles.test_host_steps import STEPS, Replica, trajectory
from security.three_hosts import SwitchedHosts
from warm_commands import enter_host

LEASE_S, LONG_LEASE_S = 3.0, 20.0
"""The lease where a cable is cut, and elsewhere: a busy machine may keep a host silent for seconds."""


def train(network, host, count, ip, folder, pauses, lease_s):
    """Train on a host to the end, or to an error; files tell how far it is."""

    def said(host, made, weights):
        if weights is not None:
            (folder / f"writing-{host}").write_bytes(weights)
            (folder / f"writing-{host}").rename(folder / f"weights-{host}")
        (folder / f"made-{host}-{made}").touch()
        while made == 2 and pauses and not (folder / "go").exists():
            time.sleep(0.01)

    enter_host(network, ["net"])
    replica = Replica(host, True, said, ip, lease_s=lease_s)
    (folder / f"here-{host}").write_text(replica.listener.address)
    (folder / f"here-{host}").rename(folder / f"address-{host}")
    while len(list(folder.glob("address-*"))) < count:
        time.sleep(0.01)
    replica.addresses = [(folder / f"address-{other}").read_text() for other in range(count)]
    try:
        replica.train()
    except Exception as error:
        (folder / f"failed-{host}").write_text(f"{type(error).__name__}: {error}")


class Run:
    """One process on each of some hosts."""

    def __init__(self, hosts, count, folder, pauses, lease_s):
        self.folder = folder
        fork = multiprocessing.get_context("fork")
        self.processes = [
            fork.Process(
                target=train,
                args=(hosts.network(host), host, count, hosts.ip(host), folder, pauses, lease_s),
            )
            for host in range(count)
        ]
        for process in self.processes:
            process.start()

    def wait_made(self, host, step):
        wait_until((self.folder / f"made-{host}-{step}").exists, f"step {step} at host {host}")

    def weights(self, *hosts):
        for host in hosts:
            wait_until((self.folder / f"weights-{host}").exists, f"the end of host {host}")
        return {(self.folder / f"weights-{host}").read_bytes() for host in hosts}

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()


@pytest.fixture
def run(tmp_path):
    if os.getuid() or not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        pytest.skip("network namespaces need root, and the commands ip, nsenter and unshare")
    closing = []

    def run(count, pauses=False, lease_s=LONG_LEASE_S):
        hosts = SwitchedHosts(count)
        closing.append(hosts)
        started = Run(hosts, count, tmp_path, pauses, lease_s)
        closing.append(started)
        return hosts, started

    yield run
    for each in reversed(closing):
        each.close()


@pytest.mark.parametrize("count", [2, 3])
def test_the_bits_on_two_and_three_hosts_are_those_of_one_process(run, count):
    _, started = run(count)
    assert started.weights(*range(count)) == {trajectory(STEPS).tobytes()}


def test_a_host_that_is_killed_leaves_the_step_to_the_others(run):
    _, started = run(3, pauses=True)
    for host in range(3):
        started.wait_made(host, 2)
    started.processes[0].kill()
    (started.folder / "go").touch()
    assert started.weights(1, 2) == {trajectory(STEPS).tobytes()}


def test_a_host_whose_cable_is_cut_is_left_behind_and_stands_and_ends_when_it_is_mended(run):
    hosts, started = run(3, True, LEASE_S)
    for host in range(3):
        started.wait_made(host, 2)
    hosts.unplug(0)
    (started.folder / "go").touch()
    assert started.weights(1, 2) == {trajectory(STEPS).tobytes()}
    assert not (started.folder / "weights-0").exists(), "one of three does not go on alone"
    hosts.plug(0)
    started.processes[0].join(PATIENCE_S)
    assert (started.folder / "failed-0").read_text().startswith("LeftBehindError: ")
    assert not (started.folder / "weights-0").exists(), "nor where the others have ended"
