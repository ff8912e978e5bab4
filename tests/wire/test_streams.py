"""Streams of bytes between tasks, over real sockets: who is let in, what each wait says, and the bytes."""

import contextlib
import socket
import struct
import threading
import time

import msgspec
import numpy as np
import pytest
from launching import wait_until

from dtrain.cluster import ClusterSpec
from dtrain.cluster.spec import LeafNames
from dtrain.config import LinkFault, SimulateSection
from dtrain.errors import PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import PROTOCOL_VERSION, Hello, Opening, Refusal
from dtrain.process import acceptor
from dtrain.wire.handshake import encode_greeting, last_proof, read_greeting, refusal
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.security.proof import STRANGER
from dtrain.wire.security.tls import Certificates, Tls
from dtrain.wire.streams import Listener, Packets, open_stream, packed
from dtrain_cli.certificates.authority import make_authority

RUN, SECRET = "digits-1", "a secret of this very run"
CLUSTER = ClusterSpec.from_lists(chief=["127.0.0.1:1"], worker=["127.0.0.1:2", "127.0.0.1:3"])
PATIENCE_S = 20.0
SHORT_S = 0.05
"""How long a test waits for what does not come."""
AUTHORITY, OTHER = make_authority(RUN), make_authority(RUN)


def credentials(task, secret=SECRET, run=RUN, authority=None, named=None):
    made = Credentials.made(Hello(run_id=run, cluster_hash=CLUSTER.hash, task=task), secret)
    if authority is None:
        return made
    material = authority.issue(LeafNames.of(RUN, (named or task).replace(":", "-")), 30)
    return msgspec.structs.replace(made, tls=Tls(Certificates(material), CLUSTER, RUN, everywhere=True))


def soon():
    return time.monotonic() + PATIENCE_S


@pytest.fixture
def listen():
    listeners = []

    def listen(own=None, refuse=None, streams=8):
        own = own or credentials("worker:0")
        refuse = refuse or (lambda hello: refusal(own.hello, hello))
        listeners.append(Listener("127.0.0.1:9", own, refuse, streams))
        return listeners[-1]

    yield listen
    for each in listeners:
        each.stop()


@pytest.fixture
def pair(listen):
    """Opens a stream from worker:1 to worker:0; both ends of it."""
    closing = []

    def pair(own=None, theirs=None, simulate=None, name="sum"):
        listener = listen(own)
        out = open_stream(
            "worker:0", listener.address, name, theirs or credentials("worker:1"), PATIENCE_S, simulate
        )
        come = listener.accept("worker:1", name, soon())
        closing.extend([out, come])
        return out, come

    yield pair
    for each in closing:
        each.close()


def send_for_ever(stream):
    while True:
        stream.send(np.zeros(1 << 20))
        stream.flush(soon())


def received(stream, like):
    into = np.empty_like(like)
    stream.receive(into, soon())
    return into


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "TLS"])
def test_arrays_arrive_in_their_order_with_their_bytes(pair, tls):
    authority = AUTHORITY if tls else None
    out, come = pair(
        credentials("worker:0", authority=authority), credentials("worker:1", authority=authority)
    )
    rng = np.random.default_rng(0)
    blocks = [
        rng.normal(size=1_000_000).astype(np.float32),
        np.empty(0, np.float64),
        rng.integers(-5, 5, 7),
        rng.normal(size=300_001).astype(np.float16),
    ]
    for block in blocks:
        out.send(block)
    for block in blocks:
        assert received(come, block).tobytes() == block.tobytes()
    out.flush(soon())
    assert out.bytes_sent == come.bytes_received == sum(block.nbytes for block in blocks)


def test_small_arrays_keep_their_place_among_large_ones_that_wait(pair):
    """A small one leaves at once where nothing waits before it, as far as the connection takes it."""
    out, come = pair()
    sizes = (3, 8 << 20, 5, 60_000, *[1000] * 2000, 8 << 20, 1)
    blocks = [np.full(size, number % 251, np.uint8) for number, size in enumerate(sizes)]
    for block in blocks:
        out.send(block)
    for block in blocks:
        assert received(come, block).tobytes() == block.tobytes()
    out.flush(soon())
    many = [np.full(60_000, number, np.uint8) for number in range(200)]  # more than the connection takes
    for block in many:
        out.send(block)
    for block in many:
        assert received(come, block).tobytes() == block.tobytes()


def test_streams_of_one_task_are_told_apart_by_name(listen):
    listener = listen()
    own = credentials("worker:1")
    streams = {name: open_stream("worker:0", listener.address, name, own, PATIENCE_S) for name in ("a", "b")}
    for number, (name, stream) in enumerate(streams.items()):
        stream.send(np.array([number]))
        come = listener.accept("worker:1", name, soon())
        assert received(come, np.zeros(1, np.int64)) == [number]
        come.close()
        stream.close()


def test_of_two_streams_of_one_name_the_later_one_is_taken(listen):
    """Which of two handshakes ends first is chance: each is seen at its other end before anything follows."""
    listener, streams, come = listen(), [], None
    for _ in range(2):
        own = credentials("worker:1")
        streams.append(open_stream("worker:0", listener.address, "sum", own, PATIENCE_S))
        before = come
        wait_until(
            lambda before=before: listener._open.get(("worker:1", "sum")) not in (None, before),
            "the handshake",
        )
        come = listener._open["worker:1", "sum"]
    first, later = streams
    later.send(np.array([7]))
    come = listener.accept("worker:1", "sum", soon())
    assert received(come, np.zeros(1, np.int64)) == [7]
    for stream in (first, later, come):
        stream.close()


def test_streams_that_nobody_takes_are_few(listen):
    listener = listen(streams=2)
    opened = [
        open_stream("worker:0", listener.address, name, credentials("worker:1"), PATIENCE_S) for name in "abc"
    ]
    # Once the third one is there, the first one is dropped.
    taken = [listener.accept("worker:1", name, soon()) for name in "cb"]
    with pytest.raises(WaitTimeoutError, match="worker:1 has not opened its stream 'a' in time"):
        listener.accept("worker:1", "a", time.monotonic() + SHORT_S)
    for stream in (*opened, *taken):
        stream.close()


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (credentials("worker:1", secret="another secret"), STRANGER),
        (
            credentials("worker:1", run="digits-2"),
            "this is worker:0 of run digits-1; worker:1 belongs to run digits-2",
        ),
    ],
    ids=["another secret", "another run"],
)
def test_what_is_no_task_of_the_run_is_refused(listen, theirs, said):
    with pytest.raises(PeerRefusedError, match=said):
        open_stream("worker:0", listen().address, "sum", theirs, PATIENCE_S)


def test_a_task_that_may_not_open_streams_is_told_why(listen):
    listener = listen(refuse=lambda hello: f"{hello.task} trains nothing")
    with pytest.raises(PeerRefusedError, match="evaluator:0 trains nothing"):
        open_stream("worker:0", listener.address, "sum", credentials("evaluator:0"), PATIENCE_S)


def test_a_process_at_a_peers_address_that_is_not_the_peer_learns_no_more_than_a_task(listen):
    with pytest.raises(PeerRefusedError, match=STRANGER):
        open_stream("worker:2", listen().address, "sum", credentials("worker:1"), PATIENCE_S)


@pytest.mark.parametrize(
    ("authority", "named"),
    [(None, None), (OTHER, None), (AUTHORITY, "chief:0")],
    ids=["none", "other", "chief's"],
)
def test_with_tls_a_certificate_of_the_task_is_needed(listen, authority, named):
    listener = listen(credentials("worker:0", authority=AUTHORITY))
    theirs = credentials("worker:1", authority=authority, named=named)
    with pytest.raises((PeerRefusedError, PeerLostError, WaitTimeoutError)):
        open_stream("worker:0", listener.address, "sum", theirs, 2.0)
    with pytest.raises(WaitTimeoutError):
        listener.accept("worker:1", "sum", time.monotonic() + SHORT_S)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<H", 65535),
        packed(b"\x93\x01\x02\x03"),
        packed(encode_greeting(Refusal(reason="no"))),
    ],
)
def test_what_is_no_greeting_hears_one_sentence_and_is_let_go(listen, said):
    with socket.create_connection(listen().address.split(":")) as stranger:
        stranger.settimeout(PATIENCE_S)
        stranger.sendall(said)
        answer = read_greeting(Packets(stranger).next())
        assert answer.reason in (STRANGER, "the connection did not open with a dtrain hello")
        with contextlib.suppress(ConnectionResetError):  # it has said more than was read
            assert stranger.recv(1) == b""


def test_a_task_of_another_version_hears_the_version(listen):
    with socket.create_connection(listen().address.split(":")) as stranger:
        stranger.settimeout(PATIENCE_S)
        opening = msgspec.structs.replace(
            Opening(task="worker:1", nonce=b"n" * 32), version=PROTOCOL_VERSION + 1
        )
        stranger.sendall(packed(encode_greeting(opening)))
        assert read_greeting(Packets(stranger).next()).version == PROTOCOL_VERSION


def test_a_proof_is_good_once(listen):
    own, listener = credentials("worker:1"), listen()
    place = listener.address.split(":")
    with socket.create_connection(place) as first, socket.create_connection(place) as second:
        proofs = []
        for connection in (first, second):
            connection.settimeout(PATIENCE_S)
            packets = Packets(connection)

            def ask(greeting, connection=connection, packets=packets):
                connection.sendall(packed(greeting))
                return packets.next()

            proofs.append(last_proof("worker:0", "worker:0", own, ask))
            answer = read_greeting(ask(proofs[0]))
        assert answer.reason == STRANGER


def test_connections_that_say_nothing_keep_no_task_out(listen, pair, monkeypatch):
    monkeypatch.setattr(
        acceptor, "STREAM_LIMITS", msgspec.structs.replace(acceptor.STREAM_LIMITS, connections=4, wait_s=60.0)
    )
    listener = listen()
    silent = [socket.create_connection(listener.address.split(":")) for _ in range(12)]
    stream = open_stream("worker:0", listener.address, "sum", credentials("worker:1"), PATIENCE_S)
    stream.close()
    for each in silent[:4]:
        each.settimeout(PATIENCE_S)
        assert each.recv(1) == b""
    for each in silent:
        each.close()


def test_a_wait_for_bytes_ends_at_its_deadline_and_says_for_whom(pair):
    out, come = pair()
    out.send(np.zeros(3, np.int64))
    with pytest.raises(WaitTimeoutError, match="worker:1 has not sent 8 of 32 bytes in time"):
        come.receive(np.empty(4, np.int64), time.monotonic() + SHORT_S)


def test_a_peer_that_takes_nothing_ends_the_wait_of_its_sender(pair):
    out, _ = pair()
    out.send(np.zeros(64 << 20, np.uint8))
    with pytest.raises(WaitTimeoutError, match="worker:0 has not taken what was sent to it in time"):
        out.flush(time.monotonic() + SHORT_S)


def test_the_end_of_a_peer_ends_the_waits_for_it(pair):
    out, come = pair()
    out.close()
    with pytest.raises(PeerLostError, match=r"lost the stream of worker:1 \(it has ended the connection\)"):
        come.receive(np.empty(1), soon())
    with pytest.raises(PeerLostError):
        out.send(np.empty(1))


def test_a_sender_hears_of_its_peers_end(pair):
    out, come = pair()
    come.close()
    with pytest.raises(PeerLostError, match="lost the stream of worker:0"):
        send_for_ever(out)


def test_another_thread_ends_a_wait_with_a_reason(pair):
    _, come = pair()
    timer = threading.Timer(SHORT_S, come.abort, ["worker:2 is lost"])
    timer.start()
    with pytest.raises(PeerLostError, match="worker:2 is lost"):
        come.receive(np.empty(1), soon())
    timer.join()


def test_where_nothing_listens_the_error_says_so(listen):
    listener = listen()
    listener.stop()
    with pytest.raises(
        PeerLostError, match=f"cannot open a stream to worker:0 at {listener.address}: Connection refused"
    ):
        open_stream("worker:0", listener.address, "sum", credentials("worker:1"), PATIENCE_S)


def test_a_listener_that_stops_ends_the_waits_for_streams(listen):
    listener = listen()
    timer = threading.Timer(SHORT_S, listener.stop)
    timer.start()
    with pytest.raises(PeerLostError, match="the streams of worker:1 are no longer waited for"):
        listener.accept("worker:1", "sum", soon())
    timer.join()


def test_a_simulated_link_holds_bytes_back(pair):
    fault = LinkFault(between=("worker:0", "worker:1"), latency_ms=60, bandwidth_mbit_s=80)
    out, come = pair(simulate=SimulateSection(network=(fault,)))
    begun = time.monotonic()
    out.send(np.zeros(400_000, np.uint8))
    received(come, np.empty(400_000, np.uint8))
    assert time.monotonic() - begun >= 0.1, "40 ms for the bytes and 60 ms on the way"


def test_a_listener_on_every_interface_is_reached_by_both_families():
    own = credentials("worker:0")
    listener = Listener("127.0.0.1:9", own, lambda hello: None, 8, bind="[::]:9")
    stream = open_stream("worker:0", listener.address, "sum", credentials("worker:1"), PATIENCE_S)
    stream.send(np.array([5]))
    come = listener.accept("worker:1", "sum", soon())
    assert received(come, np.zeros(1, np.int64)) == [5]
    stream.close()
    come.close()
    listener.stop()
