"""Shared memory of a fixed address range that takes pages only as they are needed, for what is usually small
and may become large.

Its size is sealed at the beginning. A writer takes pages before it writes to them: a machine without memory
then answers with an error, where the first write to a page would kill the process by SIGBUS.
"""

import contextlib
import fcntl
import mmap
import os
from typing import Self

from dtrain.errors import PeerRefusedError, SharedMemoryError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_STRIDE_BYTES = 64 * 1024
"""Pages are taken by so much at a time."""


class GrowingMemory(mmap.mmap):
    """One mapping, to be read and written.

    Attributes:
        fd: to be passed on; of every process that maps it, its own.
    """

    fd: int = -1

    @classmethod
    def make(cls, nbytes: int) -> Self:
        """Make new memory, zeros.

        Raises:
            SharedMemoryError: this process may not.
        """
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
        """Map the memory of another process of this user; the file descriptor is used up.

        Raises:
            PeerRefusedError: it may shrink, or is another user's.
            SharedMemoryError: there is no room to map it.
        """
        try:
            status = os.fstat(fd)
            try:
                seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            except OSError:  # a pipe or a file
                seals = 0
            if not seals & fcntl.F_SEAL_SHRINK or not status.st_size or status.st_uid != os.getuid():
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
        """Take the pages of these bytes.

        Raises:
            SharedMemoryError: the machine has not that much memory.
        """
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

    def __del__(self) -> None:
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)
