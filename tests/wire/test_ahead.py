"""Blocks whose end comes before their message: in any pieces, with anything in between, the message is the
same.
"""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrain.errors import PeerRefusedError
from dtrain.messages import Pull, Push
from dtrain.wire import frames
from dtrain.wire.frames import FrameDecoder, Limits, encode, encode_ahead

PUSH = Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="p")


def fed(decoder, chunks):
    """The frames that come of chunks."""
    return [frame for frame in map(decoder.feed, chunks) if frame is not None]


def pieces(block, cuts):
    """Its end in pieces, the last one first, down to the lowest cut."""
    places = sorted({*cuts, block.size}, reverse=True)
    return [(start, stop) for stop, start in pairwise(places)]


@given(
    size=st.integers(1, 60),
    cuts=st.lists(st.integers(0, 59), min_size=1, max_size=5),
    given_up=st.lists(st.integers(0, 59), max_size=3),
    rest=st.lists(st.integers(0, 9), max_size=2),
    between=st.booleans(),
)
def test_a_message_is_the_same_however_its_first_block_has_come(size, cuts, given_up, rest, between):
    block, more = np.arange(size, dtype=np.float32), [np.arange(each, dtype=np.int64) for each in rest]
    cuts = [cut % size for cut in cuts]
    decoder = FrameDecoder(Limits(1 << 26, 1 << 16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "CHUNK_BYTES", 32)
        patch.setattr(frames, "SMALL_BYTES", 24)
        for start, stop in pieces(block, [cut % size for cut in given_up]):
            assert fed(decoder, encode_ahead(-block, start, stop)) == []
        if between:
            [frame] = fed(decoder, encode(PUSH, [block, *more]))
            assert np.array_equal(frame.blocks[0], block)
        for start, stop in pieces(block, cuts):
            assert fed(decoder, encode_ahead(block, start, stop)) == []
            assert [
                frame.message for frame in fed(decoder, encode(Pull(generation=1, at_least=0, wait_s=5.0)))
            ] == [Pull(generation=1, at_least=0, wait_s=5.0)]
        chunks = list(encode(PUSH, [block, *more], min(cuts)))
    [frame] = fed(decoder, chunks)
    assert frame.message == PUSH
    assert all(np.array_equal(found, sent) for found, sent in zip(frame.blocks, [block, *more], strict=True))
    with pytest.raises(PeerRefusedError, match="a message that begins with"):
        fed(decoder, chunks)


@pytest.mark.parametrize("wrong", [(2, 3), (0, 2), (4, 6)])
def test_what_does_not_go_before_what_has_come_is_refused(wrong):
    block, decoder = np.arange(8, dtype=np.float32), FrameDecoder(Limits(1 << 26, 1 << 16))
    fed(decoder, encode_ahead(block, 5, 8))
    with pytest.raises(PeerRefusedError, match="where those before 5 are expected"):
        fed(decoder, encode_ahead(block, *wrong))


def test_a_block_ahead_is_no_larger_than_a_message_may_be():
    with pytest.raises(PeerRefusedError, match="a message of 400 bytes; at most 399"):
        fed(FrameDecoder(Limits(1 << 26, 399)), encode_ahead(np.zeros(100, np.float32), 90, 100))


def test_a_message_whose_block_has_not_come_is_refused():
    with pytest.raises(PeerRefusedError, match="where -1 elements are expected"):
        fed(FrameDecoder(Limits(1 << 26, 1 << 16)), encode(PUSH, [np.zeros(8, np.float32)], 4))


def test_what_is_too_long_when_it_begins_is_dropped_to_its_end_and_the_next_one_comes_whole():
    """The limit may grow while it comes, as that of a server that is given its variables; memory is not taken."""
    decoder = FrameDecoder(Limits(1 << 26, 100, 1 << 20))
    block, after = np.arange(100, dtype=np.float32), np.arange(20, dtype=np.float32)
    chunks = list(encode_ahead(np.zeros(1 << 18, np.float32), 1 << 17, 1 << 18))
    tracemalloc.start()
    assert fed(decoder, chunks) == []
    assert tracemalloc.get_traced_memory()[1] < 1 << 16
    tracemalloc.stop()
    assert fed(decoder, encode_ahead(block, 60, 100)) == []
    decoder.limits = Limits(1 << 26, 1 << 16)
    assert fed(decoder, encode_ahead(block, 40, 60)) == []
    [frame] = fed(decoder, encode(PUSH, [block, after], 40))
    assert (frame.message, list(frame.blocks)) == (PUSH, [])
    assert fed(decoder, encode_ahead(block, 70, 100)) == []
    [frame] = fed(decoder, encode(PUSH, [block, after], 70))
    assert [found.tolist() for found in frame.blocks] == [block.tolist(), after.tolist()]
