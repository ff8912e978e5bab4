"""What a replica does whose host's speaker ends, while it waits between two steps."""

from types import SimpleNamespace

import pytest

from dtrain.config import MultiWorkerMirroredSection
from dtrain.errors import LeftBehindError
from dtrain.roles.collective.between_hosts.across import Spoken
from dtrain.strategies.multi_worker_mirrored.training import ReplicaTraining

SPEAKER = 1


class Host:
    """A replica that waits for the end of `fit`; its speaker ends while it does."""

    def __init__(self, *, says_the_end):
        self.dead = set()
        self.book = SimpleNamespace(look=lambda step: None, concluded=False, leader=SPEAKER)
        board = SimpleNamespace(summed=[40])
        spoken = Spoken(SimpleNamespace(board=board), SPEAKER, f"worker:{SPEAKER}")

        def wait(seconds):
            self.book.concluded = says_the_end
            self.dead.add(SPEAKER)

        driver = SimpleNamespace(across=spoken, look_across=lambda: spoken.look(41, self.dead))
        dealer = SimpleNamespace(parts=2, even=True)
        lineage = SimpleNamespace(first_step=0)
        state = SimpleNamespace(weights={}, dealer=dealer, lineage=lineage, global_step=40)
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


def test_the_end_that_a_speaker_wrote_before_it_ended_is_read():
    """It ends right after it has written that the run has ended; its mates have ended well too."""
    assert Host(says_the_end=True).training.wait_for_end()


def test_a_speaker_that_ends_without_it_leaves_its_mates_behind():
    with pytest.raises(LeftBehindError, match="worker:1, which spoke for this host, has ended"):
        Host(says_the_end=False).training.wait_for_end()
