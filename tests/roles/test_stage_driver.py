"""Two stages without sockets: what a neighbour sends is checked before it counts, and a wrong one ends nothing here."""

import itertools

import numpy as np
import pytest
from security.hostile import Hostile

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.errors import CallsDifferError, PeerRefusedError
from dtrain.messages import Hello, SnapshotReply, StageVote
from dtrain.process.assignment import TaskAssignment
from dtrain.roles.stage import driver as driving
from dtrain.roles.stage.driver import LEAST_LIMIT_BYTES, LeadingDriver, StageDriver
from dtrain.roles.stage.machine import HeldStage, LeadingStage, StageMachine
from dtrain.runs.reporting import Reporter
from dtrain.state.fit_state import FitState
from dtrain.state.stage_layout import ArrayRoute
from dtrain.wire.channel import MemoryCaller, MemoryChannel
from dtrain.wire.frames import HEADER_LIMIT_BYTES, MEMORY_BYTES, FrameDecoder

CLUSTER = ClusterSpec.from_lists(chief=["a:1"], worker=["b:1", "c:1"])
TASKS = tuple(map(TaskId.parse, ("chief:0", "worker:0", "worker:1")))
SHAPE = (3,)
CHAIN = [ArrayRoute((0,), (1,)), ArrayRoute((1,), (2,))]


def hello_of(task):
    return Hello(run_id="run", cluster_hash=CLUSTER.hash, task=str(task))


class Stages(list):
    """Three stages in their first term, of which each passes on examples of `SHAPE`."""

    def __init__(self, *, leading=False):
        self.leading = leading
        super().__init__(map(self.started, range(3)))

    def started(self, number):
        """A new process of a stage."""
        own = TASKS[number]
        leads = self.leading and not number
        driver = (LeadingDriver if leads else StageDriver)(
            (LeadingStage if leads else StageMachine)(number, TASKS, depth=4),
            hello_of(own),
            CLUSTER,
            lambda task, within_s: MemoryChannel(str(task), self[TASKS.index(task)], hello_of(own)),
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
    driver.send(0, microbatch, edge, back=back, arrays=[array], noted=(0, False))


def test_a_wrong_array_ends_the_task_that_sent_it_and_the_next_right_one_is_taken(stages):
    first, second, third = stages
    send(first, np.ones((2, 4), np.float32))
    with pytest.raises(PeerRefusedError, match=r"chief:0 sends examples of shape \(4,\), expected \(3,\)"):
        send(first, np.ones((2, 3), np.float32), 1)
    send(third, np.full((2, 3), 5, np.float32), back=True)
    assert second.take(0, 0, 1, back=True, rows=2)[0].tolist() == [[5] * 3] * 2
    send(stages.started(0), np.full((2, 3), 7, np.float32))
    assert second.take(0, 0, 0, back=False, rows=2)[0].tolist() == [[7] * 3] * 2


def test_a_refusal_of_the_last_array_of_a_step_is_heard_by_who_waits_for_what_follows_from_it(stages):
    """Forward: the gradient that never comes; back: the verdict."""
    first, second, _ = stages
    send(first, np.ones((2, 4), np.float32), 7)
    with pytest.raises(PeerRefusedError, match=r"chief:0 sends examples of shape \(4,\)"):
        first.take(0, 7, 0, back=True, rows=2)
    send(second, np.ones((2, 5), np.float32), 7, back=True)
    with pytest.raises(PeerRefusedError, match=r"worker:0 sends examples of shape \(5,\)"):
        second.vote(StageVote(term=1, batch=0, finite=True, loss=0.0))


def test_a_neighbour_that_reads_other_batches_is_named(stages):
    send(stages[0], np.ones((2, 3), np.float32))
    with pytest.raises(CallsDifferError, match=r"chief:0 has 2 examples .* worker:0 has 4"):
        stages[1].take(0, 0, 0, back=False, rows=4)


def test_a_message_is_as_long_as_a_microbatch_may_be_and_the_leader_gives_variables_of_any_size(stages):
    leader, neighbour = hello_of(TASKS[0]), hello_of(TASKS[2])
    middle = stages[1]
    assert middle.limits(neighbour).payload == MEMORY_BYTES, "no batch has come yet"
    send(stages[2], np.ones((2, 3), np.float32), back=True)
    middle.take(0, 0, 1, back=True, rows=2)
    assert middle.limits(neighbour).payload == LEAST_LIMIT_BYTES
    assert middle.limits(leader) == (HEADER_LIMIT_BYTES, MEMORY_BYTES, 0)
    wide = np.ones((LEAST_LIMIT_BYTES // 12 + 2, 3), np.float32)
    send(stages[2], wide, 1, back=True)
    with pytest.raises(PeerRefusedError, match=r"a message of .* bytes; at most"):
        send(stages[2], wide, 2, back=True)


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

    for number in (1, 2):
        monkeypatch.setattr(stages[number], "received", slow(number))
    links = stages[0].measured_links()
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
