"""TLS between tasks over real sockets: who is let in, what each error says, files that are replaced, a listener."""

import dataclasses
import threading
from pathlib import Path

import grpc
import msgspec
import numpy as np
import pytest
from security.recording import Recorder, free_port

from dtrain.cluster import ClusterSpec
from dtrain.cluster.spec import LeafNames
from dtrain.errors import PeerRefusedError, WaitTimeoutError
from dtrain.messages import Hello, Push
from dtrain.process.tls_material import TlsMaterial
from dtrain.wire import connecting
from dtrain.wire.channel import Answer
from dtrain.wire.frames import Limits
from dtrain.wire.grpc_channels import MEET, METHOD_SERVICE
from dtrain.wire.grpc_service import GrpcService
from dtrain.wire.handshake import refusal
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.security.tls import Certificate, CertificateFiles, Certificates, Tls
from dtrain_cli.certificates.authority import make_authority

RUN, SECRET = "digits-1", "a secret of this very run"
CLUSTER = ClusterSpec.from_lists(chief=["a:1"], worker=["a:2"], ps=["a:3", "a:4"])
PATTERN = np.frombuffer(b"this-is-a-gradient--" * 10000, np.float32).copy()
PATIENCE_S = 20.0
SHORT_S = 0.2
"""How long a test waits for a connection that must not be made."""
AUTHORITY, OTHER = make_authority(RUN), make_authority(RUN)
PUSH = Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="p")


class Echo:
    """Answers every message with itself."""

    answers_at_once = True

    def limits(self, hello):
        return Limits(1 << 20, 1 << 26)

    def refuse(self, hello):
        return refusal(hello_of("ps:0"), hello)

    def received(self, caller, frame):
        caller.send(frame.message, [block.copy() for block in frame.blocks])
        return Answer.ONE

    def disconnected(self, caller):
        pass


def hello_of(task: str) -> Hello:
    return Hello(run_id=RUN, cluster_hash=CLUSTER.hash, task=task)


def material(name: str, authority=AUTHORITY, days: int = 30, trusted: bytes = b"", **names) -> TlsMaterial:
    of = dataclasses.replace(LeafNames.of(RUN, name), **names)
    return msgspec.structs.replace(authority.issue(of, days), authorities=trusted or authority.certificate)


def with_tls(task: str, source: TlsMaterial | CertificateFiles | None) -> Credentials:
    """The credentials of a task, with this certificate."""
    made = Credentials.made(hello_of(task), SECRET)
    if source is None:
        return made
    return msgspec.structs.replace(made, tls=Tls(Certificates(source), CLUSTER, RUN, everywhere=True))


@pytest.fixture
def serve():
    services = []

    def serve(source, host="127.0.0.1") -> str:
        address = f"{host}:{free_port()}"
        credentials = with_tls("ps:0", source)
        services.append(GrpcService(Echo(), address, credentials, connections=8, share_port=False))
        return address

    yield serve
    for service in services:
        service.stop()


@pytest.fixture
def connect():
    channels = []

    def connect(task, source, address, timeout_s=PATIENCE_S, tell=lambda reason: None, peer="ps:0"):
        channels.append(connecting.connect(peer, address, with_tls(task, source), timeout_s, "grpc", tell))
        return channels[-1]

    yield connect
    for channel in channels:
        channel.close()


def echoed(channel) -> bool:
    channel.send(PUSH, [PATTERN])
    return bool((channel.receive().blocks[0] == PATTERN).all())


def test_tasks_with_certificates_of_the_run_talk(serve, connect):
    address = serve(material("ps-0"))
    assert echoed(connect("worker:0", material("worker-0"), address))
    assert echoed(connect("chief:0", material("chief-0"), address))


def why_not(connect, task, source, address, peer="ps:0") -> tuple[str, list[str]]:
    """The error of a connection that must not be made, and what was told while it was tried."""
    told: list[str | None] = []
    with pytest.raises(WaitTimeoutError) as caught:
        connect(task, source, address, SHORT_S, told.append, peer)
    return str(caught.value), [text for text in told if text]


def test_a_worker_s_key_is_no_chief_s(serve, connect):
    address = serve(material("ps-0"))
    channel = connect("chief:0", material("worker-0"), address)
    with pytest.raises(PeerRefusedError) as caught:
        echoed(channel)
    assert (
        "the certificate of chief:0 is that of dtrain://digits-1/worker/0, not of dtrain://digits-1/chief/0"
        in str(caught.value)
    )


def test_a_name_that_is_no_task_s_is_refused_with_a_sentence(serve, connect):
    address = serve(material("ps-0"))
    channel = connect("someone", material("worker-0"), address)
    with pytest.raises(PeerRefusedError, match=r"'someone' is not a task"):
        echoed(channel)


@pytest.mark.parametrize("name", ["ps-1", "worker-0"])
def test_a_task_takes_no_other_one_for_the_server_that_it_wants(serve, connect, name):
    address = serve(material(name))
    error, _ = why_not(connect, "worker:0", material("worker-0"), address)
    assert error.endswith("it is another task, or another host: its certificate is not that of ps-0.dtrain")


def test_a_plaintext_server_is_named_as_such_and_hears_nothing(serve, connect):
    address = serve(None)
    error, told = why_not(connect, "worker:0", material("worker-0"), address)
    assert f"ps:0 at {address}" in error
    assert error.endswith("it does not speak TLS, or not with this run's CA")
    assert set(told) == {"it does not speak TLS, or not with this run's CA"}


def test_a_plaintext_client_is_not_let_in_and_told_what_may_be_wrong(serve, connect, monkeypatch):
    monkeypatch.setattr("dtrain.wire.addresses.is_loopback", lambda address: False)
    address = serve(material("ps-0"))
    error, told = why_not(connect, "worker:0", None, address)
    assert error.endswith("it accepts connections and does not answer, or expects TLS: see --tls-cert")
    assert told


def test_a_server_of_another_authority_is_not_believed(serve, connect):
    address = serve(material("ps-0", OTHER))
    error, _ = why_not(connect, "worker:0", material("worker-0"), address)
    assert "it does not speak TLS, or not with this run's CA (unable to get local issuer" in error


def test_a_client_of_another_authority_is_told_that_its_certificate_is_not_accepted(serve, connect):
    address = serve(material("ps-0"))
    both = AUTHORITY.certificate + OTHER.certificate
    error, _ = why_not(connect, "worker:0", material("worker-0", OTHER, trusted=both), address)
    assert "it does not accept this task's certificate, which may be another CA's, or have expired" in error


def test_a_client_without_a_certificate_is_no_peer(serve):
    """A server demands a certificate: without one, any process on the network could be this client."""
    address = serve(material("ps-0"))
    options = (("grpc.ssl_target_name_override", "dtrain"),)
    with grpc.secure_channel(
        address, grpc.ssl_channel_credentials(AUTHORITY.certificate), options
    ) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"/{METHOD_SERVICE}/{MEET}")(b"", timeout=PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_with_a_user_s_own_authority_the_authority_and_the_secret_decide(serve, connect):
    own = {"hosts": ("dtrain",), "uri": "spiffe://example.org/ns/training/sa/any"}
    address = serve(material("any", **own))
    assert echoed(connect("chief:0", material("any", **own), address))
    error, _ = why_not(connect, "chief:0", material("any", OTHER, **own), address)
    assert "not with this run's CA" in error


def test_certificates_of_an_own_authority_may_name_hosts(serve, connect):
    own = {"hosts": ("localhost",), "uri": "https://example.org"}
    address = serve(material("any", **own), "localhost")
    assert echoed(connect("chief:0", material("any", **own), address))
    error, _ = why_not(connect, "chief:0", material("any", **own), address.replace("localhost", "127.0.0.1"))
    assert "its certificate is not that of 127.0.0.1" in error


def test_a_certificate_without_a_task_is_nothing_where_others_name_theirs(serve, connect):
    address = serve(material("ps-0"))
    channel = connect("worker:0", material("any", hosts=("dtrain", "x.dtrain"), uri="https://x"), address)
    with pytest.raises(PeerRefusedError, match=r"certificate of worker:0 is that of no task"):
        echoed(channel)


def test_a_worker_that_joins_has_a_certificate_for_any_such_worker_and_no_other(serve, connect):
    address = serve(material("ps-0"))
    assert echoed(connect("worker:7", material("worker-joined"), address))
    with pytest.raises(PeerRefusedError, match=r"worker:0 is that of dtrain://digits-1/worker/joined"):
        echoed(connect("worker:0", material("worker-joined"), address))


def put(folder: Path, found: TlsMaterial) -> CertificateFiles:
    files = CertificateFiles(folder / "svid_bundle.pem", folder / "svid.pem", folder / "svid_key.pem")
    for path, content in (
        (files.authorities, found.authorities),
        (files.certificate, found.certificate),
        (files.key, found.key),
    ):
        new = path.with_suffix(".new")
        new.write_bytes(content)
        new.chmod(0o600)
        new.replace(path)
    return files


def test_replaced_files_count_from_the_next_connection_on(serve, connect, tmp_path):
    """Server and client change to another authority, by way of files with both; what is open stays."""
    both = AUTHORITY.certificate + OTHER.certificate
    (tmp_path / "ps").mkdir()
    (tmp_path / "worker").mkdir()
    of_server, of_client = (
        put(tmp_path / folder, material(name, trusted=both))
        for folder, name in (("ps", "ps-0"), ("worker", "worker-0"))
    )
    address = serve(of_server)
    client = with_tls("worker:0", of_client)
    first = connecting.connect("ps:0", address, client, PATIENCE_S, "grpc")
    assert echoed(first)
    put(tmp_path / "ps", material("ps-0", OTHER, trusted=both))
    put(tmp_path / "worker", material("worker-0", OTHER))
    second = connecting.connect("ps:0", address, client, PATIENCE_S, "grpc")
    assert echoed(second)
    assert echoed(first)
    error, _ = why_not(connect, "worker:0", material("worker-0"), address)
    assert "not with this run's CA" in error
    first.close()
    second.close()


def test_an_expired_certificate_stops_new_connections_only(serve, connect, monkeypatch):
    source = material("ps-0")
    now: list[TlsMaterial] = [source]
    current = Certificates.current

    def as_of_now(self: Certificates) -> Certificate:
        found = current(self)
        return msgspec.structs.replace(found, material=now[0]) if found.material is source else found

    monkeypatch.setattr(Certificates, "current", as_of_now)
    address = serve(source)
    channel = connect("worker:0", material("worker-0"), address)
    now[0] = material("ps-0", days=0)
    error, _ = why_not(connect, "worker:0", material("worker-0"), address)
    assert error.endswith("its certificate has expired")
    assert echoed(channel)


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_listener_finds_no_secret_and_with_tls_no_tensor(serve, encrypted):
    address = serve(material("ps-0") if encrypted else None)
    with Recorder(address) as recorder:
        credentials = with_tls("worker:0", material("worker-0") if encrypted else None)
        channel = connecting.connect("ps:0", recorder.address, credentials, PATIENCE_S, "grpc")
        assert echoed(channel)
        channel.close()
    heard = recorder.heard()
    assert len(heard) > 2 * PATTERN.nbytes
    assert SECRET.encode() not in heard
    assert (b"this-is-a-gradient" in heard) is not encrypted
    assert (RUN.encode() in heard) is not encrypted


def test_threads_that_connect_at_once_share_the_certificate(serve, connect):
    address, source = serve(material("ps-0")), material("worker-0")
    fine: list[bool] = []
    threads = [
        threading.Thread(target=lambda: fine.append(echoed(connect("worker:0", source, address))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fine == [True] * 4
