"""When a server that was told to stop may go."""

import pytest

from dtrain.roles.parameter_server.machine import Departure

TOLD_S, GRACE_S, VERSION = 100.0, 25.0, 7


@pytest.fixture
def departure():
    return Departure(TOLD_S, GRACE_S, VERSION)


def test_a_server_without_a_leader_goes_at_once(departure):
    assert departure.may_leave(False, None, TOLD_S)


def test_a_server_stays_until_its_leader_has_left(departure):
    assert not departure.may_leave(True, None, TOLD_S + 10)
    assert departure.may_leave(False, None, TOLD_S + 10)


def test_a_checkpoint_from_before_the_order_lets_no_server_go(departure):
    assert not departure.may_leave(True, VERSION - 1, TOLD_S + 20)


def test_a_server_goes_a_moment_after_a_checkpoint_of_what_it_had(departure):
    assert not departure.may_leave(True, VERSION, TOLD_S + 3)
    assert not departure.may_leave(True, VERSION + 1, TOLD_S + 4.9)
    assert departure.may_leave(True, VERSION + 1, TOLD_S + 5)


@pytest.mark.parametrize(("grace_s", "stays_s"), [(25.0, 23.0), (1.0, 0.0)])
def test_a_server_goes_before_its_grace_is_over(grace_s, stays_s):
    departure = Departure(TOLD_S, grace_s, VERSION)
    if stays_s:
        assert not departure.may_leave(True, None, TOLD_S + stays_s - 0.1)
    assert departure.may_leave(True, None, TOLD_S + stays_s)
