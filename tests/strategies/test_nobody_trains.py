"""Replicas that share memory, when all who have trained are gone, or the first leader never comes."""

import os

import msgspec
import numpy as np
import pytest
from replica_fleet import ReplicaFleet
from row_by_row import every_row

import dtrain as dt
from dtrain.errors import PeerLostError, RunError
from dtrain.learning import optimizers
from dtrain.messages import Entered, NotReady, Over
from dtrain.parameters import placement
from dtrain.roles.chief.start import Start
from dtrain.roles.collective.meeting import Meeting
from dtrain.runs.files import RunFiles, RunRecord, TaskRecord, write_record
from dtrain.runs.states import RunState, TaskState
from dtrain.state.batch_cut import Dealt
from dtrain.state.fit_state import FitState
from dtrain.strategies.multi_worker_mirrored.members import AllReplicas, begin_as_first, enter
from dtrain.strategies.multi_worker_mirrored.membership import OtherReplicas, PeersState, meanwhile
from dtrain.strategies.multi_worker_mirrored.rendezvous import Peers
from dtrain.variables import VariableSpec
from dtrain.wire.frames import Frame

X = np.arange(16, dtype=np.float32).reshape(8, 2) / 16


def build():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(2,))])
    model.compile("sgd", "mse")
    return model


def fit(model, callbacks=()):
    history = model.fit(X, X[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=list(callbacks))
    return history.history, [each.tolist() for each in model.get_weights()]


def test_a_chief_that_follows_leads_once_the_one_that_led_is_gone(tmp_path, monkeypatch):
    """Both are started again: the chief while the worker trained, the worker before the chief could take part."""
    told = []

    def ask_all(self, patience_s, *, waits):
        told.append(self)
        return PeersState(trains=True)

    monkeypatch.setattr(OtherReplicas, "ask_all", ask_all)
    fleet = ReplicaFleet(tmp_path, 2)
    first, second = fleet.run(build, fit, [fleet.strategy(0, attempt=1), fleet.strategy(1, attempt=1)])
    assert first == second
    assert len(told) == 1


def test_a_chief_that_was_left_behind_does_not_make_the_steps_of_the_others_again(tmp_path):
    """By hand, where the others have ended meanwhile."""
    fleet = ReplicaFleet(tmp_path, 2)
    (tmp_path / "left_behind.txt").write_text("worker:0 leads the run from now on")
    with pytest.raises(RunError, match=r"without this host, as .*left_behind\.txt says, and nobody trains"):
        fleet.run(build, fit, [fleet.strategy(0, attempt=1, launched=False)])


def test_the_others_train_without_a_chief_that_is_lost_for_good_before_the_first_step(tmp_path):
    fleet = ReplicaFleet(tmp_path, 3)
    tasks = [TaskRecord(str(task)) for task in fleet.cluster.replicas()]
    tasks[0].state = TaskState.FAILED
    write_record(RunFiles(tmp_path).run, RunRecord("id", "name", RunState.STARTING, tasks=tasks))
    first, second = fleet.run(build, fit, [fleet.strategy(1), fleet.strategy(2)])
    assert first == second
    assert len(first[0]["loss"]) == 2


def test_a_leader_that_dies_in_the_midst_of_its_farewell_waits_for_nobody_who_has_ended(tmp_path):
    """Nor does it begin anything anew, of which others hold the result."""
    fleet = ReplicaFleet(tmp_path, 2, too_few="wait")
    before, _ = fleet.run(build, fit)
    tasks = [TaskRecord(str(task)) for task in fleet.cluster.replicas()]
    tasks[0].attempt, tasks[1].state = 1, TaskState.SUCCEEDED
    write_record(RunFiles(tmp_path).run, RunRecord("id", "name", RunState.RUNNING, tasks=tasks))
    begun = []

    class Notes(dt.callbacks.Callback):
        def on_train_begin(self, logs=None):
            begun.append(self)

    (again,) = fleet.run(build, lambda model: fit(model, [Notes()]), [fleet.strategy(0, attempt=1)])
    assert (again, begun) == (before, [])


class Answers:
    """A replica that answers each question about a call of `fit` so."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def send(self, message):
        self.frame = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def receive(self, deadline=None):
        return self.frame if isinstance(self.frame, Frame) else Frame(self.frame)

    def close(self):
        pass


def entered(leader, concluded, generation=1):
    return Entered(
        state=FitState(generation=generation, max_steps=4, dealt=Dealt(2)),
        leader=leader,
        concluded=concluded,
    )


NEW = NotReady(reason="this task does not lead")


@every_row(
    "there, silent, found",
    [
        ({1: NEW, 2: NEW}, (), PeersState()),
        ({1: NEW, 2: entered(1, False)}, (), PeersState(trains=True)),
        ({1: entered(0, True), 2: entered(0, True)}, (), PeersState(ended=1)),
        ({1: entered(1, True), 2: entered(1, True)}, (), PeersState(trains=True, ended=1)),
        ({1: NEW, 2: entered(1, True)}, (), PeersState(ended=1)),
        ({2: entered(1, True)}, (), PeersState(ended=1)),
        ({2: entered(1, True)}, (1,), PeersState(trains=True, ended=1, silent=frozenset({1}))),
        ({2: NEW}, (1,), PeersState(silent=frozenset({1}))),
    ],
    ids=[
        "nobody has trained",
        "one trains",
        "the next call waits for this one",
        "the next call has a leader",
        "the next call's leader was started again",
        "the next call's leader is gone",
        "the next call's leader stands still",
        "one stands still",
    ],
)
def test_who_leads_when_others_are_asked(there, silent, found):
    def connect(rank, timeout_s):
        if rank in there:
            return Answers(there[rank])
        raise PeerLostError("refused")

    assert meanwhile(connect, (1, 2), 0, silent.__contains__) == found


class Descriptor:
    def __init__(self, descriptor):
        self.detach = lambda: os.dup(descriptor)


class Dies:
    """A member that takes the newcomer's socket, and then dies."""

    def pass_on(self, message, descriptors):
        self.message, self.end = message, os.dup(descriptors[0])

    def receive(self, into=(), deadline=None):
        os.close(self.end)
        return Frame(self.message)

    def abort(self, reason):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("takes_the_socket", [False, True])
def test_a_newcomer_asks_again_when_all_members_are_gone_before_they_let_it_in(takes_the_socket):
    plan = placement.plan((VariableSpec("w", (3,), "float32"),), servers=1)
    state = FitState(max_steps=4, dealt=Dealt(2), optimizer=optimizers.serialize(dt.optimizers.SGD(0.1)))
    terms = msgspec.structs.replace(entered(0, False), state=state, joins=True)
    replicas = AllReplicas(2, "replica {}".format)
    start = Start(state, plan, {"w": np.zeros(3, np.float32)})
    member = begin_as_first(Meeting(lambda task: None), start, terms, 0, replicas, lambda there, more: True)
    told = Frame(terms, passed=tuple(map(Descriptor, member.shared.descriptors)))
    leader = Answers(told, Over(generation=2))

    def connect(rank, timeout_s):
        if takes_the_socket:
            return Dies()
        raise PeerLostError("refused")

    about = lambda: None, connect, lambda whom: None, lambda: None, 1.0, lambda rank: takes_the_socket
    peers = Peers(leader, *about)
    leader.name = "chief:0"
    assert enter(Meeting(lambda task: None), peers, 1, plan, state.optimizer, 1, None, replicas) is None
    member.shared.close()
    member.links.close()
