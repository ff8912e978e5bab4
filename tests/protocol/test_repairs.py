"""Which batches other servers may lack: unconfirmed until all have answered, and pushed again if the sender
is lost before.
"""

from dtrain.protocol.async_updates import Repairs
from dtrain.protocol.part_dealer import NO_PART


def test_a_push_is_confirmed_by_the_next_one_or_by_a_word_that_all_have_answered():
    repairs = Repairs()
    repairs.pushed(0, 1, 1, batch=7)
    assert (repairs.done, set(repairs.ranks)) == (False, {0})
    repairs.pushed(0, 1, 2, batch=8)
    repairs.confirmed(0, 1)
    assert not repairs.done, "the second one is not confirmed"
    repairs.lose(0)
    assert list(repairs.due) == [8]
    repairs.pushed(1, 1, 1, batch=9)
    repairs.confirmed(1, 1)
    repairs.confirmed(2, 5)
    assert list(repairs.due) == [8]
    assert not repairs.ranks


def test_what_is_due_is_given_to_one_replica_until_all_servers_have_answered_it():
    repairs = Repairs(dict.fromkeys([4, 5]))
    assert [repairs.give(0), repairs.give(1), repairs.give(0), repairs.give(2)] == [4, 5, 4, NO_PART]
    repairs.pushed(0, 1, 1, batch=4)
    assert repairs.give(0) == NO_PART
    assert not repairs.done
    repairs.confirmed(0, 1)
    repairs.give_back(1)
    assert repairs.give(2) == 5
    repairs.lose(2)
    assert repairs.give(0) == 5
    repairs.pushed(0, 1, 2, batch=5)
    repairs.confirmed(0, 2)
    assert repairs.done


def test_a_push_of_a_new_process_says_nothing_of_what_the_one_before_it_pushed():
    repairs = Repairs()
    repairs.pushed(0, 1, 9, batch=3)
    repairs.pushed(0, 2, 1, batch=4)
    assert list(repairs.due) == [3]
    repairs.pushed(1, 1, 1, batch=6)
    repairs.pushed(1, 2, 1, batch=6)
    assert list(repairs.due) == [3], "it has pushed the same batch to all servers itself"


def test_a_repair_that_is_lost_after_ps_0_has_it_is_made_again():
    repairs = Repairs(dict.fromkeys([4]))
    repairs.give(1)
    repairs.pushed(1, 1, 1, batch=4)
    repairs.lose(1)
    assert list(repairs.due) == [4]
