"""What the leader does beside training, on histories: one event after the other, and what is to be done."""

import pytest

from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointError, PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import HeartbeatReply
from dtrain.roles.chief.keeper.machine import (
    BeginTerm,
    Conclude,
    GiveUp,
    Keeping,
    Note,
    Reason,
    Request,
    Restore,
    Save,
    Tell,
    Warn,
)
from dtrain.roles.chief.machine import CheckpointSchedule
from dtrain.roles.chief.recovery import TermWatch

LAST_STEP = 40
PATIENCE_S = 30.0
INCARNATION = 100
GONE = [PeerLostError("gone"), WaitTimeoutError("not there")]


def _said(generation=0, version=0, term=0, heard_of=()):
    return HeartbeatReply(
        incarnation=INCARNATION,
        generation=generation,
        version=version,
        ended=False,
        term=term,
        heard_of=heard_of,
    )


class History:
    """A machine that keeps the first generation on two servers, and the time, in seconds."""

    def __init__(self, every_s=None, every_steps=None, servers=2):
        schedule = CheckpointSchedule(CheckpointSection(every_s=every_s, every_steps=every_steps), 0.0, -1)
        watch = TermWatch(1, 0, 0.0) if servers else None
        self.machine = Keeping(schedule, LAST_STEP if servers else 0, PATIENCE_S, watch)
        self.now = 0.0
        self.events = []
        self.said = [_said() for _ in range(servers)]
        self.hear()

    def hear(self, after_s=0.0):
        self.now += after_s
        self.machine.answers = [(self.now, said) for said in self.said]

    def says(self, server, term, version=0, after_s=1.0, generation=1, heard_of=()):
        self.said[server] = _said(generation, version, term, heard_of)
        self.hear(after_s)

    def look(self, after_s=1.0):
        self.now += after_s
        return self.machine.look(self.now)

    def ask(self, request):
        return self.machine.ask(request, self.now)

    def begun(self, given_up=-1):
        return self.noted(self.machine.begun(given_up, self.now))

    def noted(self, actions):
        """What is to be done besides keeping events in the trace."""
        self.events += [str(action.event) for action in actions if isinstance(action, Note)]
        return [action for action in actions if not isinstance(action, Note)]

    def fails(self, action, error):
        return self.machine.failed(action, error, self.now)

    def saved(self, save, reached, whole=True):
        return self.noted(self.machine.saved(save, reached, whole=whole, now=self.now))

    def at(self, version):
        for server in range(len(self.said)):
            self.says(server, self.machine.term, version)


def training(version=0, **schedule):
    """A generation whose servers train it from this version, in the first term."""
    history = History(**schedule)
    [_] = history.machine.begin(version, 0, save=False, now=history.now)
    assert history.begun() == []
    history.at(version)
    return history


def term(number, until=0, lost=0, heard_of=(), again=True):
    return BeginTerm(number, until, lost, heard_of, again)


# How it begins


def test_no_server_trains_what_cannot_be_restored():
    history = History()
    [save] = history.machine.begin(3, 0, save=True, now=0.0)
    assert (save.reason, save.final) == (Reason.START, False)
    assert history.saved(save, 3) == [term(INCARNATION + 1, until=3, again=False)]


def test_a_beginning_that_cannot_be_saved_is_none():
    history = History()
    [save] = history.machine.begin(0, 0, save=True, now=0.0)
    full = CheckpointError("the disk is full")
    assert history.fails(save, full) == [GiveUp(full)]
    assert history.machine.failure is full


@pytest.mark.parametrize("error", GONE)
def test_a_term_that_failed_somewhere_is_never_used_again(error):
    history = History()
    [first] = history.machine.begin(0, 0, save=False, now=0.0)
    history.now = PATIENCE_S - 1
    [second] = history.fails(first, error)
    assert second.term == first.term + 1
    history.now = PATIENCE_S
    assert history.fails(second, error) == [GiveUp(error)], "a server is gone for good"


def test_a_server_that_refuses_the_variables_ends_training_at_once():
    history = History()
    [first] = history.machine.begin(0, 0, save=False, now=0.0)
    refusal = PeerRefusedError("another model")
    assert history.fails(first, refusal) == [GiveUp(refusal)]
    assert history.look() == []


def test_a_term_is_later_than_all_that_servers_know():
    history = History()
    history.says(1, 555, generation=0)
    [begin] = history.machine.begin(0, 0, save=False, now=0.0)
    assert begin.term == 556


@pytest.mark.parametrize("nothing_saved", [False, True])
def test_a_leader_that_comes_back_goes_on_with_what_the_servers_train(nothing_saved):
    history = History()
    for server in range(2):
        history.says(server, 55, 7)
    found = history.machine.attach(4, nothing_saved=nothing_saved, now=history.now)
    assert [save.reason for save in found] == [Reason.FOUND] * nothing_saved
    machine = history.machine
    assert (machine.term, machine.first_version, machine.rolled_back_steps) == (55, 7, 4)
    assert history.look() == []


# Saving on the way


def test_a_checkpoint_is_due_by_the_schedule_and_never_twice_of_one_step():
    history = training(every_s=10.0)
    history.at(5)
    assert history.look() == []
    [save] = history.look(after_s=10.0)
    assert (save.reason, save.term, save.step) == (Reason.SCHEDULE, history.machine.term, 5)
    assert history.saved(save, 6) == []
    assert history.look(after_s=20.0) == []
    history.at(6)
    assert history.look() != []


def test_the_leaders_own_replica_may_know_of_a_later_step():
    history = training(every_steps=5)
    history.at(2)
    history.machine.own_step = history.machine.term, 5
    [save] = history.look()
    assert save.step == 5
    history.machine.own_step = history.machine.term - 1, 9
    assert history.look() == [], "that was in another term"


def test_a_checkpoint_on_the_way_that_fails_costs_a_warning():
    history = training(every_steps=1)
    history.at(4)
    [save] = history.look()
    assert history.fails(save, CheckpointError("full")) == [Warn("no checkpoint of step 4: full")]
    assert history.look() == [], "it is tried again when the next one is due"


def test_a_checkpoint_with_a_batch_on_some_servers_only_is_told():
    history = training(every_steps=1)
    history.at(4)
    [save] = history.look()
    [warning] = history.saved(save, 4, whole=False)
    assert "a batch on some servers only" in warning.text


@pytest.mark.parametrize("fails", [False, True])
def test_the_program_is_told_that_its_checkpoint_was_tried(fails):
    history = training(every_s=1000.0)
    assert history.ask(Request.SAVE) == []
    [save] = history.look()
    assert save.reason is Reason.REQUEST
    told = history.fails(save, CheckpointError("full")) if fails else history.saved(save, 0)
    assert told[-1] == Tell(Request.SAVE)
    assert history.look() == [], "once"


# Servers that have lost their memory


def lost_everything(history, server=1):
    history.says(server, 0, generation=0)


def test_when_a_server_has_lost_everything_all_go_back_to_the_newest_checkpoint():
    history = training()
    history.says(0, history.machine.term, 31, heard_of=("worker:0",))
    assert history.look() == []
    lost_everything(history)
    before = history.machine.term
    assert history.look() == [Restore()]
    assert history.machine.restored(20, 0) == [term(before + 1, until=20, lost=11, heard_of=("worker:0",))]
    [warning] = history.begun(given_up=33)
    assert warning.text == (
        "ps:1 had lost all variables: every server goes back from step 33 to the checkpoint of step 20"
    )
    assert (history.machine.first_version, history.machine.rolled_back_steps) == (20, 13)


def test_steps_that_are_lost_again_are_counted_with_those_before():
    history = training()
    for reached, saved_before in ((33, 0), (24, 13)):
        history.at(20)
        lost_everything(history)
        assert history.look() == [Restore()]
        history.machine.restored(20, saved_before)
        history.begun(given_up=reached)
    assert history.machine.rolled_back_steps == 13 + 4


def test_what_a_server_said_before_the_term_began_counts_no_more():
    history = training()
    lost_everything(history)
    assert history.look(after_s=0.0) == [Restore()]
    history.machine.restored(0, 0)
    history.begun()
    assert history.look() == []


@pytest.mark.parametrize("error", GONE)
def test_servers_that_are_gone_are_restored_when_they_are_back(error):
    history = training()
    lost_everything(history)
    [_] = history.look()
    [begin] = history.machine.restored(0, 0)
    [warning] = history.fails(begin, error)
    assert "cannot be restored yet" in warning.text
    assert history.look(after_s=10 * PATIENCE_S) == [Restore()]
    [again] = history.machine.restored(0, 0)
    assert again.term == begin.term + 1


def test_what_cannot_be_restored_ends_training():
    history = training()
    lost_everything(history)
    [restore] = history.look()
    damaged = CheckpointError("all are damaged")
    assert history.fails(restore, damaged) == [GiveUp(damaged)]


def test_nothing_is_saved_of_servers_in_different_terms():
    history = training(every_steps=1)
    history.at(9)
    lost_everything(history)
    for request in (Request.SAVE, Request.FINISH):
        history.ask(request)
    assert history.look() == [Restore()]


def test_values_that_were_assigned_on_some_servers_are_taken_back():
    history = training()
    history.at(9)
    history.ask(Request.GIVE_BACK)
    assert history.look() == [Restore()]
    history.machine.restored(8, 0)
    warning, told = history.begun(given_up=9)
    assert "the leader died while it assigned values" in warning.text
    assert told == Tell(Request.GIVE_BACK)
    history.at(8)
    assert history.look() == []


# The end


def at_the_end():
    history = training()
    history.at(LAST_STEP)
    history.ask(Request.FINISH)
    [save] = history.look()
    return history, save


def test_the_last_step_is_saved_before_its_replicas_may_go():
    history, save = at_the_end()
    assert save == Save(Reason.LAST, history.machine.term, LAST_STEP, at_least=LAST_STEP)
    assert save.final
    assert history.saved(save, LAST_STEP) == [Conclude()]
    assert history.machine.concluded() == [Tell(Request.FINISH)]
    assert history.look() == []
    assert history.ask(Request.SAVE) == [Tell(Request.SAVE)], "there is nothing to save any more"


def test_training_goes_on_where_the_servers_are_not_at_the_last_step():
    history, save = at_the_end()
    assert history.saved(save, None) == [Tell(Request.FINISH, done=False)]
    assert history.look() == []


def test_training_goes_on_where_the_servers_had_to_go_back_first():
    history = training()
    history.at(LAST_STEP)
    lost_everything(history)
    history.ask(Request.FINISH)
    [_] = history.look()
    history.machine.restored(30, 0)
    assert history.begun()[-1] == Tell(Request.FINISH, done=False)


@pytest.mark.parametrize("error", [*GONE, PeerRefusedError("another term")])
@pytest.mark.parametrize("concludes", [False, True])
def test_a_server_that_dies_at_the_end_is_waited_for(error, concludes):
    history, save = at_the_end()
    action = history.saved(save, LAST_STEP)[0] if concludes else save
    assert history.fails(action, error) == []
    history.now += PATIENCE_S - 2
    history.at(LAST_STEP)
    [again] = history.look(after_s=0.0)
    assert again.reason is Reason.LAST
    assert history.fails(again, error) == [GiveUp(error)], "it is gone for good"


def test_a_last_step_that_cannot_be_written_ends_training():
    history, save = at_the_end()
    full = CheckpointError("full")
    assert history.fails(save, full) == [GiveUp(full)]


def test_a_server_that_is_gone_for_good_ends_training():
    history = training()
    gone = PeerLostError("ps:1 has been away for 60 s")
    assert history.fails(None, gone) == [GiveUp(gone)]
    assert history.look() == []


def test_one_that_is_ordered_to_stop_saves_what_there_is_if_all_servers_are_there():
    history = training()
    history.at(9)
    assert history.machine.stop([], save=True) == [Save(Reason.STOP, history.machine.term, 9)]
    assert history.machine.stop([1], save=True) == [Warn("no last checkpoint: ps:1 is not there")]
    assert history.machine.stop([], save=False) == []
    assert history.look() == []
    assert history.fails(None, PeerLostError("its channel was closed")) == []


# A process that trains alone


def test_a_process_alone_saves_its_start_its_schedule_and_its_last_step():
    history = History(every_steps=5, servers=0)
    machine = history.machine
    [start] = machine.begin(2, 0, save=True, now=0.0)
    assert history.saved(start, 2) == []
    machine.own_step = 0, 6
    assert history.look() == []
    machine.own_step = 0, 7
    [save] = history.look()
    assert (save.reason, save.step) == (Reason.SCHEDULE, 7)
    history.saved(save, 7)
    history.ask(Request.FINISH)
    [last] = history.look()
    assert (last.reason, last.final, last.at_least) == (Reason.LAST, True, 0)
    assert history.saved(last, 8) == [Tell(Request.FINISH)]
    assert machine.stopped


def test_what_happened_is_kept_in_the_trace():
    history = training(every_steps=3)
    history.at(3)
    [save] = history.look()
    history.saved(save, 3)
    assert history.events == [
        f"term begun: term {INCARNATION + 1}, step 0",
        "saved: step 3, why the schedule",
    ]
