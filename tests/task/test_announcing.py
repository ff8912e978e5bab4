"""What a task without a launcher says of its waits (docs/guide/cluster.md)."""

from itertools import pairwise

import pytest

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.process.assignment import TaskAssignment
from dtrain.runs.self_report import AGAIN_S, LONGEST_S, Announcements, Unreached, exposure, introduction

REFUSED = "refused: nothing listens there"
CLUSTER = ClusterSpec.from_lists(chief=["c:1"], worker=["w:1", "w:2"], ps=["p:1", "p:2", "p:3", "p:4"])


class Listener:
    """Hears a task's announcements twice a second, as its reporter asks for them."""

    def __init__(self):
        self.announcements, self.now_s, self.heard = Announcements(), 0.0, []

    def listen(self, until_s, reason=None, whom=None, since_s=0.0):
        while self.now_s < until_s:
            found = {"ps:0": Unreached("p:1", reason, since_s, self.now_s)} if reason else {}
            waiting = (whom, since_s) if whom else None
            self.heard += [(self.now_s, text) for text in self.announcements.due(self.now_s, found, waiting)]
            self.now_s += 0.5
        return [text for _, text in self.heard]


def test_a_wait_is_told_from_the_second_second_with_its_reason():
    listener = Listener()
    assert listener.listen(1.0, REFUSED, "ps:0") == []
    assert listener.listen(2.0, REFUSED, "ps:0") == [f"waits for ps:0 at p:1: {REFUSED}"]


def test_a_change_of_the_reason_is_told_at_once_and_the_end_of_the_wait_too():
    listener = Listener()
    listener.listen(2.0, REFUSED)
    assert listener.listen(2.5, "no such name: p")[1:] == ["waits for ps:0 at p:1: no such name: p"]
    assert listener.listen(3.0)[2:] == ["ps:0 is there"]
    assert len(listener.listen(100.0)) == 3


def test_reasons_that_take_turns_are_told_once_each_and_then_as_rarely_as_one():
    """A host whose cable is pulled gives no answer, and then there is no route to it, by turns."""
    one, turns = Listener(), Listener()
    one.listen(60.0, REFUSED)
    while turns.now_s < 60.0:
        reason = "no answer" if turns.now_s % 4 < 2 else "no route to it"
        turns.listen(turns.now_s + 0.5, reason)
    assert len(turns.heard) <= len(one.heard) + 1


def test_a_long_wait_is_told_again_ever_more_rarely():
    listener = Listener()
    listener.listen(600.0, REFUSED)
    times = [time_s for time_s, _ in listener.heard]
    pauses = [later - before for before, later in pairwise(times)]
    assert pauses[0] == AGAIN_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_S
    assert listener.heard[1][1] == f"waits for ps:0 at p:1: {REFUSED} (6 s so far)"


def test_who_waits_at_every_step_says_so_as_rarely_as_in_one_wait():
    once, at_every_step = Listener(), Listener()
    once.listen(60.0, whom="worker:1 (at ps:0)")
    while at_every_step.now_s < 60.0:
        begun_s = at_every_step.now_s
        at_every_step.listen(begun_s + 2.0, whom=f"worker:{begun_s % 3:g} (at ps:0)", since_s=begun_s)
    assert 1 < len(at_every_step.heard) <= len(once.heard)


def test_a_server_that_nobody_tries_to_reach_any_more_is_not_told_of():
    announcements = Announcements()
    given_up = {"ps:0": Unreached("p:1", REFUSED, since_s=0.0, seen_s=2.0)}
    assert list(announcements.due(2.0, given_up, None)) == [f"waits for ps:0 at p:1: {REFUSED}"]
    assert list(announcements.due(1000.0, given_up, None)) == []


def test_a_task_says_who_it_is_and_where_it_listens():
    def said(task):
        return introduction(TaskAssignment.by_hand(CLUSTER, TaskId.parse(task), {}), pid=77)

    who = f"process 77 of run hand-{CLUSTER.hash}, which is 1 chief, 2 workers, 4 ps"
    assert said("ps:1") == f"{who}; listens at p:2"
    assert (
        said("worker:1")
        == f"{who}; connects to ps:0 at p:1, ps:1 at p:2, ps:2 at p:3 and 1 more and listens nowhere"
    )


def test_a_replica_without_servers_says_where_it_serves():
    cluster = ClusterSpec.from_lists(worker=["w:1", "w:2"])
    said = introduction(TaskAssignment.by_hand(cluster, TaskId.parse("worker:1"), {}), pid=77)
    assert said == f"process 77 of run hand-{cluster.hash}, which is 2 workers; serves at w:2"


@pytest.mark.parametrize(
    ("secret", "encrypted", "said"),
    [
        (
            None,
            False,
            "warning: without a secret every program that reaches c:1 may read and change the model",
        ),
        (
            None,
            True,
            "warning: without a secret every holder of a certificate of the same authority is let in",
        ),
        (
            "s" * 20,
            False,
            "tasks prove the secret; without TLS a listener on the network can read the model",
        ),
        ("s" * 20, True, "connections have TLS, and tasks prove the secret"),
    ],
)
def test_a_task_on_a_network_says_what_protects_it(secret, encrypted, said):
    own = {"DTRAIN_SECRET": secret} if secret else {}
    assert exposure(TaskAssignment.by_hand(CLUSTER, TaskId.parse("ps:1"), own), encrypted=encrypted) == said
