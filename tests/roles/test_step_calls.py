"""Which host tells which other one of the calls within a step, and what it takes for none."""

import msgspec
import numpy as np
import pytest
from row_by_row import every_row

from dtrain.errors import PeerRefusedError
from dtrain.exchange.calls import GivenCall, ReplicaCall, WrittenCall
from dtrain.messages.replicas import StepCall
from dtrain.roles.collective.between_hosts.calls import CallsToSend, SaidCall, call_of


def said(part, step=0, number=0):
    return SaidCall(StepCall(step=step, part=part, number=number), b"")


def parts(calls, host, position=0):
    return [(each.head.step, each.head.part) for _, each in calls.after(host, position)]


def test_a_host_tells_the_leader_what_is_made_there_and_the_leader_tells_all_others():
    member, leader = CallsToSend(1), CallsToSend(0)
    member.follow(0)
    assert member.add(1, said(1))
    assert member.add(0, said(0))
    assert (parts(member, 0), parts(member, 2)) == ([(0, 1)], [])
    assert leader.add(1, said(1))
    assert not leader.add(2, said(1))
    assert leader.add(0, said(0))
    assert (parts(leader, 1), parts(leader, 2)) == ([(0, 0)], [(0, 1), (0, 0)])


def test_only_what_is_new_is_sent_and_all_of_it_again_where_another_host_leads():
    calls = CallsToSend(1)
    assert calls.follow(0)
    calls.add(1, said(1))
    ((position, _),) = calls.after(0, 0)
    assert parts(calls, 0, position) == []
    calls.add(0, said(0))
    assert not calls.follow(0)
    assert calls.follow(2)
    assert parts(calls, 2, position) == [(0, 1)]
    assert calls.follow(1)  # it leads: what the lost leader had told it goes to the others too
    assert parts(calls, 2) == [(0, 1), (0, 0)]


def test_the_calls_of_two_steps_are_kept():
    calls = CallsToSend(0)
    for step in range(4):
        calls.add(0, said(0, step))
    assert parts(calls, 1) == [(2, 0), (3, 0)]
    assert not calls.add(0, said(0, 1))


CALL = ReplicaCall("all_reduce", "SUM of *", "a.py:1")


def received(kinds, content):
    text = msgspec.msgpack.encode((CALL, kinds))
    head = len(text).to_bytes(8, "little") + text
    body = head + content
    return call_of(SaidCall(StepCall(step=0, part=0, number=0, nbytes=len(body)), body))


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
