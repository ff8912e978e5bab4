"""Notifications wake who waits, and the end of a socket tells of a death, also where its process had forked."""

import os
import signal

import pytest

from dtrain.errors import PeerRefusedError
from dtrain.wire.one_host.shared_memory import SharedMemory
from dtrain.wire.one_host.synchronization import NotifySockets, pairs


@pytest.fixture
def two():
    ends = pairs([0, 1])
    both = NotifySockets(ends[0]), NotifySockets(ends[1])
    yield both
    for notify_sockets in both:
        notify_sockets.close()


def test_a_notification_wakes_who_waits_once(two):
    two[0].notify()
    assert two[1].wait(60.0)
    assert not two[1].wait(0.0)
    assert not two[1].dead


def test_a_peer_that_never_listens_is_not_waited_for(two):
    for _ in range(10_000):
        two[0].notify()
    assert two[1].wait(60.0)


def test_the_end_of_a_socket_is_a_death_heard_once(two):
    two[0].close()
    assert two[1].wait(60.0)
    assert two[1].dead == {0}
    two[1].notify()
    assert not two[1].wait(0.0)


def test_notifications_before_a_death_do_not_hide_it(two):
    two[0].notify()
    two[0].close()
    while not two[1].dead:
        assert two[1].wait(60.0)


def test_a_new_process_of_a_dead_rank_is_rung_once_it_is_taken_up(two):
    two[0].close()
    two[1].wait(60.0)
    anew = pairs([0, 1])
    two[1].offer(0, anew[1][0])
    assert two[1].offered == {0}
    assert two[1].dead == {0}, "the old process may still be a member"
    two[1].take_up(0)
    assert (two[1].dead, two[1].offered) == (set(), set())
    successor = NotifySockets(anew[0])
    successor.notify()
    assert two[1].wait(60.0)
    successor.close()


def test_a_child_of_the_dead_process_does_not_hide_its_death():
    ends = pairs([0, 1])
    reading, writing = os.pipe()
    victim = os.fork()
    if victim == 0:
        ends[1][0].close()
        notify_sockets = NotifySockets(ends[0])
        child = os.fork()
        if child == 0:
            signal.pause()
        os.write(writing, str(child).encode())
        signal.pause()
        notify_sockets.close()
    ends[0][1].close()
    survivor = NotifySockets(ends[1])
    child = int(os.read(reading, 20))
    os.kill(victim, signal.SIGKILL)
    assert survivor.wait(60.0)
    assert survivor.dead == {0}
    os.kill(child, 0)  # it lives
    os.kill(child, signal.SIGKILL)
    os.waitpid(victim, 0)
    survivor.close()
    os.close(reading)
    os.close(writing)


def test_memory_that_both_write_must_not_shrink_and_must_be_of_one_user(monkeypatch):
    memory = SharedMemory.make(4096)
    theirs = SharedMemory.received(os.dup(memory.fd), writable=True)
    theirs[7] = 5
    assert memory[7] == 5
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(PeerRefusedError, match="another user"):
        SharedMemory.received(os.dup(memory.fd), writable=True)
    monkeypatch.undo()
    loose = os.memfd_create("loose")
    os.posix_fallocate(loose, 0, 4096)
    with pytest.raises(PeerRefusedError, match="may shrink"):
        SharedMemory.received(loose, writable=True)
