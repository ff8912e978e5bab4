"""Strangers at a server's doors: they cost little, learn nothing, and keep no task out. docs/design/trust.md."""

import contextlib
import os
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import msgspec
import pytest
from msgspec.structs import replace

from dtrain.errors import PeerRefusedError
from dtrain.messages import PROTOCOL_VERSION, Hello, Opening, Pull
from dtrain.process import acceptor
from dtrain.wire.channel import Answer
from dtrain.wire.connecting import connect
from dtrain.wire.frames import Limits
from dtrain.wire.grpc_channels import HELLO_KEY, MEET, METHOD_SERVICE, TALK
from dtrain.wire.grpc_client import GrpcChannel
from dtrain.wire.grpc_service import GrpcService
from dtrain.wire.handshake import ServerHandshake, encode_greeting, last_proof, refusal
from dtrain.wire.one_host.local import LocalChannel, LocalService
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.security.proof import STRANGER

SECRET = "the secret of this very run"
RUN, HASH = "run-7a5be1", "c1a5bad0"
TIMEOUT_S = 20.0
PULL = Pull(generation=1, at_least=0, wait_s=0.0)


def credentials(task, secret=SECRET, run=RUN):
    return Credentials.made(Hello(run_id=run, cluster_hash=HASH, task=task), secret)


class Echo:
    answers_at_once = True

    def limits(self, hello):
        return Limits(1 << 20, 1 << 26)

    def refuse(self, hello):
        return refusal(credentials("ps:0").hello, hello)

    def received(self, caller, frame):
        caller.send(frame.message, frame.blocks)
        return Answer.ONE

    def disconnected(self, caller):
        pass


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def local():
    service = LocalService(Echo(), credentials("ps:0"))
    yield service
    service.stop()


@pytest.fixture
def address(local):
    address = free_address()
    service = GrpcService(
        Echo(), address, credentials("ps:0"), connections=8, share_port=False, local_name=local.name
    )
    yield address
    service.stop()


@pytest.fixture
def raw(address):
    options = (("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
    with grpc.insecure_channel(address, options) as channel:
        yield channel


def works(address, transport="grpc"):
    """A task of the run gets in, and is answered."""
    channel = connect("ps:0", address, credentials("worker:0"), TIMEOUT_S, transport)
    channel.send(PULL)
    assert channel.receive(deadline=time.monotonic() + TIMEOUT_S).message == PULL
    channel.close()


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("method", [MEET, TALK])
def test_a_big_body_is_never_read(address, raw, method):
    works(address)
    before = resident_bytes()
    body = bytes(64 << 20)
    call = raw.unary_unary(f"/{METHOD_SERVICE}/{method}")
    with pytest.raises(grpc.RpcError):
        call(body, timeout=TIMEOUT_S)
    del body
    assert resident_bytes() - before < 80 << 20, "the sender's own copy, and no more"
    works(address)


def test_calls_that_never_end_are_ended_and_keep_no_task_out(address):
    def half():
        threading.Event().wait(TIMEOUT_S)
        yield b""

    channels = [grpc.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),)) for _ in range(30)]
    calls = [
        channel.stream_unary(f"/{METHOD_SERVICE}/{method}").future(half())
        for channel in channels
        for method in (MEET, TALK)
    ]
    works(address)
    for call in calls:
        assert call.exception(TIMEOUT_S) is not None, "the server has ended it"
    for channel in channels:
        channel.close()


def test_openings_without_a_proof_keep_no_task_out(address, raw):
    meet = raw.unary_unary(f"/{METHOD_SERVICE}/{MEET}")
    opening = encode_greeting(Opening(task="worker:0", nonce=b"n" * 32))
    for _ in range(300):
        meet(b"", metadata=((HELLO_KEY, opening),), timeout=TIMEOUT_S)
    works(address)


@pytest.mark.parametrize("method", [MEET, TALK])
@pytest.mark.parametrize(
    "said",
    [
        b"",
        msgspec.msgpack.encode(["Hello", PROTOCOL_VERSION, RUN, HASH, "worker:0"]),
        msgspec.msgpack.encode(
            ["Proof", PROTOCOL_VERSION, ["Hello", 6, RUN, HASH, "worker:0"], b"", b"", b"", b""]
        ),
        msgspec.msgpack.encode(["Hello", 1, "x", "y", "worker:0"]),
        msgspec.msgpack.encode(["Refusal", "let me in"]),
        os.urandom(200),
    ],
)
def test_what_a_stranger_asks_tells_it_nothing(raw, method, said, capfd):
    call = raw.unary_unary(f"/{METHOD_SERVICE}/{method}")
    with pytest.raises(grpc.RpcError) as refused:
        call(b"", metadata=((HELLO_KEY, said),), timeout=TIMEOUT_S)
    told = f"{refused.value.details()} {refused.value.trailing_metadata()} {refused.value.initial_metadata()}"
    assert not re.search(f"{RUN}|{HASH}|{SECRET}|ps:0", told)


def test_the_server_s_own_log_has_the_details_in_few_lines(address, raw, capfd):
    call = raw.unary_unary(f"/{METHOD_SERVICE}/{TALK}")
    for _ in range(50):
        with contextlib.suppress(grpc.RpcError):
            call(b"", metadata=((HELLO_KEY, encode_greeting(Opening(task="x", nonce=b""))),))
    log = capfd.readouterr().err
    assert log.count("\n") == 1
    assert re.search(
        r"^dtrain: refused a connection from ipv4:127\.0\.0\.1:\d+: it has proven nothing$", log, re.M
    )


def test_a_stranger_writes_neither_escapes_nor_lines_nor_much_into_the_log_of_a_run_without_a_secret(capfd):
    door = ServerHandshake(credentials("ps:0", None), Echo().refuse)
    own = credentials("worker:0", None, "\x1b]0;OWNED\x07\ndtrain: worker:0 has joined" + "x" * 3000)

    def ask(greeting):
        return encode_greeting(door.answer(greeting, "ipv4:1.2.3.4:5"))

    said = last_proof("ps:0", "", own, ask)
    with pytest.raises(PeerRefusedError, match=f"^{STRANGER}$"):
        door.admit(said, "ipv4:1.2.3.4:5")
    log = capfd.readouterr().err
    assert "belongs to run \\x1b]0;OWNED\\x07\\ndtrain" in log
    assert log.count("\n") == 1
    assert "\x1b" not in log
    assert len(log) < 500


@pytest.mark.parametrize("transport", ["grpc", "local"])
@pytest.mark.parametrize("secret", [None, "the secret of another run"])
def test_a_task_with_another_secret_hears_one_sentence(address, transport, secret):
    with pytest.raises(PeerRefusedError) as refused:
        connect("ps:0", address, credentials("worker:0", secret), TIMEOUT_S, transport)
    assert str(refused.value) == f"ps:0 at {address}: {STRANGER}"


def test_without_a_secret_the_run_is_not_told_either(address):
    service_address = free_address()
    service = GrpcService(Echo(), service_address, credentials("ps:0", None), connections=8, share_port=False)
    channel = GrpcChannel("ps:0", service_address, credentials("worker:0", None, "another"), TIMEOUT_S)
    with pytest.raises(PeerRefusedError) as refused:
        channel.receive(deadline=time.monotonic() + TIMEOUT_S)
    channel.close()
    service.stop()
    assert str(refused.value) == f"ps:0 at {service_address}: {STRANGER}"


def test_connections_to_the_socket_that_say_nothing_keep_no_task_out(address, local, monkeypatch):
    monkeypatch.setattr(
        acceptor, "ONE_HOST_LIMITS", replace(acceptor.ONE_HOST_LIMITS, connections=4, wait_s=60.0)
    )
    mute = []
    for _ in range(40):
        mute.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        mute[-1].connect(b"\0" + local.name().encode())
    threads = threading.active_count()
    works(address, "local")
    assert threading.active_count() <= threads + 1
    for end in mute[:-4]:
        end.settimeout(TIMEOUT_S)
        assert end.recv(1) == b"", "the oldest have to go"
    for end in mute:
        end.close()


def test_a_connection_that_says_nothing_ends_after_its_time(monkeypatch):
    monkeypatch.setattr(acceptor, "ONE_HOST_LIMITS", replace(acceptor.ONE_HOST_LIMITS, wait_s=0.05))
    service = LocalService(Echo(), credentials("ps:0"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
        mute.settimeout(TIMEOUT_S)
        mute.connect(b"\0" + service.name().encode())
        assert mute.recv(1) == b""
    service.stop()


class Rogue:
    """A gRPC server at a server's address, which keeps all that it hears, and answers as it likes."""

    def __init__(self, answer):
        self.heard = []
        self._answer = answer
        self._pool = ThreadPoolExecutor(4)
        self._server = grpc.server(self._pool)
        methods = {
            MEET: grpc.unary_unary_rpc_method_handler(self._meet),
            TALK: grpc.stream_stream_rpc_method_handler(self._talk),
        }
        handler = grpc.method_handlers_generic_handler(METHOD_SERVICE, methods)
        self._server.add_generic_rpc_handlers((handler,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _meet(self, request, context):
        self.heard.append((request, dict(context.invocation_metadata())[HELLO_KEY]))
        return self._answer(self.heard[-1][1])

    def _talk(self, requests, context):
        self.heard.append(dict(context.invocation_metadata())[HELLO_KEY])
        yield from requests

    def stop(self):
        self._server.stop(None)
        self._pool.shutdown()


def test_a_rogue_at_a_server_s_address_gets_no_secret_and_cannot_pass_for_it(address, raw):
    def relayed(said):
        """Ask the real server, and change one bit of its proof: the best that a rogue without the key can do."""
        answer = raw.unary_unary(f"/{METHOD_SERVICE}/{MEET}")(b"", metadata=((HELLO_KEY, said),))
        proven = msgspec.msgpack.decode(said)[0] == "Proof"
        return answer[:-1] + bytes([answer[-1] ^ 1]) if proven else answer

    def of_its_own(said):
        if msgspec.msgpack.decode(said)[0] == "Proof":
            return msgspec.msgpack.encode(["Proven", b"p" * 32])
        return msgspec.msgpack.encode(["Challenge", PROTOCOL_VERSION, b"s" * 16, b"n" * 40])

    def its_own_proof(said):
        """Send the client's proof back."""
        told = msgspec.msgpack.decode(said)
        return msgspec.msgpack.encode(["Proven", told[-1]]) if told[0] == "Proof" else of_its_own(said)

    longest = 0
    for answer in (
        relayed,
        of_its_own,
        its_own_proof,
        lambda said: b"",
        lambda said: bytes(1 << 20),
        lambda said: said,
    ):
        rogue = Rogue(answer)
        try:
            with pytest.raises(PeerRefusedError, match="ps:0 at 127"):
                GrpcChannel("ps:0", rogue.address, credentials("worker:0"), TIMEOUT_S)
            requests, said = zip(*rogue.heard, strict=True)
        finally:
            rogue.stop()
        assert not any(requests)
        opening, *proofs = map(msgspec.msgpack.decode, said)
        assert [opening[0], opening[2]] == ["Opening", "worker:0"], "a name and a nonce, and nothing more"
        assert len(opening) == 4
        for proof in proofs:
            assert [proof[0], proof[2], proof[6]] == ["Proof", "worker:0", None], "its hello comes later"
        assert RUN.encode() not in b"".join(said)
        assert HASH.encode() not in b"".join(said)
        longest = max(longest, len(said))
    assert longest == 2, "a proof was asked for, and nothing was said after it"


def test_the_secret_is_on_no_wire(address):
    """A recording proxy between a task and its server."""
    recorded = bytearray()
    host, port = address.split(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends = []

        def pass_on(source, target):
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    recorded.extend(data)
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        def relay():
            near, _ = listener.accept()
            far = socket.create_connection((host, int(port)))
            ends.extend((near, far))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=pass_on, args=pair, daemon=True).start()

        thread = threading.Thread(target=relay)
        thread.start()
        channel = GrpcChannel(
            "ps:0", f"127.0.0.1:{listener.getsockname()[1]}", credentials("worker:0"), TIMEOUT_S
        )
        channel.send(PULL)
        channel.receive(deadline=time.monotonic() + TIMEOUT_S)
        channel.close()
        thread.join(TIMEOUT_S)
        for end in ends:
            end.close()
    assert RUN.encode() in recorded, "the proxy sees what is sent in clear"
    assert SECRET.encode() not in recorded
    for length in range(8, len(SECRET)):
        assert SECRET[:length].encode() not in recorded


def test_a_user_who_guesses_learns_nothing_from_the_socket_s_name():
    names = set()
    for secret in (SECRET, "letmein123letmein", None):
        service = LocalService(Echo(), credentials("ps:0", secret))
        names.add(re.sub("^dtrain-[0-9a-f]{32}$", "a name", service.name()))
        service.stop()
    assert names == {"a name"}


def test_a_socket_of_another_user_is_not_spoken_to(monkeypatch, local):
    from dtrain.wire.one_host import local as client

    monkeypatch.setattr(client, "peer_process", lambda connection: (1, os.getuid() + 1))
    with pytest.raises(PeerRefusedError, match="belongs to another user"):
        LocalChannel("ps:0", local.name(), credentials("worker:0"))
