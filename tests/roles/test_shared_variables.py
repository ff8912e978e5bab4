"""Variables of a program with a coordinator: each change of a closure is made once, wherever its worker dies."""

import random

import numpy as np
import pytest
from row_by_row import every_row

from dtrain.errors import PeerLostError, PeerRefusedError
from dtrain.learning import optimizers
from dtrain.messages import Operate, Operation
from dtrain.parameters import placement
from dtrain.roles.parameter_server.shared_variables import SharedVariables
from dtrain.strategies.coordinator.values import VariableClient
from dtrain.variables import VariableSpec

SPECS = (
    VariableSpec("sum", (), "int64", trainable=False),
    VariableSpec("w", (5, 2)),
    VariableSpec("b", (3,)),
)
FIRST = {
    "sum": np.int64(0),
    "w": np.arange(10, dtype=np.float32).reshape(5, 2),
    "b": np.zeros(3, np.float32),
}
SUM, W, B = range(3)
MOMENTUM = optimizers.SGD(0.1, momentum=0.9)


class Dies(Exception):
    """The worker dies here."""


class Servers:
    """Servers in this process. A worker may die after each of them was asked."""

    def __init__(self, count):
        self.answers = [SharedVariables(server, count) for server in range(count)]
        self.left = None

    def ask(self, questions):
        answers = []
        for server, message, blocks in questions:
            if self.left == 0:
                raise Dies
            if self.left is not None:
                self.left -= 1
            answer, values = self.answers[server].answer(message, blocks)
            answers.append((answer, [value.copy() for value in values]))
        return answers


def begun(count, session=1, **arguments):
    servers = Servers(count)
    plan = placement.plan(SPECS, count, **arguments)
    access = VariableClient(servers.ask, plan, session)
    access.share([np.asarray(value) for value in FIRST.values()])
    return servers, access


def step(access, number):
    """A closure: two updates and two additions."""
    config = optimizers.serialize(MOMENTUM)
    for scale in (1, 2):
        gradients = {
            W: np.full((5, 2), number * scale, np.float32),
            B: np.arange(3, dtype=np.float32) * scale,
        }
        access.operate(Operation.GRADIENT, gradients, optimizer="sgd", config=config)
        access.operate(Operation.ADD, {SUM: np.asarray(scale, np.int64)})
    return int(access.read([SUM])[0])


@every_row("count", [1, 2, 3])
@every_row("partitioner", [None, {"fixed_shards": 2}])
def test_updates_are_those_of_one_process(count, partitioner):
    _, access = begun(count, partitioner=partitioner)
    values = {name: np.array(FIRST[name]) for name in ("w", "b")}
    slots = {name: MOMENTUM.initial_slots(value) for name, value in values.items()}
    for number in range(1, 6):
        access.within(number, number)
        step(access, number)
        for scale in (1, 2):
            gradients = {
                "w": np.full((5, 2), number * scale, np.float32),
                "b": np.arange(3, dtype=np.float32) * scale,
            }
            MOMENTUM.apply(values, gradients, slots, 2 * number + scale - 3)
    w, b, total = access.read([W, B, SUM])
    np.testing.assert_array_equal(w, values["w"])
    np.testing.assert_array_equal(b, values["b"])
    assert (int(total), access.iterations) == (15, {"sgd": 10})


@every_row("seed", range(50))
def test_closures_of_workers_that_die_anywhere_are_applied_once(seed):
    """Several workers run closures in turns; each may die after any server was asked, and another runs it again."""
    chance = random.Random(seed)
    count = chance.choice([1, 2, 3])
    servers, coordinator = begun(count)
    closures = 30
    open_numbers = list(range(1, closures + 1))
    while open_numbers:
        number = chance.choice(open_numbers[:3])
        worker = VariableClient(servers.ask, coordinator._plan, 1)
        worker.within(number, open_numbers[0])
        servers.left = chance.choice([None, *range(8)])
        try:
            step(worker, 1)
        except Dies:
            continue
        finally:
            servers.left = None
        open_numbers.remove(number)
    assert int(coordinator.read([SUM])[0]) == 3 * closures
    assert [each.iterations for each in servers.answers] == [{"sgd": 2 * closures}] * count


def test_a_repeated_addition_answers_what_it_answered_first():
    _, access = begun(2)
    access.within(1, 1)
    assert int(access.operate(Operation.ADD, {SUM: np.asarray(1, np.int64)})[0]) == 1
    other = VariableClient(access._ask, access._plan, 1)
    other.within(2, 1)
    assert int(other.operate(Operation.ADD, {SUM: np.asarray(1, np.int64)})[0]) == 2
    access.within(1, 1)
    assert int(access.operate(Operation.ADD, {SUM: np.asarray(1, np.int64)})[0]) == 1
    assert int(access.read([SUM])[0]) == 2


def test_a_closure_that_has_ended_changes_nothing_any_more():
    _, access = begun(1)
    late = VariableClient(access._ask, access._plan, 1)
    late.within(1, 1)
    access.within(2, 2)
    access.operate(Operation.ADD, {SUM: np.asarray(1, np.int64)})
    with pytest.raises(PeerRefusedError, match="closure 1 has ended"):
        late.operate(Operation.ADD, {SUM: np.asarray(1, np.int64)})
    assert int(access.read([SUM])[0]) == 1


def test_what_the_coordinator_says_again_on_a_new_connection_is_done_once():
    servers, access = begun(1)
    asked = []
    repeats = VariableClient(
        lambda questions: asked.append(questions) or servers.ask(questions), access._plan, 1
    )
    repeats.operate(Operation.ADD, {SUM: np.asarray(5, np.int64)})
    servers.ask(asked[0])
    assert int(access.read([SUM])[0]) == 5


def test_a_server_that_was_started_again_says_that_it_has_lost_the_variables():
    servers, access = begun(2)
    servers.answers[1] = SharedVariables(1, 2)
    with pytest.raises(PeerLostError, match="ps:1 has lost the variables"):
        access.read([SUM, W, B])


def test_a_later_coordinator_begins_anew_and_the_earlier_one_is_refused():
    servers, access = begun(1)
    access.operate(Operation.ADD, {SUM: np.asarray(5, np.int64)})
    later = VariableClient(servers.ask, access._plan, 2)
    later.share([np.asarray(value) for value in FIRST.values()])
    assert int(later.read([SUM])[0]) == 0
    with pytest.raises(PeerRefusedError, match="a later process of the coordinator"):
        access.operate(Operation.ADD, {SUM: np.asarray(1, np.int64)})


def test_a_closure_reads_weights_once_and_again_after_its_own_change_and_the_coordinator_the_newest():
    _, chief = begun(1)
    worker = VariableClient(chief._ask, chief._plan, 1)
    one = {SUM: np.asarray(1, np.int64)}

    def seen():
        return [int(client.read_once([SUM])[0]) for client in (worker, chief)]

    worker.within(1, 1)
    assert seen() == [0, 0]
    chief.operate(Operation.ADD, one)
    assert seen() == [0, 1]
    worker.operate(Operation.ADD, one)
    assert seen() == [2, 2]
    chief.operate(Operation.ADD, one)
    worker.within(2, 2)
    assert seen() == [3, 3]


def test_what_does_not_fit_is_refused_and_changes_nothing():
    servers, access = begun(1)
    held = servers.answers[0]
    config = optimizers.serialize(MOMENTUM)
    with pytest.raises(PeerRefusedError, match="which no optimizer updates"):
        access.operate(Operation.GRADIENT, {SUM: np.asarray(1, np.int64)}, optimizer="sgd", config=config)
    with pytest.raises(PeerRefusedError, match="expected blocks"):
        access.operate(Operation.ASSIGN, {B: np.zeros(3, np.float64)})
    refused, _ = held.answer(Operate(session=1, closure=0, settled=1, kind=Operation.READ, shards=(99,)), ())
    assert "does not lie on this server" in refused.reason
    assert held.iterations == {}
    np.testing.assert_array_equal(access.read([B])[0], FIRST["b"])
