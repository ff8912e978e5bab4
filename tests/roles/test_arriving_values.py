"""A replica that computes while values are on their way: it waits for what it reads, and is told when a
connection breaks.
"""

import numpy as np
import pytest
from roles import test_worker_driver
from roles.by_hand import VARIABLES
from roles.test_worker_driver import Line as Whole
from roles.test_worker_driver import Silent, reply, values

from dtrain.errors import PeerLostError
from dtrain.messages import Pull, Verdict
from dtrain.parameters import placement
from dtrain.parameters.packing import Packing
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.roles.worker import arriving_values
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.roles.worker.machine import Replica
from dtrain.roles.worker.phases import Ready
from dtrain.wire.arriving import Arriving
from dtrain.wire.frames import Frame, padded

clock = test_worker_driver.clock
LOST = PeerLostError("lost")


@pytest.fixture(autouse=True)
def always_late(monkeypatch):
    monkeypatch.setattr(arriving_values, "LATE_BYTES", 0)


class Line(Whole):
    """A connection whose large answers arrive when the test says so: `arriving` is that of the last one."""

    bytes_sent = bytes_received = 0

    early = False

    def ahead(self, block, start, stop):
        pass

    def send_rest(self, message, blocks, start):
        raise AssertionError("nothing is sent ahead")

    def receive_early(self, into=(), deadline=None):
        frame = super().receive(into)
        self.early = True
        self.arriving = Arriving([padded(block.nbytes) for block in frame.blocks])
        return Frame(frame.message, frame.blocks, self.arriving)


def driver(*lines, servers=1, partitioner=None):
    """A driver whose connections are these lines, one after the other."""
    waiting = list(lines)
    plan = placement.plan(VARIABLES, servers, partitioner=partitioner)
    machine = Replica(servers, 1, 1, plan.hash, sync=True)
    weights = ReplicaMemory(plan), ReplicaMemory(plan)
    connect = lambda server, timeout_s: waiting.pop(0)  # noqa: E731
    return ReplicaDriver(
        machine, *weights, connect, Silent(), connect_s=1.0, patience_s=5.0, packing=Packing(*weights)
    )


def nbytes(replica, name):
    """Up to the end of this variable, the server's first block holds so many bytes."""
    return replica.arriving._places[name][2]


def test_a_variable_is_read_as_soon_as_it_is_there():
    line = Line(values(0, 1), reply(1, 2))
    replica = driver(line)
    replica.start()
    assert isinstance(replica.machine.phase, Ready)
    line.arriving.reached(nbytes(replica, "kernel"))
    assert np.all(replica.arriving["kernel"] == 1)
    line.arriving.reached(10_000)
    replica.arrive()
    replica.push(1, 0, None)
    line.arriving.reached(nbytes(replica, "kernel"))
    assert np.all(replica.arriving["kernel"] == 2)
    line.arriving.reached(10_000)
    assert dict(replica.arriving).keys() == {"kernel", "bias", "table"}
    assert len(replica.arriving) == 3
    assert not replica.overtaken


def test_where_the_connection_breaks_the_values_are_fetched_again_and_the_step_is_void():
    first, second = Line(values(0, 1), LOST), Whole(values(3, 5))
    replica = driver(first, second)
    replica.start()
    first.arriving.reached(nbytes(replica, "kernel"))
    assert np.all(replica.arriving["kernel"] == 1)
    first.arriving.broken(LOST)
    assert np.all(replica.arriving["bias"] == 5)
    assert replica.overtaken
    assert second.sent == [(Pull(generation=1, at_least=0, wait_s=5.0), [])]
    assert (type(replica.machine.phase), replica.machine.global_step) == (Ready, 3)
    replica.arrive()
    assert np.all(replica.arriving["kernel"] == 5)


def test_in_sync_all_servers_come_to_one_version_after_a_break():
    zero, one, again = (
        Whole(values(4, 1), values(6, 7)),
        Line(values(4, 1), LOST),
        Whole(values(6, 7), values(6, 7)),
    )
    replica = driver(zero, one, again, servers=2)
    replica.start()
    one.arriving.broken(LOST)
    replica.arrive()
    assert replica.overtaken
    assert replica.machine.versions == [6, 6]
    assert [message for message, _ in zero.sent] == [
        Pull(generation=1, at_least=0, wait_s=5.0),
        Pull(generation=1, at_least=6, wait_s=5.0),
    ]
    assert [message for message, _ in again.sent] == [
        Pull(generation=1, at_least=4, wait_s=5.0),
        Pull(generation=1, at_least=6, wait_s=5.0),
    ]


def test_after_the_last_step_everything_is_there():
    """Also where the connection breaks in the midst of it."""
    first, second = Line(values(9, 1), reply(10, 2), LOST), Whole(values(10, 3))
    replica = driver(first, second)
    replica.machine.saves = True
    replica.start()
    first.arriving.reached(10_000)
    receive = first.receive_early

    def break_off(into=(), deadline=None):
        frame = receive(into, deadline)
        first.arriving.broken(LOST)
        return frame

    first.receive_early = break_off
    assert replica.push(1, 0, None).verdict is Verdict.ACCEPTED
    assert replica.machine.finished
    assert np.all(replica.arriving["kernel"] == 3)


def test_whoever_gives_up_waits_no_longer():
    line = Line(values(0, 1), LOST)
    replica = driver(line)
    replica.start()
    replica.abort("the run has ended")
    line.arriving.broken(PeerLostError("the run has ended"))
    with pytest.raises(PeerLostError, match="the run has ended"):
        replica.arrive()


@pytest.mark.parametrize("why_not", ["small", "split"])
def test_values_that_are_small_or_in_pieces_are_waited_for(monkeypatch, why_not):
    if why_not == "small":
        monkeypatch.setattr(arriving_values, "LATE_BYTES", 1 << 20)
    lines = Line(values()), Line(values())
    replica = driver(*lines, servers=2, partitioner={"fixed_shards": 2} if why_not == "split" else None)
    replica.start()
    assert not lines[0].early
