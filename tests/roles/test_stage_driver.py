"""Two stages without sockets: what a neighbour sends is checked before it counts, and a wrong one ends nothing here."""

import itertools
from typing import ClassVar

import numpy as np
import pytest
from security.hostile import Hostile

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.errors import CallsDifferError, PeerLostError, PeerRefusedError
from dtrain.messages import Hello, SnapshotReply, StageVote
from dtrain.process.assignment import TaskAssignment
from dtrain.roles.stage import driver as driving
from dtrain.roles.stage.driver import LEAST_LIMIT_BYTES, LeadingDriver, StageDriver
from dtrain.roles.stage.machine import HeldStage, LeadingStage, Place, StageMachine
from dtrain.runs.reporting import Reporter
from dtrain.state.fit_state import FitState
from dtrain.state.stage_layout import ArrayRoute, ArrayTag
from dtrain.wire.channel import MemoryCaller, MemoryChannel
from dtrain.wire.frames import HEADER_LIMIT_BYTES, MEMORY_BYTES, FrameDecoder

CLUSTER = ClusterSpec.from_lists(chief=["a:1"], worker=["b:1", "c:1"])
TASKS = tuple(map(TaskId.parse, ("chief:0", "worker:0", "worker:1")))
SHAPE = (3,)
CHAIN = [ArrayRoute((0,), (1,)), ArrayRoute((1,), (2,))]


def hello_of(task):
    return Hello(run_id="run", cluster_hash=CLUSTER.hash, task=str(task))


class Stages(list):
    """Three stages in their first term, of which each passes on examples of `SHAPE`; `link` wraps connections."""

    def __init__(self, *, leading=False, link=lambda channel: channel):
        self.leading, self.link = leading, link
        super().__init__(map(self.started, range(3)))

    def started(self, number):
        """A new process of a stage."""
        own = TASKS[number]
        leads = self.leading and not number
        driver = (LeadingDriver if leads else StageDriver)(
            (LeadingStage if leads else StageMachine)(number, TASKS, depth=4),
            hello_of(own),
            CLUSTER,
            lambda task, within_s: self.link(
                MemoryChannel(str(task), self[TASKS.index(task)], hello_of(own))
            ),
            Reporter(TaskAssignment.by_hand(CLUSTER, own, {})),
            patience_s=5.0,
        )
        driver.expect({0: SHAPE, 1: SHAPE}, gradient_bytes=0)
        held = HeldStage(list, lambda: SnapshotReply(state=FitState(), slots=()), np.zeros, lambda *_: None)
        driver.begin(1, 1, 0, held, CHAIN)
        return driver


@pytest.fixture
def stages():
    return Stages(leading=True)


def send(driver, array, microbatch=0, *, back=False):
    edge = driver.machine.stage - back
    driver.send(ArrayTag(0, microbatch, edge, back), [array], None, marks=False)


def test_a_wrong_array_ends_the_task_that_sent_it_and_the_next_right_one_is_taken(stages):
    first, second, third = stages
    send(first, np.ones((2, 4), np.float32))
    send(first, np.ones((2, 3), np.float32), 1)
    with pytest.raises(PeerRefusedError, match=r"chief:0 sends examples of shape \(4,\), expected \(3,\)"):
        first.take(ArrayTag(0, 1, 0, True), rows=2)
    send(third, np.full((2, 3), 5, np.float32), back=True)
    assert second.take(ArrayTag(0, 0, 1, True), rows=2)[0].tolist() == [[5] * 3] * 2
    send(stages.started(0), np.full((2, 3), 7, np.float32))
    assert second.take(ArrayTag(0, 0, 0), rows=2)[0].tolist() == [[7] * 3] * 2


def test_a_refusal_of_the_last_array_of_a_step_is_heard_by_who_waits_for_what_follows_from_it(stages):
    """Forward: the gradient that never comes; back: the verdict."""
    first, second, _ = stages
    send(first, np.ones((2, 4), np.float32), 7)
    with pytest.raises(PeerRefusedError, match=r"chief:0 sends examples of shape \(4,\)"):
        first.take(ArrayTag(0, 7, 0, True), rows=2)
    send(second, np.ones((2, 5), np.float32), 7, back=True)
    with pytest.raises(PeerRefusedError, match=r"worker:0 sends examples of shape \(5,\)"):
        second.vote(StageVote(term=1, batch=0, finite=True, loss=0.0))


def test_a_neighbour_that_reads_other_batches_is_named(stages):
    send(stages[0], np.ones((2, 3), np.float32))
    with pytest.raises(CallsDifferError, match=r"chief:0 has 2 examples .* worker:0 has 4"):
        stages[1].take(ArrayTag(0, 0, 0), rows=4)


def test_a_message_is_as_long_as_a_microbatch_may_be_and_the_leader_gives_variables_of_any_size(stages):
    leader, neighbour = hello_of(TASKS[0]), hello_of(TASKS[2])
    middle = stages[1]
    assert middle.limits(neighbour).payload == MEMORY_BYTES, "no batch has come yet"
    send(stages[2], np.ones((2, 3), np.float32), back=True)
    middle.take(ArrayTag(0, 0, 1, True), rows=2)
    assert middle.limits(neighbour).payload == LEAST_LIMIT_BYTES
    assert middle.limits(leader) == (HEADER_LIMIT_BYTES, MEMORY_BYTES, 0)
    wide = np.ones((LEAST_LIMIT_BYTES // 12 + 2, 3), np.float32)
    send(stages[2], wide, 1, back=True)
    with pytest.raises(PeerRefusedError, match=r"a message of .* bytes; at most"):
        stages[2].vote(StageVote(term=1, batch=0, finite=True, loss=0.0))


def test_the_leader_measures_its_connections_without_what_opens_them(stages, monkeypatch):
    """The clock goes on by what the numbers take, and by a second when the first of them come."""
    per_s, way_s, now_s = {1: 1e6, 2: 1e9}, {1: 0.02, 2: 0.001}, [0.0]
    clock = type("Clock", (), {"now": staticmethod(lambda: now_s[0])})
    monkeypatch.setattr(driving, "SYSTEM", clock)

    def slow(number):
        received = stages[number].received
        opening = itertools.chain([1.0], itertools.repeat(0.0))

        def later(caller, frame):
            sent_bytes = sum(block.nbytes for block in frame.blocks)
            now_s[0] += 2 * way_s[number] + sent_bytes / per_s[number] + next(opening)
            return received(caller, frame)

        return later

    gone = []
    for number in (1, 2):
        monkeypatch.setattr(stages[number], "received", slow(number))
        monkeypatch.setattr(stages[number], "disconnected", lambda caller, number=number: gone.append(number))
    links = stages[0].measured_links()
    assert gone == [1, 2], "nothing else uses these connections"
    assert {number: link.bytes_per_s for number, link in links.items()} == pytest.approx(per_s)
    assert {number: link.latency_s for number, link in links.items()} == pytest.approx(way_s)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("role", ["worker:1", "evaluator:0", "worker:99"])
def test_nonsense_of_other_tasks_ends_no_stage_and_takes_no_memory(role, place):
    """A stage in the midst of a step, and the one that leads; the array that comes then is taken."""
    stages = Stages(leading=True)
    driver, hostile = stages[place], Hostile(role, 0)
    refused = 0
    for data in itertools.islice(hostile.frames(), 3000):
        caller = MemoryCaller(Hello(run_id="run", cluster_hash=CLUSTER.hash, task=role))
        try:
            frame = FrameDecoder(driver.limits(caller.hello)).feed(data)
            if frame is not None:
                driver.received(caller, frame)
        except PeerRefusedError:
            refused += 1
        finally:
            driver.disconnected(caller)
    assert refused, "frames that are none"
    assert len(driver.machine.arrived) <= 2 * 2 * driver.machine.depth
    assert not driver.machine._questions


class Link:
    """A connection that holds back all messages until an answer is waited for, and may break before they arrive.

    Attributes:
        held: what is on its way.
        most: how many messages were on their way at a time, on all connections.
        breaks: how many connections break, each when an answer is waited for, and how many messages of each arrive.
    """

    most = 0
    breaks: ClassVar[list[int]] = []

    def __init__(self, channel):
        self.peer, self.channel, self.held = channel.peer, channel, []

    @property
    def bytes_sent(self):
        return self.channel.bytes_sent

    @property
    def bytes_received(self):
        return self.channel.bytes_received

    def send(self, message, blocks=()):
        self.held.append((message, blocks))
        Link.most = max(Link.most, len(self.held))

    def receive(self, into=(), deadline=None):
        arrive = Link.breaks.pop() if self.held and Link.breaks else None
        for message, blocks in self.held[:arrive]:
            self.channel.send(message, blocks)
        self.held = []
        if arrive is not None:
            self.channel.close()
        return self.channel.receive(into, deadline)

    def abort(self, reason):
        self.channel.abort(reason)

    def close(self):
        self.channel.close()


@pytest.fixture
def late(monkeypatch):
    monkeypatch.setattr(Link, "most", 0)
    monkeypatch.setattr(Link, "breaks", [])
    return Stages(leading=True, link=Link)


def test_so_many_arrays_are_on_their_way_as_a_stage_may_be_ahead_and_no_more(late):
    first, second, _ = late
    depth = first.machine.depth
    for number in range(depth):
        send(first, np.full((2, 3), number, np.float32), number)
    assert (Link.most, len(second.machine.arrived)) == (depth, 0)
    send(first, np.full((2, 3), depth, np.float32), depth)
    assert (Link.most, len(second.machine.arrived)) == (depth, depth)


@pytest.mark.parametrize("arrive", range(5))
def test_arrays_that_were_on_their_way_when_a_link_broke_come_again_in_their_order_and_count_once(
    late, arrive
):
    """Some of them had arrived, and were computed with."""
    first, second, _ = late
    for number in range(4):
        send(first, np.full((2, 3), number, np.float32), number)
    Link.breaks = [arrive]
    first.machine.arrived[Place(1, ArrayTag(0, 3, 0, True), TASKS[1])] = [np.zeros((2, 3), np.float32)]
    taken = 0

    def compute_what_has_come():
        nonlocal taken
        while place := next((each for each in second.machine.arrived if each.tag.microbatch == taken), None):
            [array] = second.take(place.tag)
            assert array.tolist() == [[taken] * 3] * 2
            taken += 1

    again = late.link

    def link(channel):
        compute_what_has_come()
        return again(channel)

    late.link = link
    first.take(ArrayTag(0, 3, 0, True))
    compute_what_has_come()
    assert taken == 4
    assert not second.machine.arrived


def test_a_stage_that_waits_says_again_what_was_lost_with_a_connection(late):
    """The other stage may wait for it, so that nothing of what it waits for itself can come."""
    first, second, _ = late
    send(first, np.ones((2, 3), np.float32))
    Link.breaks = [0]
    received = second.received

    def answered(caller, frame):
        found = received(caller, frame)
        first.machine.arrived[Place(1, ArrayTag(0, 0, 1), TASKS[2])] = [np.zeros((2, 3), np.float32)]
        return found

    second.received = answered
    first.machine.routes = [*CHAIN[:1], ArrayRoute((2,), (0,))]
    first.take(ArrayTag(0, 0, 1))
    assert len(second.machine.arrived) == 1


def test_a_stage_that_waits_does_not_wait_for_ever_for_who_cannot_be_reached(late):
    """What it waits for may follow from what cannot be said, also where other connections are whole."""
    first, _, _ = late
    send(first, np.ones((2, 3), np.float32))
    Link.breaks = [0]
    first.patience_s = 0.0

    def unreachable(channel):
        raise PeerLostError("worker:0 cannot be reached from here")

    late.link = unreachable
    first.machine.routes = [*CHAIN[:1], ArrayRoute((2,), (0,))]
    with pytest.raises(PeerLostError, match="worker:0"):
        first.take(ArrayTag(0, 0, 1))
