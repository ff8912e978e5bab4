"""A server's large answers over gRPC are cut while they are sent: never torn by the next versions, and held
once for all.
"""

from itertools import zip_longest

import numpy as np
import pytest
from roles.by_hand import Hand
from roles.test_in_place import SIZE, VARIABLES, Silent

from dtrain.messages import Heartbeat, Hello, Push
from dtrain.parameters.shared_buffers import ReadBufferAllocator
from dtrain.roles.parameter_server.driver import ServerHandler
from dtrain.wire.frames import CHUNK_BYTES, Frame, FrameDecoder, Limits
from dtrain.wire.grpc_service import GrpcCaller


class Server:
    """One that serves by hand."""

    def __init__(self, updates):
        callers = set()
        training = {"updates": updates, "chief_trains": False}
        allocator = ReadBufferAllocator(callers)
        self.hand = Hand(workers=2, max_steps=1000, variables=VARIABLES, allocator=allocator, **training)
        hello = Hello(run_id="run", cluster_hash="hash", task="ps:0")
        self.handler = ServerHandler(self.hand.servers[0], hello, Silent(), callers=callers)
        self.handler.received(
            GrpcCaller(Hello(run_id="run", cluster_hash="hash", task="chief:0")),
            Frame(self.hand.initialisation(), self.hand.blocks()),
        )
        self.callers = [
            GrpcCaller(Hello(run_id="run", cluster_hash="hash", task=f"worker:{index}")) for index in range(2)
        ]
        for caller in self.callers:
            self.handler.received(caller, Frame(Heartbeat(process=(0, 1.0), incarnation=1)))
            caller.outbox.get()

    def push(self, index, sequence, base):
        part = self.hand.dealt(f"worker:{index}")
        frame = Frame(
            Push(
                generation=1,
                incarnation=1,
                sequence=sequence,
                base_version=base,
                plan_hash=self.hand.plan.hash,
                part=part,
            ),
            self.hand.blocks(value=1),
        )
        self.handler.received(self.callers[index], frame)

    @property
    def place(self):
        return self.hand.servers[0].held.store.values[0]


def received(chunks):
    """The values of an answer."""
    decoder = FrameDecoder(Limits(1 << 26, 1 << 30))
    frames = [decoder.feed(chunk) for chunk in chunks]
    return frames[-1].message, frames[-1].blocks[0]


def test_what_is_being_sent_is_not_torn_and_what_was_sent_is_overwritten():
    server = Server("async")
    server.push(0, 1, 0)
    chunks = server.callers[0].outbox.get()
    begun = [next(chunks), next(chunks)]
    first = server.place
    for sequence in (1, 2):
        server.push(1, sequence, sequence)
        server.callers[1].has_read()
        server.callers[1].outbox.get()
    assert server.place is not first
    message, values = received([*begun, *chunks])
    assert message.version == 1
    assert np.all(values == -0.5)
    server.callers[0].has_read()
    newest = server.place
    server.push(1, 3, 3)
    assert server.place is newest
    assert server.hand.servers[0].held.store._versions._older == [], "the first one has no reader any more"


def test_one_version_for_many_is_cut_once_if_they_take_it_together():
    server = Server("sync")
    for index in range(2):
        server.push(index, 1, 0)
    answers = [caller.outbox.get() for caller in server.callers]
    pairs = list(zip_longest(*answers))
    assert len(pairs) == 1 + SIZE * 4 // CHUNK_BYTES + 1
    assert all(one is other for one, other in pairs[1:])
    assert all(np.all(received(chunks)[1] == -0.5) for chunks in zip(*pairs, strict=True))


def test_one_who_takes_it_later_gets_the_same_bytes():
    server = Server("sync")
    for index in range(2):
        server.push(index, 1, 0)
    first, second = (list(caller.outbox.get()) for caller in server.callers)
    assert first[1:] == second[1:]


@pytest.mark.parametrize("updates", ["sync", "async"])
def test_a_connection_that_breaks_reads_no_more(updates):
    server = Server(updates)
    for index in range(2):
        server.push(index, 1, 0)
    newest = server.place
    for caller in server.callers:
        caller.has_read()
        server.handler.disconnected(caller)
    assert server.hand.servers[0].held.store._versions.next_place()[0] is newest
