"""Two builds of different protocol versions refuse each other in one sentence that names both, on every way."""

import secrets
import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import msgspec
import pytest
from row_by_row import every_row

from dtrain.errors import PeerRefusedError
from dtrain.messages import PROTOCOL_VERSION, Hello
from dtrain.wire import handshake
from dtrain.wire.channel import MemoryChannel
from dtrain.wire.frames import Limits
from dtrain.wire.grpc_channels import HELLO_KEY, MEET, METHOD_SERVICE, TALK
from dtrain.wire.grpc_client import GrpcChannel
from dtrain.wire.grpc_service import GrpcService
from dtrain.wire.handshake import read_greeting, refusal
from dtrain.wire.one_host.local import LocalChannel, LocalService
from dtrain.wire.security.credentials import Credentials

SERVER = Hello(run_id="run", cluster_hash="hash", task="ps:0")
WORKER = Credentials.made(msgspec.structs.replace(SERVER, task="worker:0"))
LATER = msgspec.structs.replace(SERVER, task="worker:0", version=PROTOCOL_VERSION + 1)
FOREIGN = msgspec.msgpack.encode(["Opening", 99, {"fields": "of a later build"}, 3.5])
"""The opening of a build whose other fields mean something else."""
TIMEOUT_S = 20.0


class Room:
    answers_at_once = True

    def limits(self, hello):
        return Limits(1 << 20, 1 << 20)

    def refuse(self, hello):
        return refusal(SERVER, hello)

    def received(self, caller, frame):
        raise AssertionError("nothing is heard from another version")

    def disconnected(self, caller):
        pass


@pytest.fixture
def address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    service = GrpcService(Room(), address, Credentials.made(SERVER), connections=8, share_port=False)
    yield address
    service.stop()


@pytest.fixture
def name():
    service = LocalService(Room(), Credentials.made(SERVER))
    yield service.name()
    service.stop()


def names_both(text, version):
    assert f"version {version} of dtrain's protocol" in text
    assert f"the other end version {PROTOCOL_VERSION}" in text
    assert text.endswith("start every task of a run with the same version of dtrain")
    return True


@pytest.fixture
def later(monkeypatch):
    """A client whose protocol is one version later."""
    opening = handshake.opening_of

    def later(task):
        return msgspec.structs.replace(opening(task), version=PROTOCOL_VERSION + 1)

    monkeypatch.setattr(handshake, "opening_of", later)


def test_a_server_refuses_another_version_over_grpc(address, later):
    with pytest.raises(PeerRefusedError, match="ps:0 at 127") as refused:
        GrpcChannel("ps:0", address, WORKER, TIMEOUT_S)
    assert names_both(str(refused.value), PROTOCOL_VERSION + 1)


@pytest.mark.parametrize("method", [TALK, MEET])
def test_over_grpc_only_the_version_is_read_of_a_later_hello(address, method):
    with grpc.insecure_channel(address) as channel:
        kind = channel.stream_stream if method == TALK else channel.unary_unary
        call = kind(f"/{METHOD_SERVICE}/{method}")
        with pytest.raises(grpc.RpcError) as refused:
            list(call(iter([b""]) if method == TALK else b"", metadata=((HELLO_KEY, FOREIGN),)))
    assert names_both(refused.value.details(), 99)


def test_a_server_of_the_same_host_says_its_version_to_another_one(name):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.settimeout(TIMEOUT_S)
        stranger.connect(b"\0" + name.encode())
        stranger.send(FOREIGN)
        answer = stranger.recv(1 << 16)
        assert stranger.recv(1) == b"", "nothing more is heard"
    message = msgspec.msgpack.decode(answer)
    assert message == ["Hello", PROTOCOL_VERSION, "", "", ""], "a version, and nothing of the run"


@pytest.mark.parametrize(
    "data", [msgspec.msgpack.encode(LATER), FOREIGN.replace(b"\xa7Opening", b"\xa9Challenge")]
)
def test_a_task_refuses_a_server_of_another_version_on_its_host(data):
    name = f"dtrain-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, ThreadPoolExecutor(1) as threads:
        listener.bind(b"\0" + name.encode())
        listener.listen()
        opening = threads.submit(LocalChannel, "ps:0", name, WORKER, TIMEOUT_S)
        connection, _ = listener.accept()
        connection.send(data)
        with pytest.raises(PeerRefusedError) as refused:
            opening.result()
        connection.close()
    assert names_both(str(refused.value), msgspec.msgpack.decode(data)[1])
    assert str(refused.value).startswith("ps:0: it speaks version")


def test_the_twin_in_memory_refuses_in_the_same_words():
    with pytest.raises(PeerRefusedError) as refused:
        MemoryChannel("ps:0", Room(), LATER)
    assert names_both(str(refused.value), PROTOCOL_VERSION + 1)


@every_row(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["Hello", "run", "hash", "worker:0", None]),
        msgspec.msgpack.encode(["Hello"]),
        msgspec.msgpack.encode(["Hello", True, 1]),
        msgspec.msgpack.encode(["Push", 99]),
        msgspec.msgpack.encode({"Hello": 99}),
        msgspec.msgpack.encode("Hello"),
    ],
)
def test_what_is_no_hello_has_no_version(data):
    with pytest.raises(PeerRefusedError, match="did not open with a dtrain hello"):
        read_greeting(data)
