"""The client end of a gRPC connection: one long-lived stream of raw chunks to one server."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from dtrain.errors import PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import AnyMessage, Rows
from dtrain.types import Array
from dtrain.wire.addresses import not_reached, silence
from dtrain.wire.channel import silent
from dtrain.wire.frames import UNKNOWN, Frame, FrameDecoder, encode
from dtrain.wire.grpc_channels import HELLO_KEY, LOCAL_KEY, MEET, METHOD_SERVICE, TALK, open_channel
from dtrain.wire.handshake import last_proof
from dtrain.wire.interruptible import in_own_thread, next_of
from dtrain.wire.security.credentials import Credentials

_REFUSED = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
)
_PAUSE_S = 0.05


class GrpcChannel:
    """A connection to `peer` (``ps:0``) at `address`. Nothing is sent before the server is up."""

    def __init__(self, peer: str, address: str, credentials: Credentials, timeout_s: float) -> None:
        """Connect and shake hands; a `WaitTimeoutError` says that no process answers, a `PeerRefusedError`
        that it is not this peer.
        """
        self.peer = peer
        self.address = address
        self.bytes_sent = 0
        self.bytes_received = 0
        self._aborted: str | None = None
        self._ended = False
        self._tell_loss: Callable[[], None] = lambda: None
        self._into: Sequence[Array] = ()
        self._channel, proof = in_own_thread(
            lambda: _open(peer, address, credentials, timeout_s), "connecting"
        )
        self._requests: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        self._decoder = FrameDecoder(UNKNOWN, offer=self._offer)
        talk = self._channel.stream_stream(f"/{METHOD_SERVICE}/{TALK}")
        self._answers: queue.SimpleQueue[Frame | Exception] = queue.SimpleQueue()
        self._admitted: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = talk(self._chunks(), metadata=((HELLO_KEY, proof),))
        threading.Thread(target=self._read, name=f"answers of {peer}", daemon=True).start()

    def _chunks(self) -> Iterator[bytes]:
        while (chunks := self._requests.get()) is not None:
            for chunk in chunks:
                self.bytes_sent += len(chunk)
                yield chunk

    def _offer(self, message: AnyMessage) -> Sequence[Array]:
        """Offer nothing for rows, which may by chance have the sizes of what was offered for values."""
        return () if isinstance(message, Rows) else self._into

    def send(self, message: AnyMessage, blocks: Sequence[Array] = ()) -> None:
        self._requests.put(encode(message, blocks))

    def receive(self, into: Sequence[Array] = (), deadline: float | None = None) -> Frame:
        self._into = into
        try:
            answer = next_of(self._answers, deadline)
        except queue.Empty:
            raise silent(self.peer) from None
        if isinstance(answer, Frame):
            return answer
        self._answers.put(answer)  # the next call hears it again
        raise self._explained(answer)

    def local_name(self, timeout_s: float) -> str:
        """Wait until this task is accepted; return the server's socket for its host, or "". Call it once."""
        try:
            name = next_of(self._admitted, time.monotonic() + timeout_s)
        except queue.Empty:
            raise silent(self.peer) from None
        if name is not None:
            return name.decode(errors="replace")
        try:
            self.receive((), time.monotonic() + timeout_s)
        except PeerLostError as error:
            raise WaitTimeoutError(str(error)) from None
        raise AssertionError("a server that has not let a task in says nothing to it")

    def watch(self, lost: Callable[[], None]) -> None:
        self._tell_loss = lost
        if self._ended:
            lost()

    def _explained(self, error: Exception) -> Exception:
        if self._aborted:
            return PeerLostError(self._aborted)
        return _translated(error, self.peer, self.address) if isinstance(error, grpc.RpcError) else error

    def _read(self) -> None:
        """Receive, in an own thread: SIGTERM's SystemExit inside gRPC's wait might leave a lock locked."""
        try:
            self._admitted.put(dict(self._call.initial_metadata()).get(LOCAL_KEY))
            for chunk in self._call:
                self.bytes_received += len(chunk)
                if (frame := self._decoder.feed(chunk)) is not None:
                    self._answers.put(frame)
                    del frame
            raise PeerLostError(f"{self.peer} at {self.address} ended the connection")
        except Exception as error:  # it belongs to the thread that waits for the answer
            self._answers.put(error)
            self._ended = True
            self._tell_loss()

    def abort(self, reason: str) -> None:
        self._aborted = self._aborted or reason
        self._call.cancel()

    def close(self) -> None:
        self._requests.put(None)
        self._channel.close()


def _open(peer: str, address: str, credentials: Credentials, timeout_s: float) -> tuple[grpc.Channel, bytes]:
    """Return a channel to a server that has proven itself, and what proves this task to it.

    The call itself waits for the server: closing a channel whose readiness was watched takes another 0.2 s.
    """
    channel = open_channel(peer, address, credentials.tls)
    deadline_s = time.monotonic() + timeout_s
    try:
        while True:
            try:
                return channel, _proof(channel, peer, address, credentials, deadline_s)
            except grpc.RpcError as error:
                reason = _translated(error, peer, address)
                if isinstance(reason, PeerRefusedError):
                    raise reason from None
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    tls = credentials.tls is not None and credentials.tls.covers(address)
                    raise not_reached(peer, address, timeout_s, silence(address, tls=tls)) from None
                if time.monotonic() + _PAUSE_S >= deadline_s:
                    raise WaitTimeoutError(str(reason)) from None
            time.sleep(_PAUSE_S)  # it is just ending, or has too many calls
    except BaseException:
        channel.close()
        raise


def _proof(
    channel: grpc.Channel, peer: str, address: str, credentials: Credentials, deadline_s: float
) -> bytes:
    meet = channel.unary_unary(f"/{METHOD_SERVICE}/{MEET}")

    def ask(greeting: bytes) -> bytes:
        answer: bytes = meet(
            b"",
            metadata=((HELLO_KEY, greeting),),
            timeout=max(0.0, deadline_s - time.monotonic()),
            wait_for_ready=True,
        )
        return answer

    return last_proof(peer, f"{peer} at {address}", credentials, ask)


def _translated(error: grpc.RpcError, peer: str, address: str) -> PeerLostError | PeerRefusedError:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return PeerRefusedError(
            f"at {address}, where {peer} is expected, answers a server that is not dtrain's"
        )
    if code in _REFUSED:
        return PeerRefusedError(f"{peer} at {address}: {details}")
    return PeerLostError(f"lost {peer} at {address} ({code.name.lower()}: {details})")
