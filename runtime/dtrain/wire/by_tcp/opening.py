"""The opening of a stream to another task's `Listener`."""

import socket
import time
from functools import partial

from dtrain.config import SimulateSection
from dtrain.errors import PeerGoneError, PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import Refusal
from dtrain.wire.by_tcp.greetings import Packets, packed
from dtrain.wire.by_tcp.stream import Outgoing
from dtrain.wire.handshake import last_proof, read_greeting
from dtrain.wire.own_thread import in_own_thread
from dtrain.wire.reaching import places_of, unresolved
from dtrain.wire.security.credentials import Credentials


def open_stream(
    peer: str,
    address: str,
    name: str,
    credentials: Credentials,
    timeout_s: float,
    simulate: SimulateSection | None = None,
) -> Outgoing:
    """Open a stream to a task; the call returns once it is let in.

    Args:
        peer: the task: ``worker:1``.
        address: of its listener.
        name: by which the peer knows the stream, at most 200 bytes.
        credentials: what this task proves itself with.
        timeout_s: how long all of it may take.
        simulate: faults of the run, of which a link between the two tasks may be one.

    Raises:
        PeerGoneError: no process listens there.
        PeerLostError: the connection broke, or there is no way there.
        WaitTimeoutError: the peer did not answer in time.
        PeerRefusedError: the process there has not proven that it is the peer, or does not let this task in.
    """
    connection = in_own_thread(
        partial(_opened, peer, address, name, credentials, time.monotonic() + timeout_s), "opening a stream"
    )
    fault = None if simulate is None else simulate.link(credentials.hello.task, peer)
    return Outgoing(peer, connection, fault)


def _opened(peer: str, address: str, name: str, credentials: Credentials, deadline: float) -> socket.socket:
    connection = None
    try:
        connection = _connected(address, deadline)
        if credentials.tls is not None and credentials.tls.covers(address):
            from dtrain.wire.by_tcp.encryption import client_end  # ssl: 1 MB and 10 ms

            host = address.rpartition(":")[0].strip("[]")
            connection = client_end(connection, credentials.tls, peer, host)
        _shake_hands(Packets(connection, deadline), connection, peer, address, name, credentials)
        return connection
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, TimeoutError):
            raise WaitTimeoutError(f"{peer} at {address} did not answer to a new stream in time") from None
        if isinstance(error, OSError):
            why = _why(address, error)
            kind = PeerGoneError if isinstance(error, ConnectionRefusedError) else PeerLostError
            raise kind(f"cannot open a stream to {peer} at {address}: {why}") from None
        raise


def _connected(address: str, deadline: float) -> socket.socket:
    places = places_of(address)
    for number, (family, place) in enumerate(places, 1):
        connection = socket.socket(family)
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connection.connect(place)
            return connection
        except OSError:
            connection.close()
            if number == len(places):
                raise
    raise AssertionError("a name that is found stands for at least one address")


def _shake_hands(
    packets: Packets, connection: socket.socket, peer: str, address: str, name: str, credentials: Credentials
) -> None:
    def ask(greeting: bytes) -> bytes:
        connection.sendall(packed(greeting))
        return packets.next()

    proof = last_proof(peer, f"{peer} at {address}", credentials, ask)
    connection.sendall(packed(proof) + packed(name.encode()))
    answer = read_greeting(packets.next())
    if isinstance(answer, Refusal):
        raise PeerRefusedError(f"{peer} at {address}: {answer.reason}")


def _why(address: str, error: OSError) -> str:
    return unresolved(address, error) if isinstance(error, socket.gaierror) else error.strerror or str(error)
