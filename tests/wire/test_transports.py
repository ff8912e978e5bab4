"""The real transports on 127.0.0.1: which tasks are let in, which one an error names, and that none starves."""

import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import msgspec
import numpy as np
import pytest

from dtrain.errors import PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import Commit, Farewell, Hello, Pull, Push, Subscribe
from dtrain.wire import connecting
from dtrain.wire.channel import Answer
from dtrain.wire.frames import Limits
from dtrain.wire.grpc_channels import HELLO_KEY, MEET, METHOD_SERVICE, TALK
from dtrain.wire.grpc_client import GrpcChannel
from dtrain.wire.grpc_service import GrpcService
from dtrain.wire.handshake import refusal
from dtrain.wire.one_host.local import LocalService
from dtrain.wire.security.credentials import Credentials

SECRET = "a secret of the run"
SERVER = Credentials.made(Hello(run_id="run-1", cluster_hash="hash", task="ps:0"), SECRET)
WORKER = Credentials.made(Hello(run_id="run-1", cluster_hash="hash", task="worker:0"), SECRET)
TIMEOUT_S = 20.0


class Room:
    """Answers a Push at once, a Pull when `open_door` is called, a Subscribe with whatever `tell` says."""

    answers_at_once = True

    def limits(self, hello):
        return Limits(1 << 20, 1 << 26)

    def __init__(self):
        self.lock = threading.Lock()
        self.waiting = []
        self.subscribers = []
        self.farewells = 0
        self.changed = threading.Condition(self.lock)
        self.gone = 0

    def refuse(self, hello):
        return refusal(SERVER.hello, hello)

    def received(self, caller, frame):
        with self.changed:
            self.changed.notify_all()
            match frame.message:
                case Pull():
                    self.waiting.append((caller, frame))
                case Subscribe():
                    self.subscribers.append(caller)
                    return Answer.STREAM
                case Farewell():
                    self.farewells += 1
                    return Answer.NONE
                case _:
                    caller.send(frame.message, frame.blocks)
            return Answer.ONE

    def disconnected(self, caller):
        with self.changed:
            self.gone += 1
            self.changed.notify_all()

    def until(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, TIMEOUT_S)

    def open_door(self):
        with self.lock:
            for caller, frame in self.waiting:
                caller.send(frame.message, frame.blocks)
            self.waiting.clear()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def room():
    return Room()


@pytest.fixture
def address(room):
    address = f"127.0.0.1:{free_port()}"
    local = LocalService(room, SERVER)
    service = GrpcService(room, address, SERVER, connections=64, share_port=False, local_name=local.name)

    def stop():
        service.stop()
        local.stop()

    room.stop = stop
    yield address
    stop()


@pytest.fixture(params=["grpc", "local"])
def connect(address, request):
    channels = []

    def connect(credentials=WORKER, timeout_s=TIMEOUT_S):
        channels.append(connecting.connect("ps:0", address, credentials, timeout_s, request.param))
        return channels[-1]

    yield connect
    for channel in channels:
        channel.close()


def test_8_mb_both_ways_into_the_arrays_that_are_there(connect):
    channel = connect()
    sent, into = np.arange(2_000_000, dtype=np.float32), np.zeros(2_000_000, np.float32)
    for _ in range(2):
        channel.send(Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="p"), [sent])
        frame = channel.receive([into])
        assert frame.message == Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="p")
        assert np.array_equal(frame.blocks[0], sent)
        assert frame.blocks[0] is into or not frame.blocks[0].flags.writeable
    assert channel.bytes_sent == channel.bytes_received > 16_000_000


def test_a_wait_ends_at_its_deadline_and_the_connection_stays_as_it_is(connect, room):
    channel = connect()
    channel.send(Pull(generation=1, at_least=0, wait_s=0.0))
    for wait_s in (0.05, 0.0, -1.0):
        deadline = time.monotonic() + wait_s
        with pytest.raises(WaitTimeoutError, match="ps:0 did not answer in time"):
            channel.receive(deadline=deadline)
        assert time.monotonic() >= deadline
    room.until(lambda: room.waiting)
    room.open_door()
    answer = channel.receive(deadline=time.monotonic() + TIMEOUT_S).message
    assert answer == Pull(generation=1, at_least=0, wait_s=0.0)


def test_a_wait_with_a_deadline_is_ended_by_an_abort_as_well(connect, room):
    channel = connect()
    channel.send(Pull(generation=1, at_least=0, wait_s=0.0))
    room.until(lambda: room.waiting)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(channel.receive, deadline=time.monotonic() + 10 * TIMEOUT_S)
        channel.abort("the run has ended")
        with pytest.raises(PeerLostError, match="the run has ended"):
            waits.result(TIMEOUT_S)


STRANGER = "this server belongs to another run, or the secret is another"


def said_by(secret=SECRET, **changes):
    return Credentials.made(msgspec.structs.replace(WORKER.hello, **changes), secret)


@pytest.mark.parametrize(
    ("credentials", "said"),
    [
        (said_by(run_id="run-2"), "this is ps:0 of run run-1; worker:0 belongs to run run-2"),
        (said_by(cluster_hash="other"), "another cluster than ps:0"),
        (said_by(task="nobody"), "'nobody' is not a task"),
        (said_by(None), STRANGER),
        (said_by("another secret, as long"), STRANGER),
        (said_by(None, run_id="run-2", cluster_hash="other"), STRANGER),
    ],
)
def test_a_stranger_is_refused_and_a_task_of_the_run_hears_why(connect, room, credentials, said):
    with pytest.raises(PeerRefusedError, match="ps:0 at 127") as refused:
        connect(credentials).receive()
    assert str(refused.value).endswith(said) or (credentials.keyring.proves and said in str(refused.value))
    assert room.waiting == []


@pytest.mark.parametrize("method", [TALK, MEET])
@pytest.mark.parametrize("hello", [b"", b"\xff\xfe", b"\x95\xa5Hello\xa2\xff\xfe\xa1x\xa1y\xc0", b"x" * 5000])
def test_who_does_not_open_as_dtrain_does_is_refused(address, method, hello):
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(f"/{METHOD_SERVICE}/{method}")
        with pytest.raises(grpc.RpcError) as refused:
            list(call(iter([b""]), metadata=((HELLO_KEY, hello),)))
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "did not open with a dtrain hello" in refused.value.details()


def test_bytes_that_are_no_message_end_the_connection_with_a_reason(connect, room):
    channel = connect()
    if isinstance(channel, GrpcChannel):
        channel._requests.put(iter([b"nonsense, nonsense"]))
        with pytest.raises(PeerRefusedError, match="the peer is not dtrain"):
            channel.receive()
    else:
        channel._socket.send(b"nonsense, nonsense")
        assert "a message that dtrain does not know" in channel.receive().message.reason
    room.until(lambda: room.gone == 1)
    other = connect()
    other.send(Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="p"))
    assert other.receive().message == Push(
        generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="p"
    )


def test_a_message_above_the_limit_is_refused(connect, room):
    room.limits = lambda hello: Limits(1000, 1000)
    channel = connect()
    channel.send(
        Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="p"),
        [np.zeros(251, np.float32)],
    )
    with pytest.raises(PeerRefusedError, match="a message of 1004 bytes; at most 1000"):
        raise PeerRefusedError(channel.receive().message.reason)  # over gRPC it is raised by `receive`


def test_blocks_that_are_to_be_dropped_never_arrive_and_the_next_message_does(connect, room):
    room.limits = lambda hello: Limits(1000, 1000, 1 << 26)
    channel = connect()
    push = Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="p")
    for size, expected in ((251, []), (6_000_000, []), (250, [1.0] * 250)):
        channel.send(push, [np.ones(size, np.float32)])
        answer = channel.receive()
        assert answer.message == push
        assert [value for block in answer.blocks for value in block.tolist()] == expected
    channel.send(push, [np.empty((1 << 24) + 1, np.float32)])
    with pytest.raises(PeerRefusedError, match="a message of 67108868 bytes; at most 67108864"):
        raise PeerRefusedError(channel.receive().message.reason)


def test_a_stranger_s_grpc_server_is_not_dtrain_s():
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with pytest.raises(
            PeerRefusedError,
            match=rf"127\.0\.0\.1:{port}, where ps:3 is expected, answers a server that is not dtrain's",
        ):
            GrpcChannel("ps:3", f"127.0.0.1:{port}", WORKER, TIMEOUT_S)
        server.stop(None)


def test_where_nobody_listens_the_wait_ends_and_names_the_peer_and_the_place():
    port = free_port()
    with pytest.raises(
        WaitTimeoutError, match=rf"ps:1 at 127\.0\.0\.1:{port} did not accept a connection within 0\.2 s"
    ):
        GrpcChannel("ps:1", f"127.0.0.1:{port}", WORKER, 0.2)


def test_a_port_that_accepts_and_says_nothing_is_nobody():
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(WaitTimeoutError, match="ps:1 at 127"):
        GrpcChannel("ps:1", f"127.0.0.1:{mute.getsockname()[1]}", WORKER, 0.3)


def test_a_client_waits_for_a_server_that_comes_up_later(room):
    address = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(GrpcChannel, "ps:0", address, WORKER, TIMEOUT_S)
        service = GrpcService(room, address, SERVER, connections=4, share_port=False)
        channel = coming.result()
        channel.send(Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="p"))
        assert channel.receive().message == Push(
            generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="p"
        )
        channel.close()
        service.stop()


def test_a_server_that_goes_away_while_we_wait_is_lost_by_name(connect, room):
    channel = connect()
    channel.send(Pull(generation=1, at_least=0, wait_s=60.0))
    room.until(lambda: room.waiting)
    room.stop()
    with pytest.raises(PeerLostError, match="lost ps:0"):
        channel.receive()
    with pytest.raises(PeerLostError):
        channel.receive()


def test_an_abort_from_another_thread_ends_the_wait_with_its_reason(connect, room):
    channel = connect()
    channel.send(Pull(generation=1, at_least=0, wait_s=60.0))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channel.receive)
        room.until(lambda: room.waiting)
        channel.abort("the chief is gone")
        with pytest.raises(PeerLostError, match="the chief is gone"):
            waiting.result(TIMEOUT_S)
    room.until(lambda: room.gone == 1)


def test_a_client_that_closes_is_gone_for_the_server_also_while_it_waits(connect, room):
    channel = connect()
    channel.send(Pull(generation=1, at_least=0, wait_s=60.0))
    room.until(lambda: room.waiting)
    channel.close()
    room.until(lambda: room.gone == 1)
    room.open_door()


def test_forty_waiting_connections_do_not_starve_the_one_that_frees_them(connect, room):
    channels = [connect() for _ in range(40)]
    for number, channel in enumerate(channels):
        channel.send(Pull(generation=1, at_least=number, wait_s=60.0))
    room.until(lambda: len(room.waiting) == 40)
    quick = connect()
    quick.send(Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="p"))
    assert quick.receive().message == Push(
        generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="p"
    )
    room.open_door()
    assert [channel.receive().message.at_least for channel in channels] == list(range(40))


def test_messages_keep_their_order_with_and_without_answers(connect, room):
    channel = connect()
    for sequence in range(20):
        channel.send(Farewell())
        channel.send(Push(generation=1, incarnation=1, sequence=sequence, base_version=0, plan_hash="p"))
    assert [channel.receive().message.sequence for _ in range(20)] == list(range(20))
    assert room.farewells == 20


def test_a_subscriber_is_told_until_it_leaves(connect, room):
    channel = connect()
    channel.send(Subscribe(generation=1, version=0))
    room.until(lambda: room.subscribers)
    for version in range(50):
        room.subscribers[0].send(Commit(generation=1, version=version, contributors=((0, 1, 0),)))
    assert [channel.receive().message.version for _ in range(50)] == list(range(50))
    channel.close()
    room.until(lambda: room.gone == 1)


def test_the_order_to_leave_never_meets_grpc_in_the_midst_of_stopping(room):
    """SIGTERM's SystemExit rises in the main thread, wherever that is: there gRPC's own thread would miss
    half of the shutdown.
    """
    service = GrpcService(room, f"127.0.0.1:{free_port()}", SERVER, connections=1, share_port=False)
    stop, stopping = service._server.stop, []
    service._server.stop = lambda grace: stopping.append(threading.current_thread()) or stop(grace)
    service.stop()
    assert len(stopping) == 1
    assert stopping[0] is not threading.current_thread()


LEAVES = """
import atexit
from wire.test_transports import *
room, address = Room(), f"127.0.0.1:{free_port()}"
atexit.register(GrpcService(room, address, SERVER, connections=1, share_port=False).stop)
channel = connecting.connect("ps:0", address, WORKER, TIMEOUT_S, "grpc")
channel.send(Pull(generation=1, at_least=1, wait_s=TIMEOUT_S))
room.until(lambda: room.waiting)
"""


def test_a_program_that_ends_does_not_wait_for_connections_on_which_peers_wait():
    """Python joins the threads of a pool before it calls what was registered for the end."""
    folder = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", LEAVES], cwd=folder, check=True, timeout=15)
