"""The machine of a study, over worlds drawn from a seed in which tuners and launches die at any event."""

import os
import random

import msgspec
import pytest

from dtrain.errors import RunError
from dtrain.studies.study_files import StudyFiles, StudyJournal
from dtrain.studies.study_spec import Better, StudySpec
from dtrain.studies.trials import (
    ENDED_TRIAL,
    Event,
    MetricReported,
    PruneOrdered,
    RunEnd,
    TrialAsked,
    TrialEnded,
    TrialExtended,
    Trials,
    TrialStarted,
    TrialState,
)

ALL = 12


def spec(**changes):
    given = {"max_trial_count": ALL, "parallel_trial_count": 3, "max_failed_trial_count": ALL, **changes}
    return StudySpec("s", {"accuracy": Better.MAXIMIZE}, {"x": (1, 2)}, **given)


def live(chance, journal):
    """One life of a tuner: it takes decisions, and is killed before or after any line of its journal."""
    trials = Trials(spec(), journal)
    trials.lose_processes()
    ended = {event.trial for event in journal if isinstance(event, TrialEnded)}

    def note(event):
        journal.append(event)
        trials.apply(event)
        return chance.random() < 0.05

    while trials.left:
        waiting, new = trials.next(chance.randint(1, 4))
        for _ in range(new):
            if note(TrialAsked(trial=len(trials.all), values={"x": chance.choice((1, 2))})):
                return False
            waiting.append(trials.all[-1])
        for trial in waiting:
            assert trial.number not in ended, "an ended trial is started"
            if note(TrialStarted(trial=trial.number)):
                return False
        running = [trial for trial in trials.all if trial.state is TrialState.RUNNING]
        assert len(running) <= 4
        assert running, "nothing runs, and nothing is over"
        trial = chance.choice(running)
        step = len(trial.reports) + 1
        if chance.random() < 0.6:
            value = chance.choice((None, chance.random()))
            if note(MetricReported(trial=trial.number, step=step, value=value, source=chance.randint(0, 3))):
                return False
            if chance.random() < 0.2 and note(PruneOrdered(trial=trial.number, step=step)):
                return False
        else:
            end = trials.judge(trial, RunEnd(chance.choice((0, 0, 0, 1, -9)), "why", ("loss",)))
            if end is None:
                trial.state = TrialState.ASKED
            elif note(end):
                return False
    return True


@pytest.mark.parametrize("seed", range(60))
def test_whatever_dies_every_trial_ends_once(seed):
    chance, journal = random.Random(seed), []
    while not live(chance, journal):
        pass
    ends = [event.trial for event in journal if isinstance(event, TrialEnded)]
    asked = [event.trial for event in journal if isinstance(event, TrialAsked)]
    assert sorted(ends) == list(range(ALL)) == asked
    found = Trials(spec(), journal)
    assert found.count(*ENDED_TRIAL) == ALL
    assert found.count(TrialState.RUNNING) == 0
    for trial in found.all:
        assert trial.state is not TrialState.COMPLETE or trial.value is not None


def judged(trials, number, code=0, **facts):
    return trials.judge(trials.all[number], RunEnd(code, **facts))


def one(*reports):
    events = [TrialAsked(trial=0, values={"x": 1}), TrialStarted(trial=0)]
    return Trials(
        spec(), [*events, *(MetricReported(trial=0, step=s, value=v, source=k) for s, v, k in reports)]
    )


def test_the_last_report_of_the_best_source_is_the_value():
    assert judged(one((1, 0.5, 2), (9, 0.9, 2), (3, 0.7, 0), (5, 0.6, 0)), 0).value == 0.6


def test_a_metric_that_never_came_is_named_beside_those_that_did():
    end = judged(one(), 0, metrics=("loss", "val_loss"))
    assert end.state is TrialState.FAILED
    assert "accuracy never came" in end.why
    assert "loss, val_loss" in end.why


def test_what_is_not_finite_is_a_failure_and_never_the_best():
    trials = one((1, 0.9, 0), (2, None, 0))
    trials.apply(end := judged(trials, 0))
    assert end.state is TrialState.FAILED
    assert "finite" in end.why
    assert trials.ranked() == []


def test_a_launch_that_is_killed_again_and_again_is_one_failure():
    trials = one()
    ends = []
    while not ends or ends[-1] is None:
        ends.append(judged(trials, 0, -9))
        trials.apply(TrialStarted(trial=0))
    assert ends[:-1] == [None, None]
    assert ends[-1].state is TrialState.FAILED


def test_the_best_are_ranked_by_the_direction_and_may_be_trained_on():
    trials = Trials(spec(), [TrialAsked(trial=n, values={"x": 1}) for n in range(3)])
    for number, value in enumerate((0.2, 0.9, 0.9)):
        trials.apply(TrialEnded(trial=number, state=TrialState.COMPLETE, value=value))
    assert [trial.number for trial in trials.ranked()] == [1, 2, 0]
    trials.apply(TrialExtended(trial=1, steps=500))
    assert [trial.number for trial in trials.next(3)[0]] == [1]


def test_a_complete_trial_that_cannot_be_trained_on_keeps_its_value():
    trials = one()
    trials.apply(TrialEnded(trial=0, state=TrialState.COMPLETE, value=0.9))
    trials.apply(TrialExtended(trial=0, steps=500))
    trials.apply(TrialStarted(trial=0))
    end = judged(trials, 0, 2)
    assert (end.state, end.value) == (TrialState.COMPLETE, 0.9)
    assert end.why.startswith("it could not be trained on: ")


def test_more_failures_than_are_allowed_are_too_many():
    trials = Trials(spec(max_failed_trial_count=1), [TrialAsked(trial=n, values={"x": 1}) for n in range(3)])
    for number in range(2):
        assert not trials.too_many_failed
        trials.apply(TrialEnded(trial=number, state=TrialState.FAILED, why="x"))
    assert trials.too_many_failed


def test_a_journal_that_was_cut_anywhere_is_read_up_to_its_last_whole_line(tmp_path):
    files = StudyFiles(tmp_path)
    events = [TrialAsked(trial=0, values={"x": 1.25}), TrialStarted(trial=0)]
    journal = StudyJournal(files, 0)
    journal.append(events)
    whole = files.journal.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(len(whole) + 1):
        files.journal.write_bytes(whole[:cut])
        found, nbytes = files.events()
        assert found == events[: whole[:cut].count(b"\n")]
        assert nbytes in (0, first, len(whole))
        again = StudyJournal(files, nbytes)
        again.append([PruneOrdered(trial=0, step=3)])
        assert files.events()[0][-1] == PruneOrdered(trial=0, step=3)


def test_events_survive_the_journal():
    event = MetricReported(trial=3, step=5, value=None, source=0, time="now")
    assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event


def test_a_full_disk_leaves_the_journal_as_it_was_and_says_how_to_go_on(tmp_path, monkeypatch):
    files = StudyFiles(tmp_path / "search")
    files.directory.mkdir()
    journal = StudyJournal(files, 0)
    journal.append([TrialAsked(trial=0, values={"x": 1})])
    before = files.journal.read_bytes()
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:5], at))
    with pytest.raises(RunError, match=r"No space left.*--resume search"):
        journal.append([TrialStarted(trial=0)])
    assert files.journal.read_bytes() == before
    monkeypatch.undo()
    journal.append([TrialStarted(trial=0)])
    assert len(files.events()[0]) == 2
