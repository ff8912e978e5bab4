"""Memory that processes of one host share: of a fixed size, or with pages only as they are needed.

A memfd is filled when it is made (else the first write to a page that the machine has not got would kill by
SIGBUS) and sealed against shrinking (else its maker could do the same to its reader). Its file descriptor
travels over a Unix socket.

Its size is sealed at the beginning. A writer takes pages before it writes to them: a machine without memory
then answers with an error, where the first write to a page would kill the process by SIGBUS.
"""

import contextlib
import fcntl
import mmap
import os
import sys
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Self

import numpy as np

from dtrain.errors import PeerRefusedError, SharedMemoryError
from dtrain.types import Array

shortage: str | None = None
"""Why this process shares no memory any more: once it could not, so that its peers and it speak over gRPC
from then on.
"""

_ALIGNED_BYTES = 64
_BLOCK_BYTES = 512
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class _Mapping(mmap.mmap):
    """Memory with its file descriptor, which is closed with it; -1: there is none."""

    fd: int = -1

    def __del__(self) -> None:
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)


def _sealed(fd: int) -> os.stat_result | None:
    """Return the status of memory that cannot shrink; None of anything else, such as a pipe or a file."""
    status = os.fstat(fd)
    with contextlib.suppress(OSError):  # one peer's fault is no shortage
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK and status.st_size:
            return status
    return None


class SharedMemory(_Mapping):
    """One mapping; it lasts as long as an array is a view of it. `fd` is of memory made by this process."""

    @classmethod
    def make(cls, nbytes: int) -> Self:
        fd = -1
        try:
            fd = os.memfd_create("dtrain", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.posix_fallocate(fd, 0, max(nbytes, 1))
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            memory = cls(fd, max(nbytes, 1), flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise _short(
                f"no {nbytes} bytes of memory to share with tasks on this host: {error.strerror}"
            ) from None
        memory.fd = fd
        return memory

    @classmethod
    def received(cls, fd: int, *, writable: bool = False) -> Self:
        """Map another process's memory, to be read, or to be written by both; the file descriptor is used up.
        Raises a `PeerRefusedError` for memory that may shrink, has holes, or is another user's and was to
        be written.
        """
        try:
            if (status := _sealed(fd)) is None:
                raise PeerRefusedError("what was to be shared memory may shrink; the peer is not dtrain")
            if status.st_blocks * _BLOCK_BYTES < status.st_size:  # mapping holes would take memory here
                raise PeerRefusedError("what was to be shared memory has holes; the peer is not dtrain")
            if writable and status.st_uid != os.getuid():
                raise PeerRefusedError(
                    "the memory to be shared belongs to another user; the peer is not dtrain"
                )
            access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
            return cls(fd, status.st_size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=access)
        except OSError as error:
            raise _short(f"cannot map memory of a task on this host: {error.strerror}") from None
        finally:
            os.close(fd)

    @cached_property
    def address(self) -> int:
        return address(np.frombuffer(self, np.uint8))


def _short(reason: str) -> SharedMemoryError:
    global shortage
    if shortage is None:
        print(f"dtrain: {reason}; large tensors go over gRPC from now on", file=sys.stderr, flush=True)  # noqa: T201
    shortage = reason
    return SharedMemoryError(reason)


def shared_bytes(nbytes: int) -> Array:
    """Return new shared memory as bytes, zeros, whose views are sent uncopied."""
    return np.frombuffer(SharedMemory.make(nbytes), np.uint8)


def shared_arrays(described: Sequence[tuple[str, int]]) -> list[Array]:
    sizes = [np.dtype(dtype).itemsize * size for dtype, size in described]
    starts = list(accumulate([nbytes + -nbytes % _ALIGNED_BYTES for nbytes in sizes], initial=0))
    memory = shared_bytes(starts.pop())
    return [
        memory[start : start + nbytes].view(dtype)
        for start, nbytes, (dtype, _) in zip(starts, sizes, described, strict=True)
    ]


def memory_of(array: Array) -> SharedMemory | None:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, SharedMemory) and base.fd >= 0 else None


def address(array: Array) -> int:
    start: int = array.__array_interface__["data"][0]
    return start


_STRIDE_BYTES = 64 * 1024
"""Pages are taken by so much at a time."""


class GrowingMemory(_Mapping):
    """One mapping, to be read and written; every process that maps it has its own `fd`."""

    @classmethod
    def make(cls, nbytes: int) -> Self:
        fd = -1
        try:
            fd = os.memfd_create("dtrain-ledger", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls._over(fd, nbytes)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise SharedMemoryError(f"no memory to share with tasks on this host: {error.strerror}") from None

    @classmethod
    def received(cls, fd: int) -> Self:
        try:
            status = _sealed(fd)
            if status is None or status.st_uid != os.getuid():
                raise PeerRefusedError(
                    "what was to be shared memory may shrink, or is another user's; the peer is not dtrain"
                )
            return cls._over(fd, status.st_size)
        except OSError as error:
            os.close(fd)
            raise SharedMemoryError(f"cannot map memory of a task on this host: {error.strerror}") from None
        except PeerRefusedError:
            os.close(fd)
            raise

    @classmethod
    def _over(cls, fd: int, nbytes: int) -> Self:
        memory = cls(fd, nbytes, flags=mmap.MAP_SHARED)
        memory.fd = fd
        memory._taken = set()
        return memory

    _taken: set[int]

    def need(self, start: int, stop: int) -> None:
        """Take the pages of these bytes; raise a `SharedMemoryError` if the machine has not that much."""
        strides = range(start // _STRIDE_BYTES, -(-stop // _STRIDE_BYTES))
        for stride in (each for each in strides if each not in self._taken):
            begin = stride * _STRIDE_BYTES
            try:
                os.posix_fallocate(self.fd, begin, min(_STRIDE_BYTES, len(self) - begin))
            except OSError as error:
                raise SharedMemoryError(
                    f"no memory to share with tasks on this host: {error.strerror}; end others that use it"
                ) from None
            self._taken.add(stride)
