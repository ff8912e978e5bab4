"""When a checkpoint is due, and what is one."""

from row_by_row import every_row

from dtrain.config import CheckpointSection
from dtrain.messages import Mark, Marked, Snapshot, SnapshotReply
from dtrain.roles.chief.machine import ANSWER_WAIT_S, ARRIVAL_S, MARK_S, CheckpointSchedule, Cut
from dtrain.state.fit_state import Contents, FitState


def test_by_time_by_steps_whichever_comes_first_and_never_twice_of_a_step():
    schedule = CheckpointSchedule(CheckpointSection(every_s=30.0, every_steps=100), last_s=0.0, last_step=0)
    assert not schedule.due(99, 29.9)
    assert schedule.due(100, 1.0)
    assert schedule.due(1, 30.0)
    assert not schedule.due(0, 1000.0)
    schedule.saved(100, 50.0)
    assert not schedule.due(100, 1000.0)
    assert not schedule.due(199, 79.9)
    assert schedule.due(101, 80.0)


@every_row(
    "section, now, expected",
    [
        (CheckpointSection(every_s=30.0), 10.0, 1.0),
        (CheckpointSection(every_s=30.0), 29.5, 0.5),
        (CheckpointSection(every_s=30.0), 40.0, 0.05),
        (CheckpointSection(every_s=None), 10.0, 1.0),
        (CheckpointSection(every_steps=10), 10.0, 0.05),
    ],
)
def test_it_sleeps_no_longer_than_it_may(section, now, expected):
    assert CheckpointSchedule(section, last_s=0.0, last_step=0).wait_s(now) == expected


def test_a_synchronous_cut_is_one_version_and_looks_further_ahead_each_time():
    cut = Cut(sync=True)
    assert cut.question(10, 100) == Snapshot(at_least=12, wait_s=ANSWER_WAIT_S)
    assert not cut.accept([12, 13])
    assert cut.question(13, 100) == Snapshot(at_least=17, wait_s=ANSWER_WAIT_S)
    assert cut.question(99, 100) == Snapshot(at_least=100, wait_s=ANSWER_WAIT_S)
    assert cut.accept([100, 100])


def answer(version, *applied):
    contents = (Contents(version, applied),)
    return SnapshotReply(state=FitState(version=version, contents=contents), slots=())


def test_an_asynchronous_cut_has_what_any_server_had_when_it_was_marked_but_for_what_is_computed_again():
    cut = Cut(sync=False, term=3)
    assert cut.mark() == Mark(wait_s=MARK_S, term=3)
    first = Marked(applied=(7, (2, 4)), again=(3,), settled=2)
    second = Marked(applied=(9, (2, 5, 7)))
    assert cut.marked([first, second]) == Snapshot(
        at_least=0, wait_s=ARRIVAL_S, term=3, covers=(9, (2, 3, 7)), settled=2
    )
    assert cut.accept([12, 13])


def test_an_asynchronous_cut_is_whole_if_all_servers_have_applied_the_same_batches():
    cut = Cut(sync=False)
    one = answer(7, 8, (3,))
    assert cut.whole([one, answer(7, 8, (3,))])
    assert not cut.whole([one, answer(8, 8, ())])
    assert not cut.whole([one, answer(7, 8, (4,))])
