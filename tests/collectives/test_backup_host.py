"""Steps that do not wait for every replica, on a host whose processes stop, die and return between any two words.

DTRAIN_SEEDS=FROM:TO runs other seeds than the usual ones.
"""

import os

import pytest
from collectives.backup_host import broken_rule

from dtrain.collectives.backups import BackupFit
from dtrain.parameters.store import TwoSidedStore
from dtrain.roles.collective.backup_step import DECISION, SharedFit

FIRST, LAST = map(int, os.environ.get("DTRAIN_SEEDS", "0:40").split(":"))


@pytest.mark.parametrize("fifth", range(5))
def test_every_seed_keeps_the_rules_and_comes_to_its_end(fifth):
    for seed in range(FIRST, LAST)[fifth::5]:
        broken = broken_rule(seed)
        assert broken is None, broken


TAKE, LOSE = SharedFit.acquire, BackupFit.lose


def takes_a_slice_that_another_has(shared, number):
    """Work on a slice without its lock."""
    return TAKE(shared, number) or number != DECISION


def changes_the_standing_meanwhile(shared, number):
    """Change the standing while another process does."""
    return TAKE(shared, number) or number == DECISION


def takes_any_round_for_this_one(shared, fit):
    """Count gradients that are complete, but of an earlier version."""
    return {place for place, used in enumerate(fit.places) if used and shared._board.ready[place]}


def settles_whatever_is_late(fit, place, rules):
    """Settle a late part, though it is to be computed again."""
    fit.places[place] = None


def forgets_parts_of_the_dead(fit, rank, complete):
    """Do not deal the parts of a dead replica again."""
    due = list(fit.due)
    LOSE(fit, rank, complete)
    fit.due = due


PLANTED = {
    "a slice of another": (SharedFit, "acquire", takes_a_slice_that_another_has),
    "two change the standing": (SharedFit, "acquire", changes_the_standing_meanwhile),
    "writes in place": (TwoSidedStore, "_next", lambda store, version: store.parts),
    "stays at an old side": (TwoSidedStore, "stand_at", lambda store, version: None),
    "an old gradient counts": (SharedFit, "complete", takes_any_round_for_this_one),
    "late parts are settled": (BackupFit, "late", settles_whatever_is_late),
    "parts of the dead": (BackupFit, "lose", forgets_parts_of_the_dead),
}


@pytest.mark.parametrize("error", PLANTED)
def test_an_error_that_is_planted_is_found(error, monkeypatch):
    monkeypatch.setattr(*PLANTED[error])
    assert any(broken_rule(seed) for seed in range(50))
