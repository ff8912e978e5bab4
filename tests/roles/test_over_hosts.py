"""What a member tells other hosts of the calls of a part that was computed elsewhere before."""

from types import SimpleNamespace

import numpy as np

from dtrain.exchange.calls import GivenCall, ReplicaCall
from dtrain.messages.rounds import MemberSeat
from dtrain.roles.collective.calls import CallLog, CallMemory
from dtrain.roles.collective.over_hosts import HostLedger, OverHosts
from dtrain.state.batch_cut import Dealt

PARTS, PART, ROUND = 2, 1, 5
SEATS = {
    each: MemberSeat(number=each, rank=each, task=f"worker:{each}", host=f"host {each}") for each in range(3)
}


def given(number):
    call = ReplicaCall("all_reduce", f"call {number}", "a.py:1")
    return GivenCall(call, [np.full(3, number, np.float32)])


def told(log_by_others, log_here):
    """Return the (number, examples) that member 0 tells each other host of its part."""
    memory = CallMemory.make(2 * PARTS)
    others, here = CallLog(memory, PARTS, of_others=True), CallLog(memory, PARTS)
    for log, write in ((others, log_by_others), (here, log_here)):
        log.begin(ROUND)
        write(log)
    sent = []
    member = SimpleNamespace(
        known=SimpleNamespace(dealt=Dealt(PARTS)),
        seats=SEATS,
        members=SEATS,
        number=0,
        leads_in=0,
        is_begun=lambda number: True,
    )
    streams = SimpleNamespace(
        connection=lambda number: 1, send_now=lambda number, message: sent.append((number, message)) or True
    )
    ledger = HostLedger(lambda: -1, dict, lambda position: None, lambda entries, whole: None)
    over = OverHosts(member, streams, ledger, memory, None, None)
    over.computes(PART, ROUND)
    over.tell()
    over.tell()  # what was told is not told again
    return [(number, call.number, call.examples) for number, call in sent]


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
