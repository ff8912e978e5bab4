"""Where a task listens, if its own name means something else on its own host."""

import pytest
from row_by_row import every_row

from dtrain.wire.addresses import ListeningPlace, listening

NAMES = {
    "here": "127.0.1.1",
    "there": "10.0.0.2",
    "also-here": "127.0.0.1",
    "10.0.0.1": "10.0.0.1",
    "127.0.0.1": "127.0.0.1",
}
EVERYWHERE = "[::]:2222"


def looked_up(address):
    found = NAMES.get(address.rpartition(":")[0])
    return [] if found is None else [found]


def where(address, *others, bind=None):
    return listening(address, others, bind, looked_up)


@every_row(
    "address, others",
    [
        ("there:2222", ["here:2222"]),
        ("here:2222", ["here:2223", "also-here:2222"]),
        ("here:2222", []),
        ("10.0.0.1:2222", ["there:2222"]),
        ("127.0.0.1:2222", ["there:2222"]),
        ("unknown:2222", ["there:2222"]),
    ],
)
def test_a_task_listens_at_its_own_address(address, others):
    assert where(address, *others) == ListeningPlace(address)


@pytest.mark.parametrize("other", ["there:2222", "10.0.0.1:1", "not-known-yet:2222"])
def test_a_name_that_means_loopback_here_is_no_place_for_others(other):
    found = where("here:2222", "here:2223", other)
    assert found.address == EVERYWHERE
    assert "here means 127.0.1.1 here, where" in found.why


@pytest.mark.parametrize(
    ("bind", "address"),
    [
        ("0.0.0.0", "0.0.0.0:2222"),
        ("10.0.0.1:7", "10.0.0.1:7"),
        ("[::]", "[::]:2222"),
        ("[::1]:7", "[::1]:7"),
    ],
)
def test_the_user_says_where_to_listen(bind, address):
    found = where("here:2222", "there:2222", bind=bind)
    assert found.address == address
    assert "others reach it at here:2222" in found.why
