"""The newest address of a task counts, in whatever order its addresses arrive."""

from itertools import permutations

import pytest
from row_by_row import every_row

from dtrain.cluster import AddressBook, ClusterSpec, TaskId
from dtrain.errors import SpecError

CLUSTER = ClusterSpec.from_lists(worker=["w:0"], ps=["p:0", "p:1"])
PS1, JOINED = TaskId.parse("ps:1"), TaskId.parse("worker:7")


def test_a_task_that_has_not_moved_is_where_the_cluster_says():
    book = AddressBook(CLUSTER)
    assert book.address(PS1) == "p:1"
    assert (book.moved, book.digest) == ({}, 0)


@every_row("order", [*permutations([("a:1", 3), ("b:2", 7), ("c:3", 5)])])
def test_the_newest_entry_counts_in_whatever_order_they_are_heard(order):
    book = AddressBook(CLUSTER)
    for address, version in order:
        book.learn("ps:1", address, version)
        book.learn("ps:1", address, version)
    assert book.address(PS1) == "b:2"
    assert book.moved == {"ps:1": ("b:2", 7)}


def test_a_task_that_the_cluster_does_not_name_is_found_once_it_has_said_where_it_serves():
    book = AddressBook(CLUSTER)
    with pytest.raises(SpecError, match="worker:7 cannot be reached"):
        book.address(JOINED)
    book.learn_all({"worker:7": ("w:7", 1)})
    assert book.address(JOINED) == "w:7"


def test_digests_tell_whether_two_tasks_know_the_same():
    host, member = AddressBook(CLUSTER), AddressBook(CLUSTER)
    host.learn("ps:1", "a:1", 3)
    host.learn("ps:0", "b:1", 5)
    assert host.digest != member.digest
    member.learn_all(host.moved)
    assert host.digest == member.digest
    member.learn("ps:1", "a:2", 4)
    assert host.digest != member.digest
