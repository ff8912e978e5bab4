import resource
import sys

import numpy as np
import pytest

from dtrain.process.resources import KEPT_BYTES, MAPPED_BYTES, keep_freed_memory


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
    pages = 60 * size // resource.getpagesize()  # of all blocks of 20 messages
    assert faults_of(20) < pages // 10  # other tests may have cut the freed memory: a few blocks are new
