"""The serving end over gRPC: one thread a connection, and large messages one at a time.

A connection's thread reads a message, hands it to the handler and then waits for the answer, so a wait costs
no slot of a fixed pool: there are as many threads as connections.

A gradient that is being received and an answer that is being sent are each a copy of the server's variables.
Where answers are given at once (asynchronous training), one of each is allowed: the next one waits while its
bytes stay at the sender, held back by flow control. When nothing has moved for `STALL_S`, the next one goes
on: a stalled peer may cost memory, never progress.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import grpc
import msgspec

from dtrain.errors import PeerRefusedError, SpecError
from dtrain.messages import AnyMessage, Hello
from dtrain.process.acceptor import GRPC_LIMITS
from dtrain.types import Array
from dtrain.wire.addresses import listening_obstacle
from dtrain.wire.channel import Answer, Handler
from dtrain.wire.frames import SMALL_BYTES, FrameDecoder, Payload, encode
from dtrain.wire.grpc_channels import (
    HELLO_KEY,
    LOCAL_KEY,
    MEET,
    METHOD_SERVICE,
    SERVER,
    TALK,
    add_port,
    names_of,
)
from dtrain.wire.handshake import ServerHandshake, encode_greeting
from dtrain.wire.interruptible import in_own_thread
from dtrain.wire.security.credentials import Credentials

T = TypeVar("T")
_STRANGERS = 8
"""Threads beside those of the connected tasks, for calls that are answered or refused at once."""
_CALLS_WAITING = 256
"""Calls that may wait for such a thread; more are turned away, and a task asks again."""


class GrpcCaller:
    """One connection, which may have `heard` nothing yet. Large blocks are read until they have been sent."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.heard = False
        self.reading: Sequence[Array] = ()
        self.outbox: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()

    def has_read(self) -> None:
        self.reading = ()

    def send(self, message: AnyMessage, blocks: Sequence[Array] = (), payload: Payload | None = None) -> None:
        chunks = encode(message, blocks, payload)
        if sum(block.nbytes for block in blocks) > SMALL_BYTES:
            self.reading = blocks
            self.outbox.put(chunks)
        else:
            self.outbox.put(iter(list(chunks)))

    def hang_up(self) -> None:
        self.outbox.put(None)


class ConnectionThreads(Executor):
    """At most so many threads, for which the end of the program does not wait, other than for those of a
    `ThreadPoolExecutor`: they wait for peers, and what is registered with `atexit` ends them.
    """

    def __init__(self, threads: int) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._left = threads

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call `fn` in a thread that is idle, or in a new one while there are fewer than at most; gRPC's own
        thread alone calls this.
        """
        future: Future[T] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        self._calls.put(call)
        if not self._idle.acquire(blocking=False) and self._left:
            self._left -= 1
            threading.Thread(target=self._work, name="connection", daemon=True).start()
        return future

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            self._idle.release()
        self._calls.put(None)

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let every thread end after its call."""
        self._calls.put(None)


class GrpcService:
    """Serves one handler at one address until `stop`."""

    def __init__(
        self,
        handler: Handler,
        address: str,
        credentials: Credentials,
        *,
        connections: int,
        share_port: bool,
        local_name: Callable[[], str] = str,
    ) -> None:
        """Bind the address and start, with a thread for each of `connections`; raise a `SpecError` if that
        fails. The launcher may hold the port, so that it is to be shared.
        """
        # of gRPC nothing could be heard but that it failed
        if not share_port and (why := listening_obstacle(address)):
            raise SpecError(f"cannot listen at {address}: {why}")
        self._handler = handler
        self._handshake = ServerHandshake(credentials, handler.refuse)
        self._places = threading.BoundedSemaphore(connections)
        self._local_name = local_name
        self._traffic = Traffic()
        self._pool = ConnectionThreads(connections + _STRANGERS)
        options = (
            *SERVER,
            ("grpc.so_reuseport", int(share_port)),
            ("grpc.max_allowed_incoming_connections", connections + GRPC_LIMITS.connections),
        )
        calls = connections + _STRANGERS + _CALLS_WAITING
        self._server = grpc.server(self._pool, options=options, maximum_concurrent_rpcs=calls)
        methods = {
            TALK: grpc.stream_stream_rpc_method_handler(self._talk),
            MEET: grpc.stream_unary_rpc_method_handler(self._meet),
        }
        self._server.add_registered_method_handlers(METHOD_SERVICE, methods)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(METHOD_SERVICE, methods),)
        )
        if not add_port(self._server, address, credentials.tls):
            raise SpecError(f"cannot listen at {address}: gRPC cannot bind it")
        self._server.start()

    def stop(self) -> None:
        in_own_thread(self._stop, "stopping")

    def _stop(self) -> None:
        self._server.stop(grace=None).wait(timeout=5.0)
        self._pool.shutdown()

    def _meet(self, _unread: Iterator[bytes], context: Any) -> bytes:
        """Answer an opening, or a first proof, without reading the request: a stranger's may never end."""
        try:
            return encode_greeting(self._handshake.answer(_said(context), context.peer()))
        except PeerRefusedError as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise

    def _talk(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Serve a connection. Nothing of it is read before its client has proven itself."""
        try:
            caller = GrpcCaller(self._handshake.admit(_said(context), context.peer(), names_of(context)))
        except PeerRefusedError as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise
        if not self._places.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many connections")
        try:
            yield from self._served(caller, requests, context)
        finally:
            self._places.release()

    def _served(self, caller: GrpcCaller, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        if not context.add_callback(caller.hang_up):
            return
        try:
            context.send_initial_metadata(((LOCAL_KEY, self._local_name().encode()),))
            yield from self._answers(caller, requests)
        except PeerRefusedError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except grpc.RpcError:
            return  # the client is gone; `disconnected` below is all that follows from it
        finally:
            caller.has_read()
            if caller.heard:
                self._handler.disconnected(caller)

    def _answers(self, caller: GrpcCaller, requests: Iterator[bytes]) -> Iterator[bytes]:
        decoder = FrameDecoder(self._handler.limits(caller.hello))
        traffic = self._traffic
        receiving, sending = TransferTurn(traffic, traffic.receiving), TransferTurn(traffic, traffic.sending)
        try:
            for chunk in requests:
                caller.heard = True
                decoder.limits = self._handler.limits(caller.hello)
                frame = decoder.feed(chunk)
                if decoder.pending_bytes >= LARGE_BYTES and self._handler.answers_at_once:
                    receiving.acquire()
                receiving.moved()
                if frame is None:
                    continue
                if receiving.taken:
                    sending.acquire()
                answer = self._handler.received(caller, frame)
                del frame
                receiving.give_back()
                if caller.outbox.empty():
                    sending.give_back()  # it is answered later; others may be before
                if answer is Answer.NONE:
                    continue
                while (chunks := caller.outbox.get()) is not None:
                    for part in chunks:
                        yield part
                        sending.moved()
                    caller.has_read()
                    if answer is Answer.ONE:
                        break
                else:
                    return
                sending.give_back()
        finally:
            receiving.give_back()
            sending.give_back()


def _said(context: Any) -> bytes:
    said: bytes = dict(context.invocation_metadata()).get(HELLO_KEY, b"")
    return said


LARGE_BYTES = 1024 * 1024
STALL_S = 1.0


class Traffic(msgspec.Struct):
    """The locks of the connections that have large transfers now, and the chunks that they have `moved`."""

    receiving: threading.Lock = msgspec.field(default_factory=threading.Lock)
    sending: threading.Lock = msgspec.field(default_factory=threading.Lock)
    moved: int = 0


class TransferTurn:
    """The right to be the one large transfer in one direction, or to have waited long enough for it
    (`taken`).
    """

    def __init__(self, traffic: Traffic, lock: threading.Lock) -> None:
        self._traffic = traffic
        self._lock = lock
        self._held = False
        self.taken = False

    def acquire(self) -> None:
        """Wait for the turn as long as something moves; taking it twice is taking it once."""
        moved = -1
        while not self.taken:
            stalled, moved = moved == self._traffic.moved, self._traffic.moved
            self._held = not stalled and self._lock.acquire(timeout=STALL_S)
            self.taken = self._held or stalled

    def moved(self) -> None:
        self._traffic.moved += self._held

    def give_back(self) -> None:
        if self._held:
            self._lock.release()
        self._held = self.taken = False
