"""A replica that asks for a leader where nobody leads any more."""

import pytest

from dtrain.errors import PeerLostError
from dtrain.messages import Enter, NotReady
from dtrain.strategies.multi_worker_mirrored.rendezvous import Peers, asked
from dtrain.wire.frames import Frame


class NeverLeads:
    """Every task in turn: each says that it does not lead."""

    name = "chief:0"
    asked = 0

    def send(self, message):
        self.asked += 1

    def receive(self):
        return Frame(NotReady(reason="this task does not lead"))

    def close(self):
        pass


def test_it_gives_up_in_a_sentence_and_waits_for_nobody_afterwards():
    told, turns, peer = [], [], NeverLeads()
    about = lambda: turns.append(1), lambda rank, timeout_s: None, told.append, lambda: None, 0.1, bool
    peers = Peers(peer, *about)
    with pytest.raises(PeerLostError, match=r"no task leads: .* 0.1 s \(wait.leader_s\) .*--resume"):
        asked(peers, Enter(generation=2, plan_hash=""))
    assert peer.asked == len(turns) + 1 > 1
    assert told == ["chief:0", None]
