"""What a host takes for no call of another host."""

import msgspec
import numpy as np
import pytest
from row_by_row import every_row

from dtrain.errors import PeerRefusedError
from dtrain.exchange.calls import GivenCall, ReplicaCall, WrittenCall
from dtrain.roles.collective.calls_over_hosts import call_of

CALL = ReplicaCall("all_reduce", "SUM of *", "a.py:1")


def received(kinds, content):
    text = msgspec.msgpack.encode((CALL, kinds))
    head = len(text).to_bytes(8, "little") + text
    body = head + content
    return call_of(body)


@every_row(
    "kinds, content",
    [
        ([("|O", (1,))], b"12345678"),
        ([("<f4", (-1,))], b"1234"),
        ([("<f4", (2,))], b"1234"),
        ([("no dtype", (1,))], b""),
        ([("<f4",)], b""),
    ],
    ids=["objects", "a negative length", "too few bytes", "no dtype", "another form"],
)
def test_arrays_that_cannot_be_are_refused(kinds, content):
    with pytest.raises(PeerRefusedError, match="another host"):
        received(kinds, content)


def test_arrays_come_as_they_were_given():
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    written = WrittenCall.of(GivenCall(CALL, [given]))
    call = received(written.kinds, written.filled([given]).tobytes())
    assert (call.call, call.arrays[0].tolist()) == (CALL, given.tolist())
