"""The coordinator's service of closures, its workers on connections in memory."""

import threading

import pytest

from dtrain.cluster import ClusterSpec
from dtrain.errors import PeerRefusedError, ProgramError, WaitTimeoutError
from dtrain.messages import Attend, Attended, Closure, Failure, Hello, Refusal, RefusalKind, TakeClosure
from dtrain.parameters import placement
from dtrain.process.clock import Clock
from dtrain.roles.coordinator.closures import ClosureService, Scheduled
from dtrain.runs.reporting import Account
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
    plan = placement.plan([], 1)
    return ClosureService(
        hello("chief:0"), CLUSTER, 7, plan, Account(), start_s=60.0, patience_s=30.0, clock=clock
    )


def worker(service, task="worker:0"):
    return MemoryChannel("chief:0", service, hello(task))


def said(channel, message):
    channel.send(message)
    return channel.receive().message


def closure(name="f"):
    return Scheduled("program", name, b"")


def test_only_workers_of_the_cluster_take_closures(service):
    for task in ("ps:0", "evaluator:0", "worker:5", "chief:0"):
        with pytest.raises(PeerRefusedError, match="takes no closures"):
            worker(service, task)


def test_a_closure_of_a_connection_that_is_gone_runs_on_another_one(service):
    first, second = worker(service), worker(service, "worker:1")
    scheduled = closure()
    service.schedule(scheduled)
    assert isinstance(said(first, Attend()), Attended)
    assert said(first, TakeClosure(session=7)).number == 1
    second.send(TakeClosure(session=7))
    first.close()
    assert second.receive().message == Closure(number=1, settled=1, module="program", function="f")
    second.send(TakeClosure(session=7, closure=1))
    assert scheduled.ended
    assert service.done


def test_a_result_that_is_said_again_on_a_new_connection_counts_once(service):
    first = worker(service)
    one, two = closure(), closure("g")
    service.schedule(one)
    service.schedule(two)
    assert said(first, TakeClosure(session=7)).number == 1
    again = worker(service)
    assert said(again, TakeClosure(session=7, closure=1)).number == 2
    first.close()
    assert one.ended
    assert not two.ended


def test_a_worker_of_an_earlier_session_is_told_of_the_present_one(service):
    assert said(worker(service), TakeClosure(session=3, closure=9)).session == 7


def test_a_wait_without_workers_ends_at_its_deadline_and_names_them(service, clock):
    service.schedule(closure())
    clock.now_s = 61.0
    with pytest.raises(
        WaitTimeoutError, match="no worker is there to run closures: waited for worker:0, worker:1"
    ):
        service.take_error()


def test_workers_that_are_all_gone_have_their_time_to_come_back(service, clock):
    clock.now_s = 100.0
    channel = worker(service)
    said(channel, Attend())
    scheduled = closure()
    service.schedule(scheduled)
    channel.close()
    clock.now_s = 129.0
    other = worker(service, "worker:1")
    waits = threading.Thread(target=service.wait_for, args=(scheduled,))
    waits.start()
    assert said(other, TakeClosure(session=7)).number == 1
    other.send(TakeClosure(session=7, closure=1))
    waits.join()
    other.close()
    service.schedule(closure())
    clock.now_s = 160.0
    with pytest.raises(WaitTimeoutError):
        service.take_error()


def test_a_worker_that_cannot_run_the_program_ends_every_wait(service):
    service.schedule(closure())
    why = Failure(kind="ProgramError", message="other variables", trace="")
    worker(service).send(TakeClosure(session=7, failure=why))
    with pytest.raises(ProgramError, match="worker:0 cannot run closures: other variables"):
        service.take_error()


def test_all_workers_hear_of_the_end(service):
    first, second = worker(service), worker(service, "worker:1")
    first.send(TakeClosure(session=7))
    ends = threading.Thread(target=service.end)
    ends.start()
    ended = Refusal(reason="the coordinator's program has ended", kind=RefusalKind.ENDED)
    assert first.receive().message == ended
    first.close()
    assert said(second, TakeClosure(session=7)) == ended
    second.close()
    ends.join()
