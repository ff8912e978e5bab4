"""Why a server is not reached, and why one cannot listen: in words, for the person who wrote the address."""

import errno
import socket

import pytest

from dtrain.errors import SpecError, WaitTimeoutError
from dtrain.messages import Hello
from dtrain.wire import addresses, connecting
from dtrain.wire.grpc_service import GrpcService
from dtrain.wire.security.credentials import Credentials

WORKER = Credentials.made(Hello(run_id="run-1", cluster_hash="hash", task="worker:0"), "a secret of the run")


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed(listening):
    with socket.socket() as held:  # bound, so that no other process gets it, and never listening
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def names(monkeypatch):
    """What the name server says of `host-9`: set it to an address, or to an error."""
    asked, real = (
        {"host-9": socket.gaierror(socket.EAI_NONAME, "Name or service not known")},
        socket.getaddrinfo,
    )

    def getaddrinfo(host, port, *arguments, **options):
        answer = asked.get(host.decode(), host)
        if isinstance(answer, OSError):
            raise answer
        return real(answer, port, *arguments, **options)

    monkeypatch.setattr(addresses.socket, "getaddrinfo", getaddrinfo)
    return asked


def test_who_listens_is_reached_and_a_closed_port_refuses(listening, closed):
    assert addresses.obstacle(listening) is None
    assert addresses.obstacle(closed) == "refused: nothing listens there"


def test_a_name_that_cannot_be_resolved_does_not_read_like_a_closed_port(names):
    assert addresses.obstacle("host-9:1") == "no such name: host-9 (Name or service not known)"
    names["host-9"] = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert (
        addresses.obstacle("host-9:1")
        == "the name host-9 cannot be looked up now (Temporary failure in name resolution)"
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EHOSTUNREACH, "No route to host"), "no route to it (No route to host)"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "no route to it (Network is unreachable)"),
        (TimeoutError("timed out"), "no answer"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), "Cannot assign requested address"),
    ],
)
def test_other_obstacles_are_named(monkeypatch, error, said):
    class Unreachable(socket.socket):
        def connect(self, place):
            raise error

    monkeypatch.setattr(addresses.socket, "socket", Unreachable)
    assert addresses.obstacle("10.0.0.9:1") == said


@pytest.mark.parametrize("transport", ["auto", "local", "grpc"])
def test_who_connects_is_told_the_reason_and_finds_it_in_the_error(closed, transport):
    told = []
    with pytest.raises(
        WaitTimeoutError,
        match=rf"ps:1 at {closed} did not accept a connection within 0\.05 s: refused: nothing",
    ):
        connecting.connect("ps:1", closed, WORKER, 0.05, transport, told.append)
    assert set(told) == {"refused: nothing listens there"}


def test_a_name_is_looked_up_again_until_the_wait_is_over(names):
    told = []

    def tell(reason):
        told.append(reason)
        names["host-9"] = "127.0.0.1"

    addresses.wait_for_name("host-9:1", 20.0, tell)
    assert told == ["no such name: host-9 (Name or service not known)", None]


def test_a_server_whose_own_name_never_comes_says_how_long_it_has_looked(names):
    with pytest.raises(
        SpecError, match=r"cannot listen at host-9:1: no such name: host-9 .*; looked for 0\.05 s \(wait"
    ):
        addresses.wait_for_name("host-9:1", 0.05, lambda reason: None)


def test_an_address_that_is_taken_or_not_ours_is_an_error_with_the_remedy(listening, capfd):
    for address, said in (
        (listening, "another process listens there; end it, or give this task another address"),
        (
            "192.0.2.1:50000",
            (
                "this machine does not have that address; start the task where it belongs, or correct the "
                "address"
            ),
        ),
    ):
        with pytest.raises(SpecError, match=f"^cannot listen at {address}: {said}$"):
            GrpcService(None, address, WORKER, connections=1, share_port=False)
    assert capfd.readouterr().err == "", "gRPC has nothing to add"
