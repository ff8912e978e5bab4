"""The coordinator's service of closures, its workers on connections in memory."""

import threading

import pytest

from dtrain.cluster import ClusterSpec
from dtrain.errors import PeerRefusedError, ProgramError, WaitTimeoutError
from dtrain.messages import Attended, Closure, Failure, Hello, Refusal, RefusalKind, TakeClosure
from dtrain.parameters import placement
from dtrain.process.clock import Clock
from dtrain.runs.reporting import Account
from dtrain.strategies.coordinator.closures import ProgramNames
from dtrain.strategies.coordinator.cluster_coordinator import Coordination, RemoteValueImpl
from dtrain.wire.channel import MemoryChannel

CLUSTER = ClusterSpec.from_lists(chief=["c:0"], worker=["w:0", "w:1"], ps=["p:0"])


class Now(Clock):
    """A clock that tests set."""

    def __init__(self):
        self.now_s = 0.0

    def now(self):
        return self.now_s


def hello(task):
    return Hello(run_id="run", cluster_hash=CLUSTER.hash, task=task)


@pytest.fixture
def clock():
    return Now()


@pytest.fixture
def service(clock):
    attended = Attended(session=7, plan=placement.plan([], 1).to_dict())
    workers = ["worker:0", "worker:1"]
    return Coordination(ProgramNames(), hello("chief:0"), workers, attended, Account(), 60.0, 30.0, clock)


def worker(service, task="worker:0"):
    return MemoryChannel("chief:0", service, hello(task))


def said(channel, message):
    channel.send(message)
    return channel.receive().message


def scheduled_by(service, name="f"):
    scheduled = RemoteValueImpl(service, Closure(module="program", function=name), b"")
    service.schedule(scheduled)
    return scheduled


def test_only_workers_of_the_cluster_take_closures(service):
    for task in ("ps:0", "evaluator:0", "worker:5", "chief:0"):
        with pytest.raises(PeerRefusedError, match="takes no closures"):
            worker(service, task)


def test_a_closure_of_a_connection_that_is_gone_runs_on_another_one(service):
    first, second = worker(service), worker(service, "worker:1")
    scheduled = scheduled_by(service)
    assert isinstance(said(first, TakeClosure()), Attended)
    assert said(first, TakeClosure(session=7)).number == 1
    second.send(TakeClosure(session=7))
    first.close()
    assert second.receive().message == Closure(number=1, settled=1, module="program", function="f")
    second.send(TakeClosure(session=7, closure=1))
    assert scheduled.ended
    assert service.check()


def test_a_result_that_is_said_again_on_a_new_connection_counts_once(service):
    first = worker(service)
    one, two = scheduled_by(service), scheduled_by(service, "g")
    assert said(first, TakeClosure(session=7)).number == 1
    again = worker(service)
    assert said(again, TakeClosure(session=7, closure=1)).number == 2
    first.close()
    assert one.ended
    assert not two.ended


def test_a_worker_of_an_earlier_session_is_told_of_the_present_one(service):
    assert said(worker(service), TakeClosure(session=3, closure=9)).session == 7


def test_a_wait_without_workers_ends_at_its_deadline_and_names_them(service, clock):
    scheduled_by(service)
    clock.now_s = 61.0
    with pytest.raises(
        WaitTimeoutError, match="no worker is there to run closures: waited for worker:0, worker:1"
    ):
        service.check(wait=True)


def test_workers_that_are_all_gone_have_their_time_to_come_back(service, clock):
    clock.now_s = 100.0
    channel = worker(service)
    said(channel, TakeClosure())
    scheduled = scheduled_by(service)
    channel.close()
    clock.now_s = 129.0
    other = worker(service, "worker:1")
    waits = threading.Thread(target=service.wait_for, args=(lambda: scheduled.ended,))
    waits.start()
    assert said(other, TakeClosure(session=7)).number == 1
    other.send(TakeClosure(session=7, closure=1))
    waits.join()
    other.close()
    scheduled_by(service)
    clock.now_s = 160.0
    with pytest.raises(WaitTimeoutError):
        service.check(wait=True)


def test_a_worker_that_cannot_run_the_program_ends_every_wait(service):
    scheduled_by(service)
    why = Failure(kind="ProgramError", message="other variables", trace="")
    worker(service).send(TakeClosure(session=7, failure=why))
    with pytest.raises(ProgramError, match="worker:0 cannot run closures: other variables"):
        service.check(wait=True)


def test_all_workers_hear_of_the_end(service):
    first, second = worker(service), worker(service, "worker:1")
    first.send(TakeClosure(session=7))
    ends = threading.Thread(target=service.end, kwargs={"farewell": True})
    ends.start()
    ended = Refusal(reason="the coordinator's program has ended", kind=RefusalKind.ENDED)
    assert first.receive().message == ended
    first.close()
    assert said(second, TakeClosure(session=7)) == ended
    second.close()
    ends.join()
