"""Batches are dealt so that none is missed, whoever dies, and none is computed twice while nobody does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.protocol.batch_dealer import NOTHING_DEALT, BatchDealer


def finish(dealer, rank):
    """A replica computes its batch and is judged; returns the batch."""
    batch = dealer.give(rank)
    dealer.pushed(rank, batch)
    dealer.done(batch)
    return batch


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_while_all_keep_step_batch_k_is_of_replica_k_mod_t(replicas):
    dealer = BatchDealer.of(replicas, 1, 1000, NOTHING_DEALT)
    for step in range(20):
        assert [finish(dealer, rank) for rank in range(replicas)] == [step * replicas + rank for rank in range(replicas)]


def test_a_replica_is_given_the_same_batch_until_its_push_has_arrived():
    dealer = BatchDealer.of(2, 1, 1000, NOTHING_DEALT)
    assert [dealer.give(1), dealer.give(1)] == [1, 1]
    dealer.pushed(1, 1)
    assert dealer.give(1) == 3


def test_the_fast_ones_do_what_a_slow_one_does_not_get_to():
    dealer = BatchDealer.of(3, 1, 1000, NOTHING_DEALT)
    assert dealer.give(2) == 2  # and it computes for ever
    done = sorted(finish(dealer, rank) for _ in range(50) for rank in (0, 1))
    missing = set(range(done[-1])) - set(done)
    assert 2 in missing
    assert max(missing) > done[-1] - 4 * dealer.slack
    assert min(missing - {2}) > done[-1] - 2 * dealer.slack, "somebody's lane is left behind"


def test_at_the_end_the_fast_ones_help_at_once():
    dealer = BatchDealer.of(3, 1, 9, NOTHING_DEALT)
    assert [finish(dealer, 0) for _ in range(4)] == [0, 3, 6, 1]
    assert sorted(finish(dealer, 0) for _ in range(5)) == [2, 4, 5, 7, 8]
    assert finish(dealer, 0) == 9


def test_one_that_has_joined_takes_the_oldest_batch():
    dealer = BatchDealer.of(2, 1, 1000, NOTHING_DEALT)
    assert finish(dealer, 0) == 0
    assert finish(dealer, 7) == 1
    assert finish(dealer, 7) == 2


def test_a_stale_batch_is_repeated_by_the_same_replica_or_by_whoever_is_next():
    dealer = BatchDealer.of(2, 1, 1000, NOTHING_DEALT)
    batch = dealer.give(0)
    dealer.pushed(0, batch)
    dealer.repeat(batch)
    assert dealer.give(0) == batch
    dealer.pushed(0, batch)
    assert dealer.give(0) == 2
    dealer.repeat(batch)
    assert dealer.give(1) == batch


class ScanningDealer(BatchDealer):
    """A twin that looks at every lane."""

    def _oldest(self):
        return min((batch, lane) for lane, batch in enumerate(self.lanes))


ACTIONS = st.lists(
    st.tuples(st.sampled_from(("give", "push", "done", "repeat", "give_back", "lose", "restart")), st.integers(0, 4))
)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 4), ACTIONS, st.integers(1, 5))
def test_no_batch_is_missed_and_none_done_twice(replicas, actions, replicas_then):
    dealer = BatchDealer.of(replicas, 1, 1000, NOTHING_DEALT)
    twin = ScanningDealer.of(replicas, 1, 1000, NOTHING_DEALT)
    done, pushed = [], {}
    for action, rank in actions:
        if action == "give":
            assert dealer.give(rank) == twin.give(rank)
        elif action == "push" and rank in dealer.current:
            batch = dealer.current[rank]
            pushed[batch] = rank
            dealer.pushed(rank, batch)
            twin.pushed(rank, batch)
        elif action == "lose":
            dealer.lose([rank])
            twin.lose([rank])
        elif action == "restart":
            twin = ScanningDealer.of(replicas_then, 1, 1000, twin.export())
            dealer, pushed = BatchDealer.of(replicas_then, 1, 1000, dealer.export()), {}
        elif pushed and action in ("done", "repeat", "give_back"):
            batch = min(pushed)
            del pushed[batch]
            getattr(dealer, action)(batch)
            getattr(twin, action)(batch)
            done += [batch] * (action == "done")
        assert dealer.export() == twin.export()
    assert len(set(done)) == len(done), "computed twice"
    dealer.lose([])
    for _ in range(60):
        done += [finish(dealer, rank) for rank in range(5) if rank not in pushed.values()]
    open_batches = {*dealer.given, *dealer.due}
    assert len(set(done)) == len(done)
    assert set(range(min(dealer.lanes))) - set(done) <= open_batches, "missed"
