"""What the leader does beside training, on histories: one event after the other, and what is to be done."""

import pytest
from roles.keeper_history import (
    GONE,
    INCARNATION,
    PATIENCE_S,
    History,
    lost_everything,
    term,
    training,
)

from dtrain.errors import CheckpointError, PeerRefusedError
from dtrain.roles.chief.machine import GiveUp, Reason, Request, Restore, Tell, Warn

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


def test_a_task_that_is_about_to_end_gets_a_checkpoint_once():
    history = training(every_s=1000.0)
    history.at(4)
    history.machine.notices = ["ps:1"]
    [save] = history.look()
    assert (save.reason, save.step) == (Reason.NOTICE, 4)
    assert history.saved(save, 4) == []
    assert history.look() == []
    history.machine.notices = ["ps:0", "ps:1"]
    assert [each.reason for each in history.look()] == [Reason.NOTICE]
    history.machine.notices = []
    assert history.look() == []
    history.machine.notices = ["ps:1"]
    assert history.look() == [], "it has told of that before"


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
