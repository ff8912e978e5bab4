"""The links between hosts on real streams: a host that was dropped is heard and answered, and what it has said comes
before its end.
"""

import queue
import threading
import time

import msgspec
import numpy as np
import pytest

from dtrain.errors import PeerGoneError, PeerLostError
from dtrain.messages import Hello
from dtrain.messages.replicas import Direction, HostState, LedgerRecord, Seat
from dtrain.process.clock import SYSTEM
from dtrain.process.secret import new_secret
from dtrain.roles.collective.between_hosts.calls import CallsToSend
from dtrain.roles.collective.between_hosts.links import Links
from dtrain.roles.collective.between_hosts.records import Records, StoredRecord
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.streams import Listener, open_stream

SECRET = new_secret()
"""As a launch makes it: the keys of a secret that a person has chosen take a tenth of a second each."""

WAIT_S = 30.0


def seat(host):
    return Seat(rank=host, task=f"worker:{host}", address="")


def state(step):
    return HostState(term=1, host=0, membership=1, hosts=(0, 1), step=step, parts=(), seats=(seat(0),))


def without(step):
    return Direction(term=2, membership=2, hosts=(1,), step=step)


class Host:
    """One of two hosts, and all that it hears."""

    def __init__(self, number, addresses):
        own = Credentials.made(Hello(run_id="links", cluster_hash="0", task=f"worker:{number}"), SECRET)
        self.listener = Listener("127.0.0.1:1", own, lambda hello: None, 64)
        addresses[number] = self.listener.address
        self.heard, self.records = queue.SimpleQueue(), Records([1 - number])
        self.last = None

        def open_(task, name, timeout_s):
            return open_stream(task, addresses[1 - number], name, own, timeout_s)

        self.links = links_of(number, open_, self.listener.accept, self.heard.put, self.records)

    def hears(self):
        """Return what is new: the newest message is said again on each stream that is opened."""
        while (found := self.heard.get(timeout=WAIT_S)) == self.last:
            pass
        self.last = found
        return found


def links_of(number, open_, take, heard, records):
    def gone(host):
        heard((host, "gone"))

    def said(host, message):
        heard((host, message))

    return Links(number, open_, take, said, gone, SYSTEM, records, 1 << 10, CallsToSend(number))


@pytest.fixture
def two():
    addresses = {}
    hosts = [Host(number, addresses) for number in (0, 1)]
    for number, host in enumerate(hosts):
        host.links.know(1 - number, [seat(1 - number)])
    yield hosts
    for host in hosts:
        host.links.close()
        host.listener.stop()


def test_a_host_that_was_dropped_is_heard_and_answered_and_sent_nothing_else(two):
    dropped, other = two
    dropped.links.send(1, state(0))
    assert other.hears() == (0, state(0))
    other.links.retain([])
    dropped.links.send(1, state(1))
    assert other.hears() == (0, state(1))
    other.records.add(StoredRecord(LedgerRecord(position=1, step=0, whole=True, nbytes=1), b"0"))
    other.links.send_unsent()
    for step in (3, 4):
        other.links.send(0, without(step))
        assert dropped.hears() == (1, without(step))


class LastWords:
    """A stream with one message, which ends when its host was found to have ended."""

    peer, bytes_received = "worker:1", 0

    def __init__(self, ended):
        packet = msgspec.msgpack.encode(without(3))
        self.left, self.ended = len(packet).to_bytes(4, "little") + packet, ended
        self.opened = threading.Event()

    def receive(self, into, deadline):
        self.opened.set()
        assert self.ended.wait(WAIT_S), "it is tried again whether the host has ended"
        if not self.left:
            raise PeerLostError("it has ended")
        into[...] = np.frombuffer(self.left[: into.size], np.uint8)
        self.left = self.left[into.size :]

    abort = close = lambda self, reason="": None


def test_a_host_has_ended_only_when_all_that_it_has_said_was_heard():
    heard, tries, ended = queue.SimpleQueue(), [], threading.Event()
    streams = [stream := LastWords(ended)]

    def open_(task, name, timeout_s):
        assert stream.opened.wait(WAIT_S)
        tries.append(task)
        if len(tries) > 2:
            ended.set()
        raise PeerGoneError("nothing listens there")

    def take(tasks, name, deadline, given_up):
        if streams:
            return streams.pop()
        while given_up() is None:
            time.sleep(0.01)
        raise PeerLostError("given up")

    links = links_of(0, open_, take, heard.put, Records([1]))
    links.know(1, [seat(1)])
    assert [heard.get(timeout=WAIT_S) for _ in range(2)] == [(1, without(3)), (1, "gone")]
    links.close()
