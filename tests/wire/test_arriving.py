"""Messages that are returned when they begin: however they are cut, what is waited for is there and nothing
else is waited for.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrain.errors import PeerLostError
from dtrain.messages import Pull
from dtrain.wire import frames
from dtrain.wire.arriving import Arriving
from dtrain.wire.frames import FrameDecoder, Limits, encode

PULL = Pull(generation=1, at_least=0, wait_s=5.0)


def test_a_part_is_there_when_its_last_byte_is():
    arriving = Arriving([16, 8])
    arriving.reached(18)
    arriving.wait(0, 16)
    arriving.wait(1, 2)
    arriving.broken(PeerLostError("lost ps:0"))
    arriving.wait(1, 1)
    for _ in range(2):
        with pytest.raises(PeerLostError, match="lost ps:0"):
            arriving.wait(1, 3)
        with pytest.raises(PeerLostError, match="lost ps:0"):
            arriving.wait()


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    chunk=st.integers(1, 64),
    small=st.integers(0, 64),
)
def test_any_message_in_any_chunks_is_there_as_far_as_it_has_come(sizes, chunk, small):
    blocks, reach = (
        [np.arange(1, size + 1, dtype=np.float32) for size in sizes],
        np.cumsum([0, *sizes]).tolist(),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "CHUNK_BYTES", 4 * chunk)
        patch.setattr(frames, "SMALL_BYTES", 4 * small)
        chunks = list(encode(PULL, blocks))
    decoder = FrameDecoder(Limits(1 << 26, 1 << 20))
    decoder.early = True
    first, *rest = (decoder.feed(each) for each in chunks)
    assert first.message == PULL
    assert rest == [None] * (len(chunks) - 1)
    assert decoder.pending_bytes == 0
    assert (first.arriving is None) == (len(chunks) == 1 or reach[-1] == 0)
    assert all(np.array_equal(found, block) for found, block in zip(first.blocks, blocks, strict=True))
    if first.arriving is not None:
        first.arriving.wait()


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4), cut=st.floats(0, 1))
def test_a_message_that_breaks_off_is_right_as_far_as_it_came(sizes, cut):
    blocks = [np.arange(1, size + 1, dtype=np.float32) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "CHUNK_BYTES", 16)
        patch.setattr(frames, "SMALL_BYTES", 0)
        chunks = list(encode(PULL, blocks))
    came = 1 + int(cut * (len(chunks) - 2))
    decoder = FrameDecoder(Limits(1 << 26, 1 << 20), offer=lambda _: into)
    decoder.early, into = True, [np.zeros_like(block) for block in blocks]
    frame, *_ = (decoder.feed(each) for each in chunks[:came])
    decoder.broken(PeerLostError("lost ps:0"))
    left = sum(map(len, chunks[1:came]))
    for number, block in enumerate(blocks):
        there = min(left, block.nbytes) // 4
        if there:
            frame.arriving.wait(number, 4 * there)
        assert np.array_equal(into[number][:there], block[:there])
        left -= min(left, frames.padded(block.nbytes))
    with pytest.raises(PeerLostError):
        frame.arriving.wait()
