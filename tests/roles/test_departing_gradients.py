"""Gradients that leave layer by layer: from the end of a server's block on, each element once, and nothing
too soon.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roles import test_worker_driver
from roles.test_worker_driver import driver, reply, values

from dtrain.errors import PeerLostError
from dtrain.messages import Verdict
from dtrain.parameters import placement
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.roles.worker import departing_gradients
from dtrain.roles.worker.departing_gradients import DepartingGradients
from dtrain.variables import VariableSpec

LAYERS = tuple(
    VariableSpec(f"{layer}/{kind}", (size,))
    for layer in "abcdef"
    for kind, size in (("kernel", 8), ("bias", 2))
)
MEAN = VariableSpec("mean", (3,), trainable=False)
clock = test_worker_driver.clock


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(departing_gradients, "EARLY_BYTES", 0)
    monkeypatch.setattr(departing_gradients, "CHUNK_BYTES", 4)


class Line:
    """A connection that notes what is sent ahead."""

    bytes_sent = bytes_received = 0

    def __init__(self):
        self.sent = []

    def ahead(self, block, start, stop):
        self.sent.append((start, stop))

    def send_rest(self, message, blocks, start):
        raise AssertionError("no message is sent here")

    def receive_early(self, into=(), deadline=None):
        raise AssertionError("no answer is waited for here")


class Plain:
    """A connection that can send nothing ahead."""


def departing(servers=1, variables=LAYERS):
    return DepartingGradients(ReplicaMemory(placement.plan(variables, servers)))


def test_the_last_layer_leaves_first_and_what_is_not_complete_holds_back_what_lies_before_it():
    made, line = departing(), Line()
    made.complete(("f/kernel", "f/bias"), [line])
    made.complete(("d/kernel", "d/bias"), [line])
    assert line.sent == [(50, 60)]
    made.complete(("e/bias",), [line])
    assert line.sent == [(50, 60), (48, 50)]
    made.complete(("e/kernel",), [line])
    assert line.sent == [(50, 60), (48, 50), (30, 48)]
    assert made.ahead(0, line) == 30
    assert made.ahead(0, Line()) is None, "a new connection has brought nothing"
    made.forget()
    assert made.ahead(0, line) is None
    made.complete(("f/kernel", "f/bias"), [line])
    assert line.sent[-1] == (50, 60)


@given(order=st.permutations(LAYERS), servers=st.integers(1, 3), least=st.sampled_from([4, 24, 80]))
def test_in_any_order_each_element_leaves_once_and_only_when_it_is_complete(order, servers, least):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(departing_gradients, "CHUNK_BYTES", least)
        made, lines, complete = departing(servers, (*LAYERS, MEAN)), [Line() for _ in range(servers)], set()
        layouts = placement.plan((*LAYERS, MEAN), servers).layouts
        for spec in order:
            complete.add(spec.name)
            made.complete((spec.name,), lines)
            for layout, line in zip(layouts, lines, strict=True):
                group = layout.groups[0]
                begun = group.size if not line.sent else line.sent[-1][0]
                held = [
                    o + s.size
                    for s, o in zip(group.shards, group.offsets, strict=True)
                    if s.name not in complete
                ]
                assert begun >= max(held, default=0)
        for layout, line in zip(layouts, lines, strict=True):
            size = layout.groups[0].size
            assert [stop for _, stop in line.sent] == [size, *(start for start, _ in line.sent)][
                : len(line.sent)
            ]
            assert all(4 * (stop - start) >= least for start, stop in line.sent)
            assert made.ahead(layout.server, line) == (line.sent[-1][0] if line.sent else None)


def test_after_a_connection_was_opened_again_the_rest_does_not_leave_on_it():
    made, old, new = departing(), Line(), Line()
    made.complete(("f/kernel", "f/bias"), [old])
    made.complete(("e/kernel", "e/bias"), [new])
    assert new.sent == []
    assert made.ahead(0, new) is None


def test_small_gradients_untrained_variables_and_other_transports_wait(monkeypatch):
    made, line = departing(), Plain()
    made.complete([spec.name for spec in LAYERS], [line])
    assert made.ahead(0, line) is None
    untrained, line = departing(variables=(MEAN,)), Line()
    untrained.complete((), [line])
    assert line.sent == []
    monkeypatch.setattr(departing_gradients, "EARLY_BYTES", 4 * 60 + 1)
    made.complete([spec.name for spec in LAYERS], [line])
    assert line.sent == []
    assert np.all(made._blocks[0] == 0)


class Grpc(test_worker_driver.Line, Line):
    """A connection to a server that may be sent parts ahead."""

    def __init__(self, *answers):
        Line.__init__(self)
        test_worker_driver.Line.__init__(self, *answers)
        self.went = []

    def ahead(self, block, start, stop):
        self.went.append((start, stop))

    def send_rest(self, message, blocks, start):
        self.send(message, blocks)
        self.went.append(start)

    def receive_early(self, into=(), deadline=None):
        return self.receive(into, deadline)


def test_a_push_brings_what_has_not_left_and_all_of_it_on_a_new_connection():
    first = Grpc(values(), reply(1, 2), PeerLostError("lost"))
    again = Grpc(reply(2, 3), reply(3, 4))
    replica = driver(first, again)
    replica.start()
    for _ in range(2):
        replica.complete(("bias",))
        replica.push(1, 0, None)
    assert first.went == [(4, 7), 4] * 2
    assert again.went == []
    assert again.sent == [first.sent[-1]]


def test_what_has_left_of_a_void_step_is_forgotten():
    line = Grpc(values(), reply(1, 2))
    replica = driver(line)
    replica.start()
    replica.complete(("bias",))
    replica.overtaken = True
    assert replica.push(1, 0, None).verdict is Verdict.VOID
    replica.push(1, 0, None)
    assert line.went == [(4, 7)]


def test_gradients_leave_only_for_synchronous_servers_and_without_compression():
    replica = driver(Grpc(values()))
    assert replica.sends_ahead
    replica.machine.sync = False
    assert not replica.sends_ahead
    replica.machine.sync, replica._packing.in_place = True, False
    assert not replica.sends_ahead
