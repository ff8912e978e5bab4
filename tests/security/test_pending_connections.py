"""Connections that have proven nothing: who says what first gets what, and how few may wait, at every listener."""

import contextlib
import os
import socket
import time

import grpc
import msgspec
import pytest
from row_by_row import every_row
from security.recording import free_port

from dtrain.errors import PeerRefusedError
from dtrain.messages import Challenge, Hello, Proof, Proven, Pull, Refusal
from dtrain.process import acceptor
from dtrain.wire import grpc_service
from dtrain.wire.channel import Answer
from dtrain.wire.frames import Limits
from dtrain.wire.grpc_channels import HELLO_KEY, MEET, METHOD_SERVICE, TALK
from dtrain.wire.grpc_client import GrpcChannel
from dtrain.wire.grpc_service import GrpcService
from dtrain.wire.handshake import encode_greeting, last_proof, opening_of, read_greeting, refusal
from dtrain.wire.one_host import local
from dtrain.wire.one_host.local import LocalService
from dtrain.wire.security import proof
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.streams import Listener, Packets, packed

PATIENCE_S = 20.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
PULL = Pull(generation=1, at_least=0, wait_s=0.0)


def credentials(task, secret="dtrain1-" + "5a" * 32, run="run"):
    return Credentials.made(Hello(run_id=run, cluster_hash="hash", task=task), secret)


SERVER = credentials("ps:0")


class Echo:
    answers_at_once = True

    def limits(self, hello):
        return Limits(1 << 20, 1 << 20)

    def refuse(self, hello):
        return refusal(SERVER.hello, hello)

    def received(self, caller, frame):
        caller.send(frame.message)
        return Answer.ONE

    def disconnected(self, caller):
        pass


class Client:
    """A raw connection that says packets and tells what comes back, by the name of its message or the refusal."""

    def __init__(self, connection, form=bytes, packets=None):
        connection.settimeout(PATIENCE_S)
        self.connection, self._form, self._packets = connection, form, packets

    def ask(self, greeting):
        self.connection.sendall(self._form(greeting))
        return self._packets.next() if self._packets else self.connection.recv(1 << 16)

    def ended(self):
        """The other end has closed the connection."""
        with contextlib.suppress(ConnectionResetError):
            while self.connection.recv(1 << 16):
                pass
        return True


class GrpcClient:
    """The same over gRPC: the last proof goes to Talk."""

    def __init__(self, channel):
        self._channel, self._refused = channel, False

    def ask(self, greeting):
        said = read(greeting)
        last = isinstance(said, Proof) and said.hello is not None
        call = self._channel.stream_stream(f"/{METHOD_SERVICE}/{TALK if last else MEET}")
        try:
            answers = call(iter(()), metadata=((HELLO_KEY, greeting),), timeout=PATIENCE_S)
            return next(
                answers, encode_greeting(SERVER.hello)
            )  # Talk ends without a word, as its requests do
        except grpc.RpcError as error:
            self._refused = True
            return encode_greeting(Refusal(reason=error.details()))

    def ended(self):
        return self._refused


def read(greeting):
    with contextlib.suppress(PeerRefusedError):
        return read_greeting(greeting)


@contextlib.contextmanager
def grpc_address(connections=8):
    address = f"127.0.0.1:{free_port()}"
    service = GrpcService(Echo(), address, SERVER, connections=connections, share_port=False)
    yield address
    service.stop()


@contextlib.contextmanager
def over_grpc():
    with grpc_address() as address, grpc.insecure_channel(address) as channel:
        yield lambda: GrpcClient(channel)


@contextlib.contextmanager
def over_tcp():
    listener = Listener("127.0.0.1:1", SERVER, Echo().refuse, 8)

    def client():
        connection = socket.create_connection(listener.address.split(":"))
        return Client(connection, packed, Packets(connection))

    yield client
    listener.stop()


@contextlib.contextmanager
def on_one_host():
    service = LocalService(Echo(), SERVER)

    def client():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(b"\0" + service.name().encode())
        return Client(connection)

    yield client
    service.stop()


LISTENERS = {"gRPC": over_grpc, "TCP": over_tcp, "Unix": on_one_host}


def asked_by(own):
    """Go through the client's whole handshake; return the names of the server's answers, or its refusal."""

    def said(client):
        answers = []

        def ask(greeting):
            answers.append(read(answer := client.ask(greeting)))
            return answer

        with contextlib.suppress(PeerRefusedError):
            ask(last_proof("ps:0", "there", own, ask))
        return answers

    return said


def first(greeting):
    return lambda client: [read(client.ask(greeting))]


def wrong_proof(client):
    """An opening, and a proof of the right form."""
    opening = opening_of("worker:0")
    challenge = read(client.ask(encode_greeting(opening)))
    made = proof.answer(opening, "ps:0", challenge, lambda salt: b"k" * 32)
    return [challenge, read(client.ask(encode_greeting(made)))]


NO_HELLO = Refusal(reason="the connection did not open with a dtrain hello")
IS_STRANGER = Refusal(reason=proof.STRANGER)
OTHER_RUN = Refusal(reason="this is ps:0 of run run; worker:0 belongs to run another")
OPENING = encode_greeting(opening_of("worker:0"))
FIRST_SAID = {
    "garbage": (first(b"\xc1" * 40), [NO_HELLO]),
    "half a greeting": (first(OPENING[:-9]), [NO_HELLO]),
    "too much": (first(bytes(12_000)), [Refusal]),
    "a hello": (first(encode_greeting(SERVER.hello)), [IS_STRANGER]),
    "a wrong proof": (wrong_proof, [Challenge, IS_STRANGER]),
    "another secret": (asked_by(credentials("worker:0", "dtrain1-" + "5b" * 32)), [Challenge, IS_STRANGER]),
    "no secret": (asked_by(credentials("worker:0", None)), [Challenge, IS_STRANGER]),
    "another run": (asked_by(credentials("worker:0", run="another")), [Challenge, Proven, OTHER_RUN]),
    "a task of the run": (asked_by(credentials("worker:0")), [Challenge, Proven, Hello]),
}


@every_row("where", LISTENERS)
def test_who_says_what_first_gets_what(where, capfd):
    with LISTENERS[where]() as client:
        for what, (say, expected) in FIRST_SAID.items():
            one = client()
            answers = say(one)
            pairs = zip(answers, expected, strict=True)
            told = [type(each) if isinstance(wanted, type) else each for each, wanted in pairs]
            assert told == expected, what
            assert expected[-1] is Hello or one.ended(), what


def closed(connections):
    """Wait until the other end has closed each of them."""
    for each in connections:
        each.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionResetError):
            while each.recv(1 << 16):
                pass


def has_been_answered(connection):
    """Whether HTTP/2's settings have come before the connection was closed."""
    connection.settimeout(PATIENCE_S)
    with contextlib.suppress(ConnectionResetError):
        return bool(connection.recv(1 << 16))
    return False


def is_open(connection):
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while connection.recv(1 << 16):
            pass
        return False
    return True


@pytest.fixture
def limit(monkeypatch):
    """Changes the limits of a listener that is made afterwards."""

    def change(name, **limits):
        monkeypatch.setattr(acceptor, name, msgspec.structs.replace(getattr(acceptor, name), **limits))

    return change


def test_who_says_nothing_or_a_half_is_let_go_after_its_time_at_every_listener(limit):
    for name in ("STREAM_LIMITS", "ONE_HOST_LIMITS"):
        limit(name, wait_s=0.05)
    with contextlib.ExitStack() as open_until_now:
        listener = Listener("127.0.0.1:1", SERVER, Echo().refuse, 8)
        open_until_now.callback(listener.stop)
        service = LocalService(Echo(), SERVER)
        open_until_now.callback(service.stop)
        address = open_until_now.enter_context(grpc_address())
        connections = []
        for place, half in (
            (listener.address, packed(OPENING)[:9]),
            (address, PREFACE),
        ):
            for said in (b"", half):
                connections.append(open_until_now.enter_context(socket.create_connection(place.split(":"))))
                connections[-1].sendall(said)
        connections.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        open_until_now.enter_context(connections[-1]).connect(b"\0" + service.name().encode())
        closed(connections)


def test_another_user_s_connection_is_closed_before_it_says_anything(monkeypatch):
    monkeypatch.setattr(local, "peer_process", lambda connection: (1, os.getuid() + 1))
    with on_one_host() as client:
        assert client().ended()


def test_a_stranger_s_many_connections_push_out_its_own_and_no_other_s(limit):
    limit("STREAM_LIMITS", connections=4, wait_s=60.0)
    listener = Listener("127.0.0.1:1", SERVER, Echo().refuse, 8)
    place = ("127.0.0.1", int(listener.address.rpartition(":")[2]))
    slow = socket.create_connection(place, source_address=("127.0.0.2", 0))
    strangers = [socket.create_connection(place, source_address=("127.0.0.3", 0)) for _ in range(12)]
    closed(strangers[:9])
    assert all(map(is_open, strangers[9:]))
    client = Client(slow, packed, Packets(slow))
    last = last_proof("ps:0", "there", credentials("worker:0"), client.ask)
    assert isinstance(read(client.ask(last)), Hello)
    for each in (slow, *strangers):
        each.close()
    listener.stop()


def test_over_grpc_a_member_stays_and_a_task_gets_in_once_the_strangers_time_is_over(monkeypatch):
    few = msgspec.structs.replace(acceptor.GRPC_LIMITS, connections=2)
    monkeypatch.setattr(grpc_service, "GRPC_LIMITS", few)
    with grpc_address(connections=2) as address:
        member = GrpcChannel("ps:0", address, credentials("worker:0"), PATIENCE_S)
        assert echoed(member)
        strangers = [socket.create_connection(address.split(":")) for _ in range(9)]
        assert sum(map(has_been_answered, strangers)) == 3, "of four in all, one is the member's"
        begun = GrpcChannel("ps:0", address, credentials("worker:1"), PATIENCE_S)
        closed(strangers)
        assert echoed(begun)
        assert echoed(member)
        for each in (member, begun, *strangers):
            each.close()


def echoed(channel):
    channel.send(PULL)
    return channel.receive(deadline=time.monotonic() + PATIENCE_S).message == PULL
