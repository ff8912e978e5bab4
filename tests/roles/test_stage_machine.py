"""The machines of stages: what counts, what is void, who waits for what, without a socket."""

import re

import numpy as np
import pytest

from dtrain.cluster import Role, TaskId
from dtrain.control.interface import Send
from dtrain.messages import (
    Acknowledged,
    Conclude,
    Control,
    Controlled,
    EnterPipeline,
    NotReady,
    Over,
    PipelineTerm,
    Pull,
    Refusal,
    Snapshot,
    SnapshotReply,
    StageTensor,
    StageVerdict,
    StageVote,
    Sums,
    Values,
    VoidTerm,
)
from dtrain.roles.stage.machine import HeldStage, LeadingStage, Place, StageMachine, with_loss
from dtrain.state.fit_state import FitState
from dtrain.state.stage_layout import ArrayRoute, ArrayTag

TASKS = (TaskId(Role.CHIEF, 0), TaskId(Role.WORKER, 0), TaskId(Role.WORKER, 1))
HASH = "plan"
CHAIN = [ArrayRoute((0,), (1,)), ArrayRoute((1,), (2,))]
"""What travels between three stages in a row."""


class Held:
    """Variables of a stage that tell what was asked of them."""

    def __init__(self):
        self.obeyed, self.marked = [], 0

    def stage(self):
        return HeldStage(lambda: [np.ones(2, np.float32)], self.mark, lambda question: np.zeros(1), self.obey)

    def mark(self):
        self.marked += 1
        return SnapshotReply(state=FitState(), slots=())

    def obey(self, message, blocks):
        self.obeyed.append((message.version, [block.tolist() for block in blocks]))


def begun(stage=1, term=5, version=10):
    machine, held = StageMachine(stage, TASKS, depth=8), Held()
    machine.begin(1, term, version, held.stage(), CHAIN)
    return machine, held


def tensor(microbatch=0, *, term=5, batch=3, back=False, values=(1.0, 2.0), **changed):
    fields = {"shape": (1, len(values)), "mask": (), "edge": 1 if back else 0, **changed}
    shape, mask, edge = (fields.pop(name) for name in ("shape", "mask", "edge"))
    tag = ArrayTag(batch, microbatch, edge, back)
    message = StageTensor(term=term, tag=tag, shapes=(shape, mask) if mask else (shape,), **fields)
    return message, [np.array(values, np.float32)]


def said(sends):
    return [(send.caller, type(send.message)) for send in sends]


def test_an_array_counts_once_however_often_it_comes():
    machine, _ = begun()
    place = Place(5, ArrayTag(3, 0, 0), TASKS[0])
    for _ in range(2):
        assert said(machine.receive("a", TASKS[0], *tensor())) == [("a", Acknowledged)]
    [found] = machine.take(place)
    assert found.tolist() == [[1.0, 2.0]]
    assert said(machine.receive("a", TASKS[0], *tensor())) == [("a", Acknowledged)]
    assert machine.take(place) is None


def test_a_mask_comes_with_its_array():
    machine, _ = begun()
    message, blocks = tensor(mask=(1, 2))
    machine.receive("a", TASKS[0], message, [*blocks, np.array([True, False])])
    array, mask = machine.take(Place(5, ArrayTag(3, 0, 0), TASKS[0]))
    assert (array.shape, mask.tolist()) == ((1, 2), [[True, False]])


@pytest.mark.parametrize(
    ("sender", "changed", "reason"),
    [
        (TASKS[2], {}, "worker:1 is not the stage that sends this to worker:0"),
        (TASKS[0], {"back": True}, "chief:0 is not the stage that sends this"),
        (TASKS[0], {"edge": 1}, "chief:0 is not the stage that sends this"),
        (TASKS[0], {"edge": 2}, "chief:0 is not the stage that sends this"),
        (TASKS[0], {"shape": (2, 2)}, "arrays of \\[4\\] elements were announced, and have \\[2\\]"),
        (TASKS[0], {"shape": (-1, -2)}, "elements were announced"),
        (TASKS[0], {"mask": (1, 2)}, "arrays of \\[2, 2\\] elements were announced"),
    ],
)
def test_what_no_neighbour_would_send_is_refused(sender, changed, reason):
    machine, _ = begun()
    [send] = machine.receive("a", sender, *tensor(**changed))
    assert isinstance(send.message, Refusal)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(send.message.reason)
    assert not machine.arrived


@pytest.mark.parametrize(
    ("changed", "blocks", "reason"),
    [
        ({"shape": (1, 3)}, [np.zeros(3, np.float32)], r"examples of shape \(3,\), expected \(2,\)"),
        ({"shape": (1, 2, 1)}, [np.zeros(2, np.float32)], r"examples of shape \(2, 1\), expected \(2,\)"),
        ({}, [np.zeros(2)], "numbers of float64, expected float32"),
        ({"mask": (1,)}, [np.zeros(2, np.float32), np.zeros(1, np.float32)], "and bool in a mask"),
    ],
)
def test_what_does_not_fit_the_layers_is_refused_with_the_name_of_the_sender(changed, blocks, reason):
    machine, _ = begun()
    machine.shapes = {0: (2,), 1: (None, 5)}
    message, _ = tensor(**changed)
    [send] = machine.receive("a", TASKS[0], message, blocks)
    assert isinstance(send.message, Refusal)
    assert re.match(f"chief:0 sends .*{reason}", send.message.reason)
    assert not machine.arrived


def test_lengths_that_vary_with_the_data_fit_and_gradients_have_the_shape_of_what_left():
    machine, _ = begun()
    machine.shapes = {0: (2,), 1: (None, 5)}
    message, blocks = tensor(back=True, values=np.zeros(15), shape=(1, 3, 5))
    assert said(machine.receive("a", TASKS[2], message, blocks)) == [("a", Acknowledged)]
    message, blocks = tensor(back=True, values=np.zeros(12), shape=(1, 3, 4))
    [send] = machine.receive("a", TASKS[2], message, blocks)
    assert "worker:1 sends examples of shape (3, 4), expected (None, 5)" in send.message.reason


def test_a_neighbour_is_at_most_so_many_arrays_ahead_as_the_order_of_the_stages_has():
    """Of a term and of the next one, which may begin elsewhere before it does here; each direction for itself."""
    machine, _ = begun()
    machine.depth = 3
    for term in (5, 6):
        for number in range(3):
            message, blocks = tensor(number, term=term)
            assert said(machine.receive("a", TASKS[0], message, blocks)) == [("a", Acknowledged)]
    assert said(machine.receive("a", TASKS[0], *tensor(2, term=6))) == [("a", Acknowledged)], "said again"
    [send] = machine.receive("a", TASKS[0], *tensor(3, term=6))
    assert "more than the 6 arrays that wait here, of at most 3 in a term" in send.message.reason
    assert said(machine.receive("a", TASKS[2], *tensor(0, back=True))) == [("a", Acknowledged)]
    machine.take(Place(5, ArrayTag(3, 0, 0), TASKS[0]))
    assert said(machine.receive("a", TASKS[0], *tensor(3, term=6))) == [("a", Acknowledged)]


def test_what_comes_of_a_later_term_waits_for_it_and_of_an_earlier_one_is_dropped():
    machine, held = begun()
    machine.receive("a", TASKS[0], *tensor(term=4))
    machine.receive("a", TASKS[0], *tensor(term=6, batch=9))
    assert [place.term for place in machine.arrived] == [6]
    assert said(machine.receive("b", TASKS[0], VoidTerm(term=5), ())) == [("b", Acknowledged)]
    assert machine.is_over
    machine.begin(1, 6, 8, held.stage(), CHAIN)
    assert not machine.is_over
    assert machine.take(Place(6, ArrayTag(9, 0, 0), TASKS[0])) is not None
    assert not machine.arrived


def test_orders_snapshots_and_values_wait_for_their_version():
    machine, held = begun(version=10)
    rule = {"class": "SGD"}
    order = Control(generation=1, number=(5, 1), term=5, version=11, optimizer=rule, stop=True)
    assert machine.receive("order", TASKS[0], order, [np.full(2, 7.0)]) == []
    assert machine.receive("save", TASKS[0], Snapshot(at_least=11, wait_s=0, term=5), ()) == []
    pull = Pull(generation=1, at_least=10, wait_s=0, term=5)
    assert said(machine.receive("read", TASKS[0], pull, ())) == [("read", Values)]
    assert (held.obeyed, held.marked, machine.stopped) == ([], 0, False)
    assert said(machine.reached(11)) == [("order", Controlled), ("save", SnapshotReply)]
    assert (held.obeyed, held.marked, machine.stopped) == ([(11, [[7.0, 7.0]])], 1, True)


def test_questions_of_a_term_that_is_over_are_answered_so():
    machine, _ = begun(version=10)
    machine.receive("save", TASKS[0], Snapshot(at_least=99, wait_s=0, term=5), ())
    sends = machine.receive("b", TASKS[0], VoidTerm(term=5), ())
    assert said(sends) == [("b", Acknowledged), ("save", NotReady)]


def leading():
    machine, held = LeadingStage(0, TASKS), Held()
    machine.expect(1, HASH)
    for stage in (1, 2):
        assert (
            machine.receive(f"e{stage}", TASKS[stage], EnterPipeline(generation=1, plan_hash=HASH), ()) == []
        )
    shares = [(PipelineTerm(state=FitState(version=stage), term=5), []) for stage in range(3)]
    sends = machine.give(5, shares)
    assert [(send.caller, send.message.state.version) for send in sends] == [("e1", 1), ("e2", 2)]
    machine.begin(1, 5, 0, held.stage(), CHAIN)
    assert not machine.is_over
    return machine


def vote(batch=3, *, finite=True, loss=0.0, sums=None, term=5):
    return StageVote(term=term, batch=batch, finite=finite, loss=loss, sums=sums)


def test_a_batch_is_applied_by_all_when_all_have_voted_and_its_loss_is_the_sum_of_theirs():
    machine = leading()
    sums = Sums(names=("loss",), totals=np.array([4.0, 4 * 0.5]).tobytes())
    assert machine.receive("v2", TASKS[2], vote(loss=0.5, sums=sums), ()) == []
    assert machine.decide(vote(loss=0.25)) is None
    assert machine.receive("v1", TASKS[1], vote(loss=0.125), ()) == []
    verdict, told, sends = machine.decide(vote(loss=0.25))
    assert verdict == StageVerdict(term=5, batch=3, applied=True, loss=0.875)
    assert sorted(said(sends)) == [("v1", StageVerdict), ("v2", StageVerdict)]
    assert np.frombuffer(told.totals).tolist() == [4.0, 4 * 0.875]
    # One that has not heard it asks again, and hears the same.
    assert machine.receive("v1", TASKS[1], vote(loss=0.125), ()) == [Send("v1", verdict)]


def test_none_applies_a_batch_of_which_one_gradient_is_not_finite():
    machine = leading()
    machine.receive("v1", TASKS[1], vote(finite=False), ())
    machine.receive("v2", TASKS[2], vote(), ())
    verdict, _, _ = machine.decide(vote())
    assert not verdict.applied


def test_a_stage_that_asks_to_enter_a_term_that_goes_on_has_lost_its_variables():
    machine = leading()
    machine.receive("v2", TASKS[2], vote(), ())
    assert machine.receive("new", TASKS[1], EnterPipeline(generation=1, plan_hash=HASH), ()) == []
    assert machine.is_over
    assert machine.lost == {1}
    assert said(machine.receive("v3", TASKS[2], vote(4), ())) == [("v3", VoidTerm)]
    assert said(machine.void_others()) == [("v2", VoidTerm)]


def test_another_model_is_refused_and_a_call_of_fit_that_has_not_begun_waits():
    machine = leading()
    [send] = machine.receive("a", TASKS[1], EnterPipeline(generation=1, plan_hash="other"), ())
    assert "another model than chief:0" in send.message.reason
    assert machine.receive("b", TASKS[1], EnterPipeline(generation=2, plan_hash="next"), ()) == []
    assert not machine.is_over
    machine.expect(2, "next")
    assert machine.waiting_with(EnterPipeline) == {1: "b"}


def test_all_hear_the_end_once_all_have_made_the_last_step():
    machine = leading()
    ends = Pull(generation=1, at_least=9, wait_s=0, term=5, concluded=True)
    assert machine.receive("a", TASKS[1], ends, ()) == []
    assert not machine.all_ended
    machine.concluded = 1
    assert said(machine.receive("b", TASKS[2], EnterPipeline(generation=1, plan_hash=HASH), ())) == [
        ("b", Over)
    ]
    assert machine.all_ended
    assert said(machine.conclude({}, ())) == [("a", Conclude)]


def test_who_leaves_waits_for_nothing_any_more():
    machine = leading()
    machine.receive("v1", TASKS[1], vote(), ())
    machine.disconnected("v1")
    machine.receive("v2", TASKS[2], vote(), ())
    assert machine.decide(vote()) is None


def test_a_loss_is_added_to_the_sums_of_each_example():
    sums = Sums(names=("accuracy", "loss"), totals=np.array([2.0, 1.0, 6.0, 9.0]).tobytes())
    assert np.frombuffer(with_loss(sums, 0.5).totals).tolist() == [2.0, 1.0, 7.0, 9.0]


def made(batch, *, loss=0.0, sums=None):
    return StageVote(term=5, batch=batch, finite=True, loss=loss, sums=sums, made=True)


def test_stages_that_have_made_a_version_are_answered_at_once_and_the_leader_hears_of_each_batch_by_itself():
    machine = leading()
    for batch in (3, 4):
        assert said(machine.receive("m2", TASKS[2], made(batch, loss=batch), ())) == [("m2", Acknowledged)]
    machine.disconnected("m2")  # what it has told counts
    assert machine.decide(made(3)) is None
    machine.receive("m1", TASKS[1], made(3, loss=0.5), ())
    verdict, _, answers = machine.decide(made(3))
    assert (verdict.loss, answers) == (3.5, [])
    assert machine.decide(made(4)) is None
    machine.receive("m1", TASKS[1], made(4), ())
    assert machine.decide(made(4))[0].loss == 4.0


def control(version, **changed):
    return Control(generation=1, number=(5, 1), term=5, version=version, optimizer={}, **changed)


def test_a_pipeline_rests_at_a_version_that_the_leader_asks_about_and_not_for_a_checkpoint():
    machine, held = begun(version=10)
    machine.receive("save", TASKS[0], Snapshot(at_least=12, wait_s=0, term=5), ())
    assert not machine.rests_at(12)
    machine.receive("order", TASKS[0], control(12), ())
    assert machine.rests_at(12)
    assert not machine.rests_at(13)
    assert said(machine.reached(12)) == [("save", SnapshotReply), ("order", Controlled)]
    assert machine.rests_at(12), "also when that is answered"
    assert (held.obeyed, machine.stopped, machine.leaves) == ([], False, False)
    machine.receive("order", TASKS[0], control(12, stop=True), ())
    assert (machine.stopped, machine.leaves) == (False, True), "the leader ends, and not training"


def test_a_stage_that_is_ahead_answers_with_what_it_has_marked():
    machine, held = begun(version=10)
    machine.reached(11, marks=True)
    machine.reached(12)
    assert held.marked == 1
    machine.receive("save", TASKS[0], Snapshot(at_least=11, wait_s=0, term=5), ())
    assert held.marked == 1, "nothing is remembered anew"


def test_what_comes_back_leaves_known_what_has_come_forward():
    """A stage sends arrays again if its connection breaks before the answers; of two batches, where they follow at once."""
    machine, _ = begun()
    several = [(batch, number) for batch in (4, 5) for number in range(4)]
    for batch, number in several:
        machine.receive("a", TASKS[0], *tensor(number, batch=batch))
        assert machine.take(Place(5, ArrayTag(batch, number, 0), TASKS[0])) is not None
    machine.receive("c", TASKS[2], *tensor(batch=3, back=True))
    assert machine.take(Place(5, ArrayTag(3, 0, 1, True), TASKS[2])) is not None
    for batch, number in several:
        machine.receive("a", TASKS[0], *tensor(number, batch=batch))
    assert not machine.arrived


def test_a_stage_notes_the_version_of_a_batch_in_an_asynchronous_pipeline_alone():
    """One note a batch is taken when the batch begins; a synchronous stage would never take the last ones."""
    machine, _ = begun()
    for batch in range(3, 9):
        machine.receive("a", TASKS[0], *tensor(batch=batch))
        assert machine.take(Place(5, ArrayTag(batch, 0, 0), TASKS[0])) is not None
    assert not machine.noted
    machine.receive("a", TASKS[0], *tensor(batch=9, version=0))
    assert machine.noted == {9: (0, False)}
