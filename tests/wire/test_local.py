"""What the way between tasks of one host adds: memory that is shared, and what happens when there is none."""

import errno
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from row_by_row import every_row
from wire.two_ends import HEAD, LARGE, PUSH, SERVER, WORKER, Echo

from dtrain.errors import PeerLostError, PeerRefusedError, SharedMemoryError, WaitTimeoutError
from dtrain.messages import Commit, Hello, Pull, Subscribe
from dtrain.wire import connecting, grpc_client
from dtrain.wire.channel import Answer
from dtrain.wire.grpc_client import GrpcChannel
from dtrain.wire.grpc_service import GrpcService
from dtrain.wire.one_host import local, shared_memory
from dtrain.wire.one_host.local import LocalChannel, LocalService, socket_name
from dtrain.wire.one_host.packets import PacketSocket
from dtrain.wire.one_host.shared_memory import SharedMemory, shared_bytes
from dtrain.wire.security.credentials import Credentials


@pytest.fixture
def echo():
    return Echo()


@pytest.fixture
def service(echo):
    service = LocalService(echo, SERVER)
    yield service
    service.stop()


@pytest.fixture
def channel(service):
    channel = LocalChannel("ps:0", service.name(), WORKER)
    yield channel
    channel.close()


@pytest.fixture
def address(echo, service):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    grpc_service = GrpcService(
        echo, address, SERVER, connections=8, share_port=False, local_name=service.name
    )
    yield address
    grpc_service.stop()


@pytest.fixture
def no_memory(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shared_memory, "shortage", None)
    monkeypatch.setattr(os, "posix_fallocate", refuse)


def test_blocks_in_shared_memory_are_read_where_they_were_written(channel, echo):
    mine = shared_bytes(LARGE).view(np.float32)
    channel.send(PUSH, [mine[:100_000], mine[100_000:]])
    frame = channel.receive()
    mine[:] = 7
    assert [block.size for block in echo.blocks] == [100_000, mine.size - 100_000]
    assert all(np.all(block == 7) for block in echo.blocks)
    assert not any(block.flags.writeable for block in echo.blocks)
    assert not np.any(frame.blocks[0] == 7), "what the server sends of another's memory is a copy"


def test_what_a_server_has_lent_stands_in_reading(channel, echo):
    published = shared_bytes(LARGE)
    channel.send(PUSH, [published])
    channel.receive()
    assert not echo.caller.reading
    echo.caller.send(PUSH, [published])
    [block] = channel.receive().blocks
    published[:] = 3
    assert np.all(block == 3)
    assert echo.caller.reading[0] is published
    echo.caller.send(PUSH)
    assert channel.receive().message == PUSH
    assert echo.caller.reading[0] is published, "an answer without blocks leaves the reader with what it has"
    echo.caller.send(PUSH, [published[:8]])
    channel.receive()
    assert not echo.caller.reading


def test_a_memory_that_is_gone_leaves_its_number_and_its_room(channel):
    for value in range(5):
        channel.send(PUSH, [np.full_like(shared_bytes(LARGE), value)])
        shared = shared_bytes(LARGE)
        shared[:] = value
        channel.send(PUSH, [shared])
        for _ in range(2):
            assert np.all(channel.receive().blocks[0] == value)
        del shared
    assert len(channel._packets._announced) == 1


class Silent(Echo):
    """Answers when it is told to."""

    def received(self, caller, frame):
        self.caller = caller
        return Answer.ONE


def test_a_wait_pauses_so_that_a_signal_that_comes_just_before_it_is_heard(monkeypatch):
    monkeypatch.setattr(local, "LOOK_S", 0.01)
    silent, pauses = Silent(), []
    service = LocalService(silent, SERVER)
    channel = LocalChannel("ps:0", service.name(), WORKER)
    receive = channel._packets.receive

    def noted(limits):
        try:
            return receive(limits)
        except BlockingIOError:
            pauses.append(limits)
            if len(pauses) >= 3 and silent.caller is not None:
                silent.caller.send(PUSH)
            raise

    monkeypatch.setattr(channel._packets, "receive", noted)
    channel.send(PUSH)
    assert channel.receive().message == PUSH
    assert len(pauses) >= 3
    channel.close()
    service.stop()


def test_a_header_too_long_for_a_packet_comes_in_memory(channel):
    message = Commit(generation=1, version=1, contributors=tuple((rank, 1, 0) for rank in range(40_000)))
    channel.send(message, [np.arange(4)])
    frame = channel.receive()
    assert frame.message == message
    assert frame.blocks[0].tolist() == [0, 1, 2, 3]


def test_nobody_waits_for_a_peer_that_does_not_read(channel, echo):
    channel.send(Subscribe(generation=1, version=0))
    assert echo.gone.wait(60.0), "the server still has patience"

    def read_all():
        for _ in range(20_000):
            channel.receive()

    with pytest.raises(PeerLostError, match="ps:0"):
        read_all()


def test_without_memory_a_large_message_is_a_loss_and_the_way_over_grpc_is_left(
    address, channel, no_memory, capfd
):
    with pytest.raises(SharedMemoryError, match="no 1048576 bytes of memory"):
        shared_bytes(LARGE)
    channel.send(PUSH, [np.zeros(LARGE, np.uint8)])
    with pytest.raises(PeerLostError, match="No space left on device"):
        channel.receive()
    again = connecting.connect("ps:0", address, WORKER, 20.0)
    assert isinstance(again, GrpcChannel)
    again.send(PUSH, [np.zeros(LARGE, np.uint8)])
    assert again.receive().blocks[0].size == LARGE
    again.close()
    with pytest.raises(
        PeerRefusedError, match=r"transport: local cannot lead to ps:0 .* No space left .*; use auto"
    ):
        connecting.connect("ps:0", address, WORKER, 20.0, "local")
    assert capfd.readouterr().err.count("large tensors go over gRPC from now on") == 1


def test_a_server_without_memory_hangs_up_and_is_met_over_grpc(address, echo, no_memory):
    channel = connecting.connect("ps:0", address, WORKER, 20.0)
    assert isinstance(channel, LocalChannel)
    channel.send(PUSH)
    channel.receive()
    echo.caller.send(PUSH, [np.zeros(LARGE, np.uint8)])
    with pytest.raises(PeerLostError):
        channel.receive()
    channel.close()
    again = connecting.connect("ps:0", address, WORKER, 20.0)
    assert isinstance(again, GrpcChannel)
    again.close()


def test_too_little_memory_is_an_error_and_no_signal():
    program = """
import resource
from dtrain.errors import SharedMemoryError
from dtrain.wire.one_host.shared_memory import shared_bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    shared_bytes(1 << 24)[:] = 1
except SharedMemoryError as error:
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "no 16777216 bytes of memory to share with tasks on this host: File too large\n"


def test_a_server_on_another_host_is_met_over_grpc_or_refused(echo):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    elsewhere = GrpcService(
        echo, address, SERVER, connections=8, share_port=False, local_name=lambda: "dtrain-elsewhere"
    )
    channel = connecting.connect("ps:0", address, WORKER, 20.0)
    assert isinstance(channel, GrpcChannel)
    channel.close()
    with pytest.raises(
        PeerRefusedError, match=f"transport: local cannot lead to ps:0 at {address}: ps:0 is not on this host"
    ):
        connecting.connect("ps:0", address, WORKER, 20.0, "local")
    elsewhere.stop()


@pytest.fixture
def met(echo):
    """A server that serves under the name that its run knows."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    local = LocalService(echo, SERVER, socket_name("ps:0", SERVER))
    grpc_service = GrpcService(echo, address, SERVER, connections=8, share_port=False, local_name=local.name)
    yield address
    grpc_service.stop()
    local.stop()


def test_tasks_of_a_run_on_one_host_meet_without_grpc(met, monkeypatch):
    monkeypatch.setattr(grpc_client, "GrpcChannel", None)
    channel = connecting.connect("ps:0", met, WORKER, 20.0)
    assert isinstance(channel, LocalChannel)
    channel.send(PUSH)
    assert channel.receive().message == PUSH
    channel.close()


@pytest.mark.parametrize(
    "hello",
    [
        Hello(run_id="other", cluster_hash="hash", task="worker:0"),
        Hello(run_id="run", cluster_hash="other", task="worker:0"),
    ],
)
def test_a_task_of_another_run_does_not_know_the_socket_and_asks_over_grpc(met, hello, monkeypatch):
    monkeypatch.setattr(GrpcChannel, "local_name", lambda *_: "")
    channel = connecting.connect("ps:0", met, Credentials.made(hello), 20.0)
    assert isinstance(channel, GrpcChannel)
    channel.close()


def test_a_socket_that_accepts_and_says_nothing_is_nobody(address, channel):
    name = socket_name("ps:7", SERVER)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
        mute.bind(b"\0" + name.encode())
        mute.listen()
        with pytest.raises(WaitTimeoutError, match=r"ps:7 at .* did not accept a connection within 0\.2 s"):
            connecting.connect("ps:7", address, WORKER, 0.2)


def test_where_nobody_serves_yet_the_wait_ends_without_grpc(monkeypatch):
    monkeypatch.setattr(grpc_client, "GrpcChannel", None)
    with pytest.raises(
        WaitTimeoutError, match=r"ps:0 at \[::1\]:9 did not accept a connection within 0\.05 s"
    ):
        connecting.connect("ps:0", "[::1]:9", WORKER, 0.05)


def test_a_name_that_is_taken_leaves_another_one(echo):
    services = [LocalService(echo, SERVER, socket_name("ps:0", SERVER)) for _ in range(2)]
    assert services[0].name() != services[1].name()
    channel = LocalChannel("ps:0", services[1].name(), WORKER)
    channel.close()
    for service in services:
        service.stop()


@every_row(
    "transport, address, heart",
    [
        ("auto", "127.0.0.1:9", "auto"),
        ("local", "localhost:9", "auto"),
        ("auto", "[::1]:9", "auto"),
        ("grpc", "127.0.0.1:9", "grpc"),
        ("auto", "10.0.0.1:9", "grpc"),
        ("local", "machine-a:9", "grpc"),
    ],
)
def test_heartbeats_go_through_the_network_where_there_is_one(transport, address, heart):
    assert connecting.heartbeat_transport(transport, address) == heart


def test_who_does_not_say_hello_is_not_served(service, echo):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(b"\0" + service.name().encode())
        PacketSocket(stranger).send(Pull(generation=1, at_least=0, wait_s=0.0))
        assert b"did not open with a dtrain hello" in stranger.recv(100)
        assert stranger.recv(100) == b""
    assert echo.caller is None


def test_a_peer_that_stands_still_in_the_midst_of_a_message_keeps_nobody_waiting(service, channel, echo):
    other = LocalChannel("ps:0", service.name(), WORKER)
    other._socket.send(b"\xff\xff\xff\xff\x00\x00\x00\x00")
    channel.send(PUSH)
    assert channel.receive().message == PUSH
    memory = SharedMemory.make(LARGE)
    memory[: len(HEAD)] = HEAD
    socket.send_fds(other._socket, [b"\0"], [memory.fd])
    assert other.receive().message == PUSH
    other.close()


def test_a_fault_of_the_server_ends_one_connection(service, channel, echo, monkeypatch, capfd):
    other = LocalChannel("ps:0", service.name(), WORKER)
    with monkeypatch.context() as faulty:
        faulty.setattr(Echo, "received", lambda *_: 1 / 0)
        other.send(PUSH)
        with pytest.raises(PeerLostError, match="ended the connection"):
            other.receive()
    assert "ZeroDivisionError" in capfd.readouterr().err
    channel.send(PUSH)
    assert channel.receive().message == PUSH
    other.close()
