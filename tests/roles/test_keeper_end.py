"""The end of a training, for the machine that keeps it, and a process that trains alone."""

from roles.keeper_history import (
    GONE,
    INCARNATION,
    LAST_STEP,
    PATIENCE_S,
    History,
    lost_everything,
    training,
)
from row_by_row import every_row

from dtrain.errors import CheckpointError, PeerLostError, PeerRefusedError
from dtrain.roles.chief.machine import ConcludeFit, GiveUp, Reason, Request, Save, Tell, Warn


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
    assert history.saved(save, LAST_STEP) == [ConcludeFit()]
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


@every_row("error", [*GONE, PeerRefusedError("another term")])
@every_row("concludes", [False, True])
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
