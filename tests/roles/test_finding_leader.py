"""The way of heartbeats to the task that leads, when the one before it has died."""

import pytest
from roles.test_heartbeat import Server, Someone, alive

from dtrain.cluster import TaskId
from dtrain.errors import PeerLostError, WaitTimeoutError
from dtrain.messages import Refusal, RefusalKind
from dtrain.process.clock import Clock
from dtrain.roles import heartbeat
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.wire.connecting import ATTEMPT_S, COMES_S, LeaderFinder

CHIEF, FIRST, SECOND = TASKS = [TaskId.parse(name) for name in ("chief:0", "worker:0", "worker:1")]
NOT_LEADING = Refusal(reason="it does not lead", kind=RefusalKind.NOT_LEADING)


class Ahead(Clock):
    """The system's clock, set ahead."""

    ahead_s = 0.0

    def now(self):
        return Clock.now() + self.ahead_s


class Cluster:
    """Tasks of which some are there; each connection to one is noted."""

    def __init__(self, **servers):
        self.servers = {name.replace("_", ":"): server for name, server in servers.items()}
        self.asked = []

    def connect(self, task, timeout_s):
        assert timeout_s <= ATTEMPT_S
        self.asked.append(str(task))
        if (server := self.servers.get(str(task))) is None:
            raise WaitTimeoutError(f"{task} is not there")
        return server.connect(timeout_s)


def test_every_task_is_asked_in_turn_until_one_is_there():
    clock = Ahead()
    cluster = Cluster(worker_1=Server(alive()))
    finder = LeaderFinder(TASKS, cluster.connect, clock)
    for _ in range(3):
        with pytest.raises(WaitTimeoutError):
            finder.connect(5.0)
    assert cluster.asked == ["chief:0"] * 3, "the first leader has a moment to appear"
    cluster.asked.clear()
    clock.ahead_s += COMES_S
    for _ in range(2):
        with pytest.raises(WaitTimeoutError):
            finder.connect(5.0)
    assert finder.connect(5.0) is cluster.servers["worker:1"]
    finder.connect(5.0)
    assert cluster.asked == ["chief:0", "worker:0", "worker:1", "worker:1"]
    finder.go_on()
    assert finder.task == CHIEF
    finder.led_by(FIRST)
    assert finder.task == FIRST


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0.005)


def test_a_lease_goes_to_the_next_leader(short):
    """One that is there and does not lead yet sends it on; the lease lasts."""
    dies = Server(alive(3), alive(3), PeerLostError("lost"))
    successor = Server(NOT_LEADING, NOT_LEADING, alive(3), alive(4))
    cluster = Cluster(chief_0=dies, worker_0=Server(NOT_LEADING), worker_1=successor)
    finder = LeaderFinder(TASKS, cluster.connect)
    link = HeartbeatLink(
        "the leader", finder.connect, Someone(), connect_s=5.0, patience_s=60.0, on_not_leading=finder.go_on
    )
    dies.until_beats(3)
    del cluster.servers["chief:0"]
    successor.until_beats(5)
    link.close()
    assert link.failure is None
    assert link.incarnation == 4
    assert finder.task == SECOND
    assert cluster.asked[0] == "chief:0"
    assert set(cluster.asked) == {"chief:0", "worker:0", "worker:1"}


def test_a_task_that_comes_late_looks_for_the_leader(short):
    successor = Server(alive(1))
    cluster = Cluster(worker_0=Server(NOT_LEADING), worker_1=successor)
    finder = LeaderFinder(TASKS, cluster.connect)
    link = HeartbeatLink(
        "the leader", finder.connect, Someone(), connect_s=20.0, patience_s=60.0, on_not_leading=finder.go_on
    )
    assert link.reply.incarnation == 1
    link.close()


@pytest.mark.parametrize(
    ("leads", "asked"), [("worker:8", 3), ("worker:99", 10)], ids=["known", "a stranger"]
)
def test_who_asks_a_task_that_has_heard_of_the_leader_goes_there_at_once(short, leads, asked):
    """A name that is none of the run's is passed over; then all are asked in turn."""
    tasks = [CHIEF, *(TaskId.parse(f"worker:{index}") for index in range(9))]
    knows = Refusal(reason="it does not lead", kind=RefusalKind.NOT_LEADING, leads=leads)
    others = {f"worker_{index}": Server(NOT_LEADING) for index in range(1, 8)}
    cluster = Cluster(
        chief_0=Server(NOT_LEADING), worker_0=Server(knows), worker_8=Server(alive(1)), **others
    )
    finder = LeaderFinder(tasks, cluster.connect)
    link = HeartbeatLink(
        "the leader", finder.connect, Someone(), connect_s=20.0, patience_s=60.0, on_not_leading=finder.go_on
    )
    link.close()
    assert (len(cluster.asked), cluster.asked[-1], finder.reached) == (asked, "worker:8", tasks[9])


def test_a_task_counts_as_the_leader_only_once_it_has_answered_as_one(short):
    """Else one that asks itself, by a rumour, would tell itself for ever that it leads."""
    told = []
    rumour = Refusal(reason="it does not lead", kind=RefusalKind.NOT_LEADING, leads="worker:0")
    cluster = Cluster(chief_0=Server(rumour), worker_0=Server(NOT_LEADING), worker_1=Server(alive(1)))
    finder = LeaderFinder(TASKS, cluster.connect)

    def go_on(leads):
        told.append(leads)
        finder.go_on(leads)

    link = HeartbeatLink(
        "the leader", finder.connect, Someone(), connect_s=20.0, patience_s=60.0, on_not_leading=go_on
    )
    assert (told, link.heard, finder.reached) == (["worker:0", None], True, SECOND)
    link.close()
    assert not link.heard
