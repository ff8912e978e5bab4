"""Memory for messages comes from memory that is there already.

Left to itself, glibc gives a message's memory back to the kernel when the message is done, and the next message faults the same
pages in again, one by one: 500 faults in a step that moves 2.7 MB, an eighth of its CPU time and more of its wall time. And each
thread has a heap of its own, in which it keeps the memory of its last answer: a server of 80 MB of variables with two clients holds
340-380 MB at most with one heap for all, 650-680 without.
"""

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h

KEPT_BYTES = 64 * 1024 * 1024
"""At most so much free memory stays with an arena: the chunks of a message of 32 MB are there for the next one. With 16 MiB a
server takes 38 ms of CPU to hear one over gRPC and send it back, with 64 it takes 22."""
MAPPED_BYTES = 8 * 1024 * 1024
"""From this size on an array is mapped and unmapped by itself: a large server holds no memory that it does not use."""
HEAPS = 1

_HOLES = (*(1 << n for n in range(16, 10, -1)), *range(1032, 8, -16))
"""Sizes with which holes of any size are filled, in bytes, from the largest on; small chunks are kept by exact size."""
_MOST_FILLED_BYTES = 4 * 1024 * 1024


@cache
def keep_freed_memory() -> None:
    """Tell this process's allocator, once, before its second thread allocates. Another C library than glibc is left alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_ARENA_MAX, HEAPS)


def leave_no_holes() -> None:
    """Fill the free places between what is allocated, for good, and give the free memory behind it back to the kernel.

    For a process that is about to be forked. Its children would write their first objects into those places, and each gets a
    page of its own for every page that it writes to: 0.3 MB of an idle worker.
    """
    keep_freed_memory()
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        return
    malloc, free = libc.malloc, libc.free
    malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    behind = malloc(8 * _HOLES[0])
    free(behind)
    left = _MOST_FILLED_BYTES
    for size in _HOLES:
        while (place := malloc(size)) and place < behind and left > 0:
            left -= size
        free(place)
    libc.malloc_trim(0)
