import ctypes
import resource
import subprocess
import sys

import numpy as np
import pytest

from dtrain.allocation import KEPT_BYTES, MAPPED_BYTES, keep_freed_memory


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is told")
def test_freed_memory_is_used_again_without_asking_the_kernel():
    keep_freed_memory()
    size = min(KEPT_BYTES // 4, MAPPED_BYTES // 2)

    def faults_of(messages: int) -> int:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for _ in range(messages):
            for block in [np.empty(size, np.uint8) for _ in range(3)]:
                block.fill(1)
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    faults_of(1)
    assert faults_of(20) < size // resource.getpagesize()  # fewer than the pages of a single block


HOLES = """
import ctypes

from dtrain.allocation import leave_no_holes


class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def free_between():
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Info
    return mallinfo().fordblks - mallinfo().keepcost


kept = [bytearray(1 + 977 * each % 20_000) for each in range(400)]
del kept[::2]
before = free_between()
leave_no_holes()
print(before, free_between())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="a newer glibc counts what is free")
def test_no_holes_are_left():
    run = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, timeout=60, check=True)
    before, after = map(int, run.stdout.split())
    assert after < before / 10
