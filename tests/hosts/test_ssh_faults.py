"""Rarer faults of `launch --on ssh`: two hosts lost at once, the launcher's own cable, jump hosts, IPv6, full disks.

Each ends with a sentence that names the host, and leaves nothing. DTRAIN_TRIALS=1 runs them: they take minutes.
"""

import os
import signal
from contextlib import contextmanager

import pytest
from hosts.rig import Rig, Ways, needs_hosts
from hosts.test_ssh_runs import PACED, step, tasks_of, wait_progress
from launching import Launch, wait_until

pytestmark = [
    *(needs_hosts if isinstance(needs_hosts, list) else [needs_hosts]),
    pytest.mark.skipif("DTRAIN_TRIALS" not in os.environ, reason="takes minutes; DTRAIN_TRIALS=1 runs it"),
]
CLUSTER = ("--workers", "2", "--ps", "2", "--no-evaluator")
FILL = "cat /dev/zero > /run/dtrain-host/disk/full"


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with Rig(tmp_path_factory.mktemp("rig"), 4, Ways(disk_bytes=8 << 20)) as rig:
        yield rig


@pytest.fixture
def start(rig, launcher, tmp_path):
    def start(hosts, steps, *options):
        (tmp_path / "paced.py").write_text(PACED.replace("STEPS", str(steps)))
        words = ["--on", "ssh", "--hosts", hosts, *CLUSTER, *options, str(tmp_path / "paced.py")]
        launch = Launch(tmp_path, words, wrapper=rig.wrapper("h0"))
        launcher.launches.append(launch)
        return launch

    yield start
    wait_until(lambda: not any(tasks_of(rig, name) for name in rig.names), "the hosts to be empty")


@contextmanager
def configured(rig, text):
    """Lines before the rest of the user's ssh configuration."""
    path = rig.folder / "ssh_config"
    before = path.read_text()
    path.write_text(text + before)  # in place: it is mounted
    try:
        yield
    finally:
        path.write_text(before)


def first_steps(launch):
    launch.wait_for(lambda: step(launch, "worker-1") > 5 and step(launch, "chief-0") > 5, "first steps")


def test_the_hosts_of_the_chief_and_of_a_server_are_lost_at_once(rig, start):
    launch = start("h1,h2,h3,h4", 1_000_000)
    first_steps(launch)
    rig.kill("h1")
    rig.kill("h2")
    try:
        moved = ("chief:0", "ps:0", "ps:1")
        launch.wait_for(
            lambda: all(launch.task(task)["host"] in ("h3", "h4") for task in moved), "other hosts"
        )
        wait_progress(launch, "chief-0", "worker-0", "worker-1")
        launch.send(signal.SIGINT)
        assert launch.end() == 130
        assert "h1 is lost: no word for 15 s" in launch.err
        assert "h2 is lost: no word for 15 s" in launch.err
        assert "chief:0 reads its next batch" not in launch.err.partition("h1 is lost")[0]
    finally:
        rig.revive("h1")
        rig.revive("h2")


def test_a_lost_host_that_has_the_only_checkpoints_is_named(rig, start):
    launch = start("h1,h2,h3", 1_000_000)
    first_steps(launch)
    rig.kill("h1")
    try:
        assert launch.end() == 1
        assert "h1 is lost: no word for 15 s; the run's checkpoints lie there alone" in launch.err
    finally:
        rig.revive("h1")


def test_a_launcher_without_network_ends_and_so_does_every_host(rig, start):
    launch = start("h1,h2", 1_000_000)
    first_steps(launch)
    rig.cut("h0")
    try:
        assert launch.end() == 1
        assert "is lost, the last host: is this machine on the network?" in launch.err
        wait_until(lambda: not any(tasks_of(rig, name) for name in rig.names), "nothing is left")
    finally:
        rig.restore("h0")


def test_a_jump_host_is_the_users_business_and_a_dead_one_is_named(rig, start):
    rig.run("h0", "ip", "route", "add", "unreachable", rig.address("h3"))
    try:
        with configured(rig, "Host h3\n ProxyJump h1\n"):
            launch = start("h1,h3", 60)
            assert launch.end() == 0, launch.err
        with configured(rig, "Host h3\n ProxyJump nowhere\n"):
            launch = start("h1,h3", 60)
            assert launch.end() == 125
            assert (
                "h3: it is no name that ssh can resolve (ssh: Could not resolve hostname nowhere"
                in launch.err
            )
    finally:
        rig.run("h0", "ip", "route", "del", "unreachable", rig.address("h3"))


def test_a_host_that_asks_for_a_password_is_named(rig, start):
    with configured(rig, "Host h2\n PubkeyAuthentication no\n"):
        launch = start("h1,h2", 60)
        assert launch.end() == 125
        assert "h2: it asks for a password or knows no key of yours" in launch.err


def test_a_host_whose_disk_is_full_is_named_before_a_task_starts(rig, start):
    rig.run("h2", "sh", "-c", FILL, check=False)
    try:
        launch = start("h1,h2", 60)
        assert launch.end() == 125
        assert "h2: No space left on device in " in launch.err
    finally:
        rig.run("h2", "sh", "-c", "rm /run/dtrain-host/disk/full")
