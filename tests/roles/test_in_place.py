"""A server and its replicas over the way for tasks of one host: nothing is copied, nothing is torn."""

import tracemalloc

import numpy as np
import pytest
from roles.by_hand import Hand

from dtrain.messages import Heartbeat, Hello, Pull, Push, Verdict
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.parameters.shared_buffers import SharedBufferAllocator
from dtrain.roles.parameter_server.driver import ServerHandler
from dtrain.runs.trace import NO_TRACE
from dtrain.variables import VariableSpec
from dtrain.wire.connecting import arrays_to_send
from dtrain.wire.one_host.local import LocalChannel, LocalService
from dtrain.wire.security.credentials import Credentials

SIZE = 3_000_000
VARIABLES = (VariableSpec("kernel", (SIZE // 500, 500)), VariableSpec("bias", (500,)))
NBYTES = 4 * (SIZE + 500)


def credentials(task):
    return Credentials.made(Hello(run_id="run", cluster_hash="hash", task=task))


class Silent:
    """A reporter that says nothing."""

    trace = NO_TRACE

    class status:
        step = 0

    def current(self):
        return {}

    def progress(self, *_):
        pass

    def waiting(self, *_):
        pass

    def announce(self, _):
        pass

    def begins(self):
        return 0.0

    def slow_down(self, _):
        pass


class Worker:
    """One replica's connection and memory."""

    def __init__(self, hand, name, task):
        self.hand = hand
        self.task = task
        self.channel = LocalChannel("ps:0", name, credentials(task))
        self.gradients = ReplicaMemory(hand.plan, lambda sizes: arrays_to_send("auto", sizes))
        self.weights = ReplicaMemory(hand.plan)
        self.sequence = 0
        self.channel.send(Heartbeat(process=(0, 1.0), incarnation=1))
        self.channel.receive()
        self.version = self.exchange(Pull(generation=1, at_least=0, wait_s=5.0)).version

    def exchange(self, message, blocks=()):
        self.channel.send(message, blocks)
        frame = self.channel.receive(self.weights.blocks[0])
        self.weights.read_at(0, frame.blocks)
        return frame.message

    def push(self, value):
        self.gradients.variables["kernel"].fill(value)
        self.sequence += 1
        push = Push(
            generation=1,
            incarnation=1,
            sequence=self.sequence,
            base_version=self.version,
            plan_hash=self.hand.plan.hash,
            part=self.hand.dealt(self.task),
        )
        reply = self.exchange(push, self.gradients.blocks[0])
        assert reply.verdict is Verdict.ACCEPTED
        self.version = reply.version


@pytest.fixture
def hand():
    callers = set()
    made = Hand(
        workers=3,
        max_steps=1000,
        updates="async",
        variables=VARIABLES,
        allocator=SharedBufferAllocator(callers),
    )
    made.callers = callers
    return made


@pytest.fixture
def join(hand):
    handler = ServerHandler(hand.servers[0], credentials("ps:0").hello, Silent(), callers=hand.callers)
    service = LocalService(handler, credentials("ps:0"))
    leader = LocalChannel("ps:0", service.name(), credentials("chief:0"))
    leader.send(hand.initialisation(), hand.blocks())
    leader.receive()
    workers = []

    def join():
        workers.append(Worker(hand, service.name(), f"worker:{len(workers)}"))
        return workers[-1]

    yield join
    for worker in workers:
        worker.channel.close()
    leader.close()
    service.stop()


def values_of(hand):
    return hand.servers[0].held.store.values


def test_no_byte_is_copied_for_a_byte_pushed(hand, join):
    workers = [join(), join()]
    for worker in [*workers, *workers]:  # until every version has its place
        worker.push(1)
    sent = workers[0].channel.bytes_sent
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    workers[0].push(1)
    copied = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert workers[0].channel.bytes_sent - sent > NBYTES
    assert copied / NBYTES < 0.1, "the optimizer's scratch memory, and nothing that grows with the gradient"
    newest = values_of(hand)[0]
    newest[:] = 42  # seen by the reader without a message: it reads there
    assert np.all(workers[0].weights.variables["kernel"] == 42)


def test_a_version_that_is_read_is_not_torn_by_the_next_ones(hand, join):
    reader, writers = join(), [join(), join()]
    reader.push(1)
    seen = reader.weights.variables["kernel"]
    before = seen.copy()
    for _ in range(10):
        for writer in writers:
            writer.push(1)
    assert np.array_equal(seen, before)
    assert len(reader.channel._packets._received) <= 5
    reader.push(1)
    assert np.all(reader.weights.variables["kernel"] == writers[-1].weights.variables["kernel"][0, 0] - 0.5)


def test_whoever_pushes_has_read_so_there_are_no_more_versions_than_replicas(hand, join):
    workers, places = [join(), join()], set()
    for worker in [*workers, *workers, workers[0], workers[0], workers[1]]:
        worker.push(1)
        places.add(values_of(hand)[0].__array_interface__["data"])
        read = [each.weights.variables["kernel"][0, 0] for each in workers]
        assert read[workers.index(worker)] == values_of(hand)[0][0]
    assert len(places) == 2


def test_a_reader_that_is_gone_keeps_what_it_read(hand, join):
    reader, writer = join(), join()
    reader.push(1)
    seen = reader.weights.variables["kernel"]
    before = seen.copy()
    reader.channel.close()
    for _ in range(5):
        writer.push(1)
    assert np.array_equal(seen, before)
