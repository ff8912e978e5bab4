"""What a replica does that came too late to be known to other hosts, if all those end that were known."""

from types import SimpleNamespace

import pytest

from dtrain.config import MultiWorkerMirroredSection
from dtrain.errors import LeftBehindError
from dtrain.messages.replicas import Seat
from dtrain.roles.collective.between_hosts.agreement import AgreementMember
from dtrain.state.batch_cut import UNCUT
from dtrain.state.fit_state import FitState
from dtrain.strategies.multi_worker_mirrored.training import ReplicaTraining

PROXY, OWN = 1, 2


class NoLocks:
    """Nobody has the lock, nor may have it."""

    def is_free(self, number):
        return True

    def acquire(self, number):
        raise AssertionError("a replica that others do not know does not speak")

    def close(self):
        pass


class Host:
    """A replica that waits for the end of `fit`; the only one that may speak ends while it does."""

    def __init__(self, *, says_the_end):
        self.dead = set()
        self.book = SimpleNamespace(poll=lambda step: None, concluded=False, leader=PROXY)
        successors = (Seat(rank=PROXY, task=f"worker:{PROXY}", address="there"),)
        arena = SimpleNamespace(
            board=SimpleNamespace(summed=[40]),
            vote=SimpleNamespace(read=lambda: SimpleNamespace(successors=successors, over=False)),
            address={PROXY: "there", OWN: "here"}.get,
        )
        self.agreement_member = AgreementMember(arena, NoLocks(), OWN, lambda number, book: None)

        def wait(seconds):
            self.book.concluded = says_the_end
            self.dead.add(PROXY)

        driver = SimpleNamespace(
            across=self.agreement_member, look_across=lambda: self.agreement_member.poll(41, self.dead)
        )
        dealer = SimpleNamespace(parts=2, even=True, cut=UNCUT)
        begun = FitState()
        state = SimpleNamespace(weights={}, dealer=dealer, begun=begun, global_step=40)
        self.training = ReplicaTraining(
            driver,
            SimpleNamespace(wait=wait),
            None,
            self.book,
            state,
            None,
            MultiWorkerMirroredSection(),
            SimpleNamespace(waiting=lambda whom: None),
            name_of="worker:{}".format,
            failure=lambda: None,
            lead=None,
            on_close=None,
        )


@pytest.fixture
def host():
    hosts = []

    def make(*, says_the_end):
        hosts.append(Host(says_the_end=says_the_end))
        return hosts[-1]

    yield make
    for each in hosts:
        each.agreement_member.close()


def test_the_end_that_a_speaker_wrote_before_it_ended_is_read(host):
    """It ends right after it has written that the run has ended; its mates have ended well too."""
    assert host(says_the_end=True).training._conclude()


def test_without_it_a_replica_that_others_do_not_know_is_left_behind(host):
    with pytest.raises(LeftBehindError, match="worker:1, of which the other hosts know, have ended"):
        host(says_the_end=False).training._conclude()
