"""Which way messages go between two tasks: `training.transport`.

    auto    through a Unix socket and shared memory where both are on one host, else over gRPC
    local   the former, or a clear error
    grpc    the latter

Two tasks are on one host if the server's socket, whose random name it tells over gRPC, can be reached from here.
"""

import contextlib
from collections.abc import Sequence

import numpy as np

from dtrain.errors import PeerLostError, PeerRefusedError, SharedMemoryError
from dtrain.messages import Hello
from dtrain.variables import DTYPE_BYTES
from dtrain.wire import shared_memory
from dtrain.wire.channel import Channel
from dtrain.wire.client import GrpcChannel, local_name
from dtrain.wire.frames import Array
from dtrain.wire.local import LocalChannel
from dtrain.wire.packets import SMALL_BYTES
from dtrain.wire.shared_memory import shared_arrays


def connect(peer: str, address: str, hello: Hello, timeout_s: float, transport: str = "auto") -> Channel:
    """Open a connection to `peer` at `address`.

    Raises:
        WaitTimeoutError: nobody answers at the address within `timeout_s`.
        PeerRefusedError: the server does not want this task, or `transport` is ``local`` and there is no such way.
    """
    if transport == "grpc":
        return GrpcChannel(peer, address, hello, timeout_s)
    name = local_name(peer, address, hello, timeout_s)
    reason = shared_memory.shortage or ("" if name else f"{peer} offers no way for tasks on its host")
    if not reason:
        try:
            return LocalChannel(peer, name, hello)
        except PeerLostError as error:
            reason = str(error)
    if transport == "local":
        raise PeerRefusedError(f"transport: local cannot lead to {peer} at {address}: {reason}; use auto or grpc")
    return GrpcChannel(peer, address, hello, timeout_s)


def arrays_to_send(transport: str, described: Sequence[tuple[str, int]]) -> list[Array]:
    """New arrays of zeros, one of each (dtype, elements), for what is sent again and again.

    They lie in shared memory where that may save copies, so that a peer on this host reads what is written here.
    """
    if transport != "grpc" and sum(DTYPE_BYTES[dtype] * size for dtype, size in described) > SMALL_BYTES:
        with contextlib.suppress(SharedMemoryError):  # the way over gRPC is left
            return shared_arrays(described)
    return [np.zeros(size, dtype) for dtype, size in described]
