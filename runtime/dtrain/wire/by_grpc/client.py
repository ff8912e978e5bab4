"""The client end of a gRPC connection: one long-lived stream of raw chunks to one server."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import msgspec

from dtrain.errors import PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import AnyMessage, Rows
from dtrain.wire.answers import next_of
from dtrain.wire.by_grpc.options import CLIENT, HELLO_KEY, MEET, METHOD_SERVICE, TALK
from dtrain.wire.channel import silent
from dtrain.wire.frames import Array, Frame, FrameDecoder, encode, encode_ahead
from dtrain.wire.own_thread import in_own_thread
from dtrain.wire.security.credentials import Credentials

_REFUSED = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
)
_LIMIT_BYTES = 1 << 40


class GrpcChannel:
    """A connection to `peer` (``ps:0``) at `address`; see `Channel`. Nothing is sent before the server is
    up.
    """

    def __init__(self, peer: str, address: str, credentials: Credentials, timeout_s: float) -> None:
        """Connect and shake hands.

        Raises:
            WaitTimeoutError: no process answers at the address within `timeout_s`.
        """
        self.peer = peer
        self.address = address
        self.bytes_sent = 0
        self.bytes_received = 0
        self._aborted: str | None = None
        self._ended = False
        self._tell_loss: Callable[[], None] = lambda: None
        self._into: Sequence[Array] = ()
        self._channel = in_own_thread(lambda: _open(peer, address, timeout_s), "connecting")
        self._requests: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        self._decoder = FrameDecoder(_LIMIT_BYTES, offer=self._offer)
        talk = self._channel.stream_stream(f"/{METHOD_SERVICE}/{TALK}")
        self._answers: queue.SimpleQueue[Frame | Exception] = queue.SimpleQueue()
        self._call: Any = talk(self._chunks(), metadata=_metadata(credentials))
        threading.Thread(target=self._read, name=f"answers of {peer}", daemon=True).start()

    def _chunks(self) -> Iterator[bytes]:
        while (chunks := self._requests.get()) is not None:
            for chunk in chunks:
                self.bytes_sent += len(chunk)
                yield chunk

    def _offer(self, message: AnyMessage) -> Sequence[Array]:
        """Rows, whose receiver offers nothing, may have the sizes of what was offered for values by
        chance.
        """
        return () if isinstance(message, Rows) else self._into

    def send(self, message: AnyMessage, blocks: Sequence[Array] = ()) -> None:
        """See `Channel.send`; the connection's own thread cuts the chunks, so this returns at once."""
        self._requests.put(encode(message, blocks))

    def ahead(self, block: Array, start: int, stop: int) -> None:
        """See `Streams.ahead`."""
        self._requests.put(encode_ahead(block, start, stop))

    def send_rest(self, message: AnyMessage, blocks: Sequence[Array], start: int) -> None:
        """See `Streams.send_rest`."""
        self._requests.put(encode(message, blocks, start))

    def receive(self, into: Sequence[Array] = (), deadline: float | None = None) -> Frame:
        """See `Channel.receive`; what has begun to come is waited for beyond the deadline."""
        frame = self._next_frame(into, deadline, early=False)
        if frame.arriving is not None:
            frame.arriving.wait()
        return frame

    def receive_early(self, into: Sequence[Array] = (), deadline: float | None = None) -> Frame:
        """See `Streams.receive_early`."""
        return self._next_frame(into, deadline, early=True)

    def _next_frame(self, into: Sequence[Array], deadline: float | None, *, early: bool) -> Frame:
        self._into = into
        self._decoder.early = early
        try:
            answer = next_of(self._answers, deadline)
        except queue.Empty:
            raise silent(self.peer) from None
        if isinstance(answer, Frame):
            return answer
        self._answers.put(answer)  # the next call hears it again
        raise self._explained(answer)

    def watch(self, lost: Callable[[], None]) -> None:
        """See `NoticesLoss.watch`."""
        self._tell_loss = lost
        if self._ended:
            lost()

    def _explained(self, error: Exception) -> Exception:
        if self._aborted:
            return PeerLostError(self._aborted)
        return _translated(error, self.peer, self.address) if isinstance(error, grpc.RpcError) else error

    def _read(self) -> None:
        """Take what comes. A thread of its own does it: SIGTERM's SystemExit inside gRPC's wait might leave a
        lock locked.
        """
        try:
            for chunk in self._call:
                self.bytes_received += len(chunk)
                if (frame := self._decoder.feed(chunk)) is not None:
                    self._answers.put(frame)
                    del frame
            raise PeerLostError(f"{self.peer} at {self.address} ended the connection")
        except Exception as error:  # it belongs to the thread that waits for the answer
            self._decoder.broken(self._explained(error))
            self._answers.put(error)
            self._ended = True
            self._tell_loss()

    def abort(self, reason: str) -> None:
        """See `Channel.abort`."""
        self._aborted = self._aborted or reason
        self._call.cancel()

    def close(self) -> None:
        """See `Channel.close`."""
        self._requests.put(None)
        self._channel.close()


def local_name(peer: str, address: str, credentials: Credentials, timeout_s: float) -> str:
    """Ask a server for its socket for tasks on the same host; empty if it has none.

    Raises:
        WaitTimeoutError: no process answers at the address within `timeout_s`.
        PeerRefusedError: the server does not want this task.
    """
    return in_own_thread(lambda: _meet(peer, address, credentials, timeout_s), "connecting")


def _meet(peer: str, address: str, credentials: Credentials, timeout_s: float) -> str:
    channel = grpc.insecure_channel(address, options=CLIENT)
    try:
        # The call itself waits for the server: closing a channel whose readiness was watched takes another
        # 0.2 s.
        meet = channel.unary_unary(f"/{METHOD_SERVICE}/{MEET}")
        name: bytes = meet(b"", metadata=_metadata(credentials), timeout=timeout_s, wait_for_ready=True)
        return name.decode()
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise WaitTimeoutError(
                f"{peer} at {address} did not accept a connection within {timeout_s:.3g} s"
            ) from None
        translated = _translated(error, peer, address)
        raise (
            translated if isinstance(translated, PeerRefusedError) else WaitTimeoutError(str(translated))
        ) from None
    finally:
        channel.close()


def _open(peer: str, address: str, timeout_s: float) -> grpc.Channel:
    channel = grpc.insecure_channel(address, options=CLIENT)
    try:
        grpc.channel_ready_future(channel).result(timeout=timeout_s)
    except grpc.FutureTimeoutError:
        channel.close()
        raise WaitTimeoutError(
            f"{peer} at {address} did not accept a connection within {timeout_s:.3g} s"
        ) from None
    except BaseException:
        channel.close()
        raise
    return channel


def _metadata(credentials: Credentials) -> tuple[tuple[str, bytes]]:
    return ((HELLO_KEY, msgspec.msgpack.encode(credentials.hello)),)


def _translated(error: grpc.RpcError, peer: str, address: str) -> PeerLostError | PeerRefusedError:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return PeerRefusedError(
            f"at {address}, where {peer} is expected, answers a server that is not dtrain's"
        )
    if code in _REFUSED:
        return PeerRefusedError(f"{peer} at {address}: {details}")
    return PeerLostError(f"lost {peer} at {address} ({code.name.lower()}: {details})")
