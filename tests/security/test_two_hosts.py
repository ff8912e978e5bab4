"""A run by hand over two hosts, by the lines of docs/guide/security.md: what a listener and a stranger get."""

import os
import re
import shlex
import shutil
import signal
from pathlib import Path

import pytest
from clusters.watching import step_of
from clusters.watching import succeeded as succeeded_launch
from launching import wait_until
from security.two_hosts import Hosts, Sniffer

from dtrain.wire.security.proof import SALT_BYTES, STRANGER, Keyring

ROOT = Path(__file__).parents[2]
SPEC = "cluster_specs/two_hosts.yaml"
PERSON = "correct horse battery staple"
PATTERN = b"\x9d\xc3\x5a\x3f" * 64
"""Initial values of weights that have no gradient: 64 times 0.8545."""
TRAIN = f"""
import os, sys, time
import numpy as np
import dtrain as dt

strategy = dt.get_strategy()
with strategy.scope():
    model = dt.Sequential([dt.layers.Input((65,)), dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.SGD(0.05), loss="mse")
pattern = np.frombuffer({PATTERN!r}, np.float32)
model.set_weights([np.append(np.float32(0), pattern)[:, None], np.zeros(1, np.float32)])

def batches():
    rng = np.random.default_rng(0)
    for number in range(10_000):
        while number == 20 and len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        x = np.zeros((8, 65), np.float32)
        x[:, 0] = rng.normal(size=8)
        yield x, 2 * x[:, :1] + 10

def data(context):
    return dt.data.Dataset.from_generator(batches)

model.fit(data, epochs=1, steps_per_epoch=400, verbose=0)
if strategy.is_leader:
    kernel, bias = model.get_weights()
    print("learned", round(float(kernel[0, 0])), round(float(bias[0])), kernel[1:].tobytes() == pattern.tobytes())
"""
LEARNED = "learned 2 10 True\n"
STRANGERS_WAY = """
import sys, threading, time
import grpc, msgspec
from dtrain.messages import PROTOCOL_VERSION, Challenge, Opening
from dtrain.wire.grpc_channels import HELLO_KEY, MEET, METHOD_SERVICE, TALK
from dtrain.wire.handshake import encode_greeting, read_greeting

def half():
    threading.Event().wait(20)
    yield b""

def heard(call):
    for part in (call.details(), *(call.trailing_metadata() or ()), *(call.initial_metadata() or ())):
        print(part, flush=True)

opening = encode_greeting(Opening(task="chief:0", nonce=b"n" * 32))
hello = msgspec.msgpack.encode(["Hello", PROTOCOL_VERSION, "hand-0", "0", "chief:0"])
for method in (MEET, TALK):
    channel = grpc.insecure_channel(
        sys.argv[1], (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
    )
    for said in (b"", hello, opening):
        for body in (b"", bytes(8 << 20)):
            call = channel.unary_unary(f"/{METHOD_SERVICE}/{method}").future(
                body, metadata=((HELLO_KEY, said),), timeout=3
            )
            if call.exception() is None:
                assert type(read_greeting(call.result())) is Challenge
                print("challenged")
            else:
                heard(call)
calls = [
    grpc.insecure_channel(sys.argv[1], (("grpc.use_local_subchannel_pool", 1),))
    .stream_unary(f"/{METHOD_SERVICE}/{method}").future(half())
    for method in (MEET, TALK) * 20
]
print("half-open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hosts(tmp_path):
    if os.getuid() or not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        pytest.skip("network namespaces need root, and the commands ip, nsenter and unshare")
    hosts = Hosts(tmp_path)
    spec = (
        (ROOT / SPEC)
        .read_text()
        .replace(", machine-b:2223]", "]")
        .replace("  evaluator: 1", "  evaluator: 0")
    )
    for folder in hosts.folders.values():
        (folder / "cluster_specs").mkdir()
        (folder / SPEC).write_text(spec)
        (folder / "train.py").write_text(TRAIN)
    mine = hosts.namespaces()
    yield hosts
    hosts.close()
    assert not mine & set(map(namespace, Path("/proc").glob("[0-9]*")))
    assert not Path("/sys/class/net/cable").exists()


def namespace(process):
    try:
        return str((process / "ns/net").readlink())
    except OSError:  # it has ended
        return None


class Guide:
    """The five lines, as they stand, on the two hosts."""

    def __init__(self, launcher, hosts):
        guide = (ROOT / "docs/guide/security.md").read_text().partition("in five lines")[2]
        lines = re.findall(r"^(machine-[ab])\$ (.*)$", guide, re.M)
        self._lines = [(host, shlex.split(words)) for host, words in lines]
        self._launcher, self._hosts, self._errors = launcher, hosts, launcher.folder

    def prepare(self, tls):
        """Make the secret and the certificates, and copy them."""
        (_, secret), (_, certificates), (_, copy) = self._lines[:3]
        here, there = self._hosts.folders.values()
        if tls:
            for words in (secret, certificates):
                assert self.dtrain("machine-a", *words).end() == 0
        else:
            (here / "secret.txt").touch(0o600)
            (here / "secret.txt").write_text(PERSON)
        assert copy[:2] == ["scp", "-r"]
        assert copy[-1] == "machine-b:"
        for name in copy[2:-1] if tls else ["secret.txt"]:
            source = here / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, there / source.name)

    def dtrain(self, host, dtrain, *words):
        assert dtrain == "dtrain"
        path = self._errors / f"{len(self._launcher.launches)}.err"
        self._launcher.folder = self._hosts.folders[host]
        with path.open("w") as file:
            command = self._launcher.dtrain(*words, network=self._hosts.pid(host), stderr=file)
        command.said = path.read_text
        return command

    def start(self, *more, without="none"):
        """Start the two tasks of the lines, and two more likewise, without options that begin so."""
        (_, chief), (_, worker) = self._lines[3:]
        options, program = [*chief[2:-1], "--index", "0"], chief[-1]
        commands = {}
        for name, host, words in (
            ("ps:0", "machine-a", ["dtrain", "ps", *options]),
            ("worker:0", "machine-a", ["dtrain", "worker", *options, program, *more]),
            ("worker:1", "machine-b", [*worker, *more]),
            ("chief:0", "machine-a", [*chief, *more]),
        ):
            left_out = {at + n for at, w in enumerate(words) if w.startswith(without) for n in (0, 1)}
            commands[name] = self.dtrain(host, *(w for at, w in enumerate(words) if at not in left_out))
        return commands


def salts(heard):
    """The salts that servers have told on the wire: keys are made with them."""
    marks = [found.end() for found in re.finditer(rb"\xa9Challenge.\xc4\x10", heard, re.S)]
    return {heard[at : at + SALT_BYTES] for at in marks}


def succeeded(commands):
    """All tasks end with 0, and the chief has learned the line; what each has said."""
    codes = {name: command.end() for name, command in commands.items()}
    said = {name: command.said() for name, command in commands.items()}
    assert codes == dict.fromkeys(commands, 0), said
    assert commands["chief:0"].out == LEARNED
    for command in commands.values():
        command.wait_gone()
    return said


@pytest.mark.parametrize(
    "tls", [False, True], ids=["a person's secret, where each host's own name means loopback", "TLS"]
)
def test_a_listener_and_a_stranger_get_nothing_of_a_run_by_the_guide(hosts, launcher, tls):
    if not tls:
        hosts.name_hosts_as_debian()
    guide = Guide(launcher, hosts)
    guide.prepare(tls)
    secret = (hosts.folders["machine-b"] / "secret.txt").read_text().strip()
    sniffer = Sniffer(hosts.listen("machine-b"))
    go = hosts.folders["machine-a"] / "go"
    commands = guide.start(str(go), without="none" if tls else "--tls-")
    wait_until(lambda: re.search("worker:1.* there", commands["chief:0"].said()), "all tasks")
    stranger = launcher.run("-c", STRANGERS_WAY, "machine-a:2224", wrapper=hosts.on("machine-b"))
    assert stranger.end() == 0, stranger.err
    go.touch()
    said = succeeded(commands)
    everywhere = (
        "listens on every interface, port 2224: machine-a means 127.0.1.1 here, where machine-b would not"
    )
    assert (f"dtrain: ps:0: {everywhere} reach it" in said["ps:0"]) == (not tls)
    heard = sniffer.stop()
    assert len(heard) > 50_000, "the worker's traffic"
    assert (PATTERN in heard) == (not tls)
    assert secret.encode() not in heard
    for salt in salts(heard):
        assert Keyring(secret, salt).key(salt) not in heard
    assert bool(salts(heard)) == (not tls)
    assert_nothing_learned(stranger.out, tls)


def assert_nothing_learned(told, tls):
    """Without TLS one sentence, to what is no hello another one, and to an opening a challenge; with TLS nothing."""
    lines = set(told.splitlines())
    assert "half-open" in lines
    if tls:
        assert all("failed to connect" in line or line == "half-open" for line in lines), lines
    else:
        assert lines <= {
            STRANGER,
            "the connection did not open with a dtrain hello",
            "challenged",
            "half-open",
        }


def test_a_start_without_a_secret_is_refused_and_runs_with_a_warning_where_it_is_said(
    hosts, launcher, monkeypatch
):
    guide = Guide(launcher, hosts)
    for command in guide.start(without="--secret-file").values():
        assert command.end() == 2
        assert "make a secret with `dtrain secret FILE` and give every task the same" in command.said()
    monkeypatch.setenv("DTRAIN_INSECURE", "1")
    for task, said in succeeded(guide.start(without=("--secret-file", "--tls-"))).items():
        warning = f"dtrain: {task}: warning: without a secret every program that reaches machine-a:2222 may"
        assert said.count(warning) == 1


def test_a_launch_at_addresses_of_the_network_has_tls_and_survives_kills(hosts, launcher):
    """At the host's own address: the launcher makes the certificates, also those of tasks that come again."""
    spec = hosts.folders["machine-a"] / "own.yaml"
    spec.write_text(
        "cluster: {chief: [machine-a:2222], worker: [machine-a:2223], ps: [machine-a:2224]}\n"
        "security: {tls: required}\n"
        "training: {updates: async, transport: grpc}\n"
        "restart: {worker: {backoff_s: 0.1}, ps: {backoff_s: 0.1}}\n"
    )
    go = hosts.folders["machine-a"] / "go"
    launch = launcher.start(str(spec), "train.py", str(go), wrapper=hosts.on("machine-a"))
    for task in ("worker:0", "ps:0"):
        launch.wait_for(lambda task=task: step_of(launch, task) > 5, f"{task} at work")
        pid = launch.task(task)["pid"]
        os.kill(pid, signal.SIGKILL)
        launch.wait_for(lambda task=task, pid=pid: launch.task(task)["pid"] not in (pid, None), f"no {task}")
    go.touch()
    succeeded_launch(launch)
    assert LEARNED in launch.out
