"""`dtrain worker --join HOST:PORT`: one more worker for a run of which its user knows an address and the secret."""

import re
import signal
import socket

import pytest
from clusters.hand import HandCluster
from clusters.watching import PACED, report_of, step_of, succeeded, tasks_of
from launching import wait_until

from dtrain.config import SecuritySection
from dtrain.config.choices import Transport
from dtrain.errors import WaitTimeoutError
from dtrain.process.requests import JoinRequest
from dtrain.roles.joining import ask_for_place

STEPS = 100
WORDS = (PACED, "--steps", str(STEPS), "--wait_for", "go", "--after", "10")


@pytest.fixture
def join(launcher):
    """Start a worker that joins at an address; what runs on this machine is unknown to it."""

    def start(address, *words, secret="secret.txt", **options):
        given = ("--secret-file", secret) if secret else ()
        elsewhere = str(launcher.folder / "elsewhere")
        return launcher.dtrain(
            "worker", "--join", address, *given, "--runs-dir", elsewhere, *(words or WORDS), **options
        )

    return start


def tasks(run_dir):
    return tasks_of(report_of(run_dir)) if (run_dir / "run.json").exists() else {}


def step(run_dir, task):
    return tasks(run_dir).get(task, {}).get("step")


def test_workers_join_a_launch_at_any_of_its_servers_and_never_get_one_index(launcher, join):
    assert launcher.dtrain("secret", "secret.txt").end() == 0
    options = ("--workers", "1", "--ps", "2", "--no-evaluator", "--updates", "async")
    launch = launcher.start(*options, "--set", "security.secret_file=secret.txt", *WORDS)
    launch.wait_for(lambda: step_of(launch) >= 1, "no step")
    addresses = {name: task["address"] for name, task in tasks_of(report_of(launch.run_dir)).items()}
    interrupted, staying = join(addresses["ps:0"]), join(addresses["ps:1"])
    killed = launcher.dtrain("worker", "--join", str(launch.run_dir), *WORDS)
    names = {f"worker:{index}" for index in range(1, 4)}
    launch.wait_for(lambda: all(step(launch.run_dir, name) for name in names), "they did not join")
    killed.send(signal.SIGKILL)
    interrupted.send(signal.SIGINT)
    assert (killed.end(), interrupted.end()) == (-9, 130), interrupted.err
    (launcher.folder / "go").touch()
    assert staying.end() == 0, staying.err
    succeeded(launch)
    joined = (killed, interrupted, staying)
    for command in joined:
        command.wait_gone()
    said = [re.match(r"dtrain: (worker:\d): joins run ", command.err)[1] for command in joined]
    assert set(said) == names
    report = report_of(launch.run_dir)
    rows = tasks_of(report)
    assert report["global_step"] == STEPS
    assert [rows[name]["state"] for name in said[1:]] == ["stopped", "succeeded"]
    for name in names:
        assert launch.err.count(f"dtrain: {name} has joined from ") == 1
    assert len(list((launcher.folder / "elsewhere").iterdir())) == 2, "each joined worker has its own folder"


def test_a_worker_joins_a_cluster_by_hand_at_its_server(launcher, join):
    cluster = HandCluster(launcher, ps=1, chief=1, worker=1)
    spec = cluster.spec(training={"updates": "sync"}, security={"secret_file": "secret.txt"})
    assert launcher.dtrain("secret", "secret.txt").end() == 0
    cluster.start_all(lambda task: cluster.start(task, "--spec", spec, *WORDS))
    joined = join(cluster.addresses["ps"][0])
    wait_until(lambda: "worker:1" in tasks(cluster.run_dir), "it did not join")
    (launcher.folder / "go").touch()
    assert joined.end() == 0, joined.err
    joined.wait_gone()
    cluster.succeed()
    report = cluster.status()
    assert (report["state"], report["global_step"]) == ("succeeded", STEPS)
    assert tasks_of(report)["worker:1"]["state"] == "succeeded"
    assert "worker:1 has joined from " in cluster.commands["chief:0"].err


@pytest.fixture(scope="module")
def waiting(early):
    """The address of a server that waits for its leader, and has a secret."""
    cluster = HandCluster(early, ps=1, chief=1, worker=1)
    assert early.dtrain("secret", "secret.txt").end() == 0
    spec = cluster.spec(security={"secret_file": "secret.txt"})
    server = cluster.start("ps:0", "--spec", spec)
    host, port = cluster.addresses["ps"][0].split(":")

    def up():
        assert server.process.poll() is None, server.process.communicate()
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    wait_until(up, "no server")
    return cluster.addresses["ps"][0]


def test_another_secret_and_none_are_one_refusal(launcher, join, waiting):
    assert launcher.dtrain("secret", "other.txt").end() == 0
    for secret in ("other.txt", None):
        command = join(waiting, secret=secret)
        assert command.end() == 1
        assert command.err == (
            f"dtrain: the server at {waiting}: this server belongs to another run, or the secret is another\n"
        )
        command.wait_gone()


def test_no_dtrain_server_is_said_to_be_none():
    def refused(address):
        request = JoinRequest(
            parent=0,
            server="the server",
            address=address,
            transport=Transport.GRPC,
            reach_s=0.5,
            wait_s=0.5,
            run_id="",
            cluster={"ps": [address]},
            security=SecuritySection(),
        )
        with pytest.raises(WaitTimeoutError) as caught:
            ask_for_place(request, print)
        return str(caught.value)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = f"127.0.0.1:{taken.getsockname()[1]}"
    assert refused(closed).endswith(
        "did not accept a connection within 0.5 s: refused: nothing listens there"
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        silent = f"127.0.0.1:{other.getsockname()[1]}"
        assert refused(silent) == (
            f"what listens at {silent} is no dtrain server, or one that expects TLS: see --tls-cert"
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("machine:99999",), "machine:99999"),
        (("10.1.2.3:2222",), "--secret-file FILE, or say --insecure"),
        (("10.1.2.3:2222", "--index", "3"), "--tls-key, --secret-file and --insecure beside it"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_is_asked(launcher, words, said):
    command = launcher.dtrain("worker", "--join", *words, *WORDS)
    assert command.end() == 2
    assert said in command.err
    assert len(command.err.splitlines()) == 1
