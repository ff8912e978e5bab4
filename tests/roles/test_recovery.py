"""Where a leader begins, and when a server has lost the term."""

import msgspec
from row_by_row import every_row

from dtrain.messages import HeartbeatReply
from dtrain.roles.chief.machine import Beginning, TermWatch, beginning, next_term


def said(generation=0, term=0):
    return HeartbeatReply(incarnation=1, generation=generation, version=5, ended=False, term=term)


@every_row(
    "fit, servers, saved, expected",
    [
        (1, [said(), said()], 0, Beginning.START),
        (2, [said(1, 7), said(1, 7)], 1, Beginning.START),
        (2, [said(1, 7), said()], 1, Beginning.START),
        (1, [said(1, 7), said(1, 7)], 1, Beginning.ATTACH),
        (1, [said(1, 7), said(1, 7)], 0, Beginning.ATTACH),
        (1, [said(1, 7), said()], 1, Beginning.RESTORE),
        (1, [said(1, 7), said(1, 8)], 1, Beginning.RESTORE),
        (1, [said(), said()], 1, Beginning.RESTORE),
        (2, [said(1, 7), said(1, 7)], 2, Beginning.RESTORE),
        (2, [said(2, 9), said(1, 7)], 2, Beginning.RESTORE),
        (1, [said(2, 9), said(1, 7)], 2, Beginning.PASS_OVER),
        (1, [said(), said()], 2, Beginning.PASS_OVER),
        (1, [], 2, Beginning.PASS_OVER),
        (1, [], 1, Beginning.RESTORE),
    ],
)
def test_what_a_leader_finds(fit, servers, saved, expected):
    assert beginning(fit, servers, saved) is expected


def test_terms_only_rise():
    assert next_term([said(1, 7), said(1, 9)], own=3, incarnation=5) == 10
    assert next_term([said(), said()], own=12, incarnation=5) == 13
    assert next_term([said(), said()], own=0, incarnation=1_700_000_000_000) == 1_700_000_000_001


def test_a_server_without_the_term_has_lost_it_if_it_was_asked_since_the_term_began():
    watch = TermWatch(generation=1, term=7, since_s=10.0)
    assert watch.lost([(11.0, said(1, 7)), (11.0, said(1, 7))]) == []
    assert watch.lost([(11.0, said(1, 7)), (11.0, said())]) == [1]
    assert watch.lost([(11.0, said(1, 6)), (9.0, said())]) == [0]


def test_whom_ps_0_had_heard_of_is_remembered_when_it_is_gone():
    watch = TermWatch(generation=1, term=7, since_s=10.0)
    watch.lost([(11.0, msgspec.structs.replace(said(1, 7), heard_of=("worker:0",)))])
    watch.lost([(12.0, said())])
    assert watch.heard_of == ("worker:0",)
