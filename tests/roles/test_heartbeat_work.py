"""A heartbeat at the control host is the same work for the host, however many replicas there are."""

import gc
import sys

import pytest
from roles.by_hand import Hand

from dtrain.cluster import TaskId
from dtrain.messages import Heartbeat
from dtrain.protocol.membership import LEASE_S


def steps_of(call) -> int:
    """How many instructions the interpreter executes in a call, loops of comprehensions included."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()  # a collection runs what other tests and hypothesis have registered with it
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def work(updates, replicas, lost):
    """The work of a heartbeat from one of them, where so large a share of them is lost."""
    hand = Hand(workers=replicas, updates=updates, max_steps=100)
    hand.initialise()
    tasks = ["chief:0", *(f"worker:{index}" for index in range(replicas - 1))]
    server = hand.servers[0]

    def beat(task):
        message = Heartbeat(process=(0, 1.0), incarnation=1)
        return server.receive(task, TaskId.parse(task), message, (), hand.now)

    for task in tasks:
        beat(task)
    hand.now += LEASE_S
    alive = tasks[: replicas - int(lost * replicas)]
    for task in alive:
        beat(task)
    hand.now += 0.1
    server.tick(hand.now, 1)
    [reply] = beat("worker:1")
    assert ("more" in (reply.message.waiting_for or "")) == (updates == "sync" and replicas > 9)
    return steps_of(lambda: beat("worker:1"))


@pytest.mark.parametrize("lost", [0.0, 0.5])
@pytest.mark.parametrize("updates", ["sync", "async"])
def test_a_heartbeat_costs_the_same_for_any_number_of_replicas(updates, lost):
    assert work(updates, 40, lost) == work(updates, 400, lost)
