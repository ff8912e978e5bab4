"""One process that trains saves from another thread: every snapshot has as many batches done as steps are in
its weights.
"""

import sys
import threading

import numpy as np
import pytest

import dtrain as dt
from dtrain.roles.chief.machine import Cut
from dtrain.strategies.single import SingleStrategy

STEPS = 300


@pytest.fixture
def _hasty_threads():
    """Threads take turns at every chance."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hasty_threads")
def test_a_snapshot_never_has_a_batch_done_that_is_not_in_its_weights():
    strategy, found, ended = SingleStrategy(), [], threading.Event()
    with strategy.scope():
        model = dt.Sequential([dt.layers.Dense(1, use_bias=False, input_shape=(4,))])
        model.compile(dt.optimizers.SGD(0.01), "mse")

    def save():
        while not ended.is_set():
            if strategy.last is not None:
                [reply] = strategy.last.state.snapshot(Cut(1, 1), 0, 0)
                found.append((reply.state.version, reply.state.dealt))

    thread = threading.Thread(target=save)
    thread.start()
    model.fit(np.ones((STEPS, 4), np.float32), np.ones((STEPS, 1), np.float32), batch_size=1, verbose=0)
    ended.set()
    thread.join()
    assert len({version for version, _ in found}) > 1, "no snapshot was taken on the way"
    assert [version for version, dealt in found if dealt.next - len(dealt.due) != version] == []
