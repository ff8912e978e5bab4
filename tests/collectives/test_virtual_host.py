"""The shipped driver and machine on a host whose processes stop at every word and die between any two.

DTRAIN_SEEDS=FROM:TO runs other seeds than the usual ones.
"""

import os

import pytest
from collectives import backup_host, virtual_host
from collectives.drawn_scenes import TINY, drawn, two_deaths
from collectives.scene import Scene, judge
from collectives.virtual_host import VirtualHost, broken_rule

from dtrain.collectives.step import ARRIVE, Compute, Phase, SharedStep, share
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.round import SliceWork
from dtrain.roles.collective.rules import Waits

FIRST, LAST = map(int, os.environ.get("DTRAIN_SEEDS", "0:120").split(":"))
WORDS = range(1, 81, 1 if "DTRAIN_SEEDS" in os.environ else 2)
"""At which of its words a process dies: at each of them where seeds are chosen, else at every second one."""


@pytest.mark.parametrize("tenth", range(10))
def test_every_seed_keeps_the_rules_and_comes_to_its_end(tenth):
    for seed in range(FIRST, LAST)[tenth::10]:
        broken = broken_rule(seed)
        assert broken is None, broken


@pytest.mark.parametrize(
    ("place", "host"), [(virtual_host, VirtualHost), (backup_host, backup_host.BackupHost)]
)
def test_no_replica_is_named_by_a_wait_that_is_not_shown(place, host, monkeypatch):
    named, waited = [], []

    def name_of(rank):
        named.append(rank)
        return f"worker:{rank}"

    monkeypatch.setattr(place, "Waits", lambda clock: Waits(name_of, waited.append, clock=clock))
    scenes = [(seed, place.drawn(seed)) for seed in range(12)]
    for seed, scene in scenes:
        if not scene.poisoned and scene.replicas > 1:
            host(scene, seed).run()
    awaited = [whom for whom in waited if whom is not None]
    assert len(awaited) > 100
    assert named == []
    assert any("worker:1" in str(whom) for whom in awaited)


def does_not_wait(step, dead):
    """Update as soon as one's own gradients are there."""
    action = WAITS(step, dead)
    return action if isinstance(action, Compute) or action is ARRIVE else None


WAITS = SharedStep._await_gradients


def begins_without_new_rows(work, given):
    """Begin a step in which new rows are made as they are carried, and not before."""
    return [phase for phase in BEGINS(work, given) if phase is not Phase.ROWS]


def carries_at_once(work, phase, number, slices):
    """Make the new rows of a slice and carry them, while those of other slices are made."""
    updater = work._updater
    if phase is Phase.UPDATE:
        for block in list(updater.beside)[slice(*own(updater.beside, slices, number))]:
            updater.make(block)
    WORKS(work, phase, number, slices)


def own(blocks, slices, number):
    found = share(len(blocks), slices, number)
    return found.start, found.stop


BEGINS, WORKS = SliceWork.begin, SliceWork.work


def keeps_for_another_round(arena, number, tally):
    """Keep sums of epochs where those with which another round begins belong."""
    PUT_TALLY(arena, number + 1, tally)


PUT_TALLY = Arena.put_tally


PLANTED = {
    "writes in place": (("dtrain.parameters.store.TwoSidedStore._next", lambda store, version: store.parts),),
    "carries at once": (
        ("dtrain.roles.collective.round.SliceWork.begin", begins_without_new_rows),
        ("dtrain.roles.collective.round.SliceWork.work", carries_at_once),
    ),
    "keeps sums for another round": (
        ("dtrain.roles.collective.arena.Arena.put_tally", keeps_for_another_round),
    ),
    "nobody inherits": (("dtrain.collectives.step.successor", lambda order, place, dead: order[place]),),
    "carries no rows": (("dtrain.parameters.updater.Updater.carry", lambda updater, block: None),),
    "does not wait": (("dtrain.collectives.step.SharedStep._await_gradients", does_not_wait),),
}


@pytest.mark.parametrize("error", PLANTED)
def test_an_error_that_is_planted_is_found(error, monkeypatch):
    for place, planted in PLANTED[error]:
        monkeypatch.setattr(place, planted)
    assert any(broken_rule(seed, draw) for seed in range(50) for draw in (drawn, two_deaths))


def test_newcomers_have_the_sums_of_all_steps_whenever_the_others_die():
    """Two come in one after the other. Who writes what the first one's first round begins with dies at any of
    its words, before it has written that and after it; later the last of those dies who have not come newly.
    """
    alone = 0
    for word in WORDS:
        deaths = {0: (1, "word", 5), 1: (1, "word", 9), 2: (3, "word", word), 3: (7, "word", 30)}
        scene = Scene(replicas=4, parts=4, steps=9, variables=TINY, deaths=deaths, certain=False)
        host = VirtualHost(scene, word)
        host.restarts = [0, 1]
        host.run()
        ended = {life.rank for life in host.lives if life.tally is not None}
        if ended:  # else all who could have let the newcomers in have died
            judge(scene, host.arena, {}, host.tallies)
        alone += ended == {0, 1}
    assert alone > 10 / WORDS.step, "it is about newcomers who are left alone"
