"""What a member tells other hosts of the calls of a part that was computed elsewhere before, and what it takes of them."""

from types import SimpleNamespace

import numpy as np
import pytest

from dtrain.exchange.calls import GivenCall, ReplicaCall, WrittenCall
from dtrain.messages.rounds import MemberSeat, PartCall
from dtrain.roles.collective.calls import CallLog, CallMemory
from dtrain.roles.collective.over_hosts import EARLY_BYTES, HostLedger, OtherHosts, OverHosts
from dtrain.state.batch_cut import Dealt

PARTS, PART, ROUND = 2, 1, 5
SEATS = {
    each: MemberSeat(number=each, rank=each, task=f"worker:{each}", host=f"host {each}") for each in range(3)
}


class Host:
    """Member 0 alone at its host, with the memory of calls, what it sends, and whom it refuses."""

    def __init__(self):
        self.memory = CallMemory.make(2 * PARTS)
        self.log = CallLog(self.memory, PARTS)
        self.log.begin(ROUND)
        self.sent, self.refused, self.said = [], [], []
        self.member = SimpleNamespace(
            dealt=Dealt(PARTS),
            seats=SEATS,
            members=SEATS,
            new=frozenset(),
            number=0,
            leads_in=0,
            probed=(),
            round=ROUND,
            is_begun=lambda number: True,
        )
        streams = SimpleNamespace(
            know=lambda seat: None,
            want=lambda numbers: None,
            connection=lambda number: 1,
            send_now=lambda number, message: self.sent.append((number, message)) or True,
            refuse=self.refused.append,
        )
        ledger = HostLedger(lambda: -1, dict, lambda position: None, lambda entries, whole: None)
        ways = OtherHosts(lambda seat: None, lambda welcomed: None, lambda: None, self.said.append)
        self.over = OverHosts(self.member, streams, ledger, self.memory, None, ways)
        self.over.know()

    @property
    def kept_bytes(self):
        return sum(early.nbytes for early in self.over._early.values())

    def hears(self, sender, *calls):
        for call in calls:
            self.over.take(sender, call)
        self.over.look()


def given(number):
    call = ReplicaCall("all_reduce", f"call {number}", "a.py:1")
    return GivenCall(call, [np.full(3, number, np.float32)])


def body_of(number):
    written = WrittenCall.of(given(number))
    return written.head + written.filled(given(number).arrays).tobytes()


def call(of_round=ROUND, part=PART, number=0, **changed):
    return PartCall(round=of_round, part=part, number=number, **{"body": body_of(number), **changed})


def told(log_by_others, log_here):
    """Return the (number, examples) that member 0 tells each other host of its part."""
    host = Host()
    others = CallLog(host.memory, PARTS, of_others=True)
    others.begin(ROUND)
    for log, write in ((others, log_by_others), (host.log, log_here)):
        write(log)
    host.over.computes(PART, ROUND)
    host.over.tell()
    host.over.tell()  # what was told is not told again
    return [(number, call.number, call.examples) for number, call in host.sent]


def test_the_end_of_a_part_is_told_after_the_calls_that_this_member_has_made_and_not_after_those_of_another_host():
    """The other host may have ended before all others had its calls: a part that ends early would raise in them."""

    def whole(log):
        log.give(PART, 0, given(0))
        log.give(PART, 1, given(1))
        log.end(PART, 4)

    def first(log):
        log.give(PART, 0, given(0))

    assert told(whole, first) == [(1, 0, -1), (2, 0, -1)]
    assert told(whole, whole) == [(1, 0, -1), (1, 1, -1), (1, 2, 1), (2, 0, -1), (2, 1, -1), (2, 2, 1)]


@pytest.mark.parametrize("caller", ["here", "there"])
def test_the_end_of_a_part_without_calls_is_told_once_another_part_has_made_one(caller):
    """Most programs make none, and would send a message for each part to each other host at every step."""
    host = Host()
    host.over.computes(PART, ROUND)
    host.log.end(PART, 4)
    host.over.tell()
    assert host.sent == []
    if caller == "here":
        host.log.give(0, 0, given(0))
    else:
        host.hears(1, call(part=0))
    host.over.tell()
    assert [(number, told.part, told.examples) for number, told in host.sent] == [(1, PART, 1), (2, PART, 1)]


def test_the_end_of_a_part_without_examples_is_told_at_once():
    """It never makes calls, and its member may be gone when another part makes its first one."""
    assert told(lambda log: None, lambda log: log.end(PART, 0)) == [(1, 0, 0), (2, 0, 0)]


WRONG = {
    "no such part": call(part=PARTS),
    "a part below 0": call(part=-1),
    "no call": call(body=b"\x05\x00\x00\x00nonsense"),
    "arrays of another length": call(body=body_of(0)[:-4]),
    "an earlier call than the first": call(number=-1),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_member_that_tells_what_no_member_does_is_refused_by_name_and_others_are_heard(wrong):
    host = Host()
    host.hears(1, wrong)
    assert host.refused == [1]
    assert "worker:1" in host.said[0]
    host.hears(2, call(part=0))
    assert (host.log.made(0), host.log.made(PART)) == (1, 0)


def test_a_member_is_named_once_however_often_it_is_refused():
    host = Host()
    for _ in range(3):
        host.hears(1, WRONG["no such part"])
    assert host.refused == [1, 1, 1]
    assert len(host.said) == 1


def test_of_the_calls_of_later_rounds_only_those_of_the_newest_one_are_kept_and_taken_when_it_comes():
    """Calls of a round are made when all before it are over: nobody waits for theirs."""
    host = Host()
    for of_round in range(ROUND + 1, ROUND + 1000):
        host.hears(1, call(of_round), call(of_round, number=1))
    assert host.kept_bytes < 2000
    host.member.round = ROUND + 999
    host.log.begin(host.member.round)
    host.over.look()
    assert host.log.made(PART) == 2
    assert host.kept_bytes == 0


def test_a_member_that_tells_more_of_a_later_round_than_is_kept_is_heard_again_on_a_new_stream():
    host = Host()
    large = WrittenCall.of(GivenCall(given(0).call, [np.zeros(EARLY_BYTES // 8, np.float32)]))
    body = large.head + bytes(large.nbytes)
    host.hears(1, call(ROUND + 1, body=body), call(ROUND + 1, number=1, body=body))
    assert host.refused == [1]
    assert host.kept_bytes == 0
