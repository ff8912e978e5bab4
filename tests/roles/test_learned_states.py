"""What the leader has learned from its data reaches every task that asks, once, and nobody waits in vain."""

from types import SimpleNamespace

import pytest

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import training_section
from dtrain.control import learned
from dtrain.control.interface import Send
from dtrain.control.machine import ControlPlane
from dtrain.messages import AskLearned, Farewell, Learned, Lineage, Refusal

CLUSTER = ClusterSpec.from_lists(chief=["c:0"], worker=["w:0", "w:1"], ps=["p:0"])
TRAINING = training_section(updates="sync")


class Host:
    """The control host; every task has one connection, by its name."""

    def __init__(self):
        self.plane = ControlPlane(TaskId.parse("ps:0"), CLUSTER, TRAINING, 0.0, evaluators=1)

    def say(self, task, message):
        actions = self.plane.receive(task, TaskId.parse(task), message, 0.0)
        return self.sent(actions)

    @staticmethod
    def sent(actions):
        return {each.caller: each.message for each in actions if isinstance(each, Send)}

    def begin(self, generation):
        progress = SimpleNamespace(generation=generation, term=1, lineage=Lineage(), steps=None, failed=None)
        return self.sent(self.plane.begin(progress, TRAINING, 0.0))


@pytest.fixture
def host():
    return Host()


def test_who_asks_before_waits_and_who_asks_later_is_answered_at_once(host):
    assert host.say("worker:0", AskLearned(key="a", fits=0)) == {}
    assert host.say("evaluator:0", AskLearned(key="b", fits=0)) == {}
    told = Learned(key="a", state=b"[1]")
    assert host.say("chief:0", told) == {"worker:0": told, "chief:0": Learned(key="a")}
    assert host.say("worker:1", AskLearned(key="a", fits=0)) == {"worker:1": told}
    other = Learned(key="b", state=b"[2]")
    assert host.say("chief:0", other) == {"evaluator:0": other, "chief:0": Learned(key="b")}


def test_a_task_that_asks_again_or_is_gone_is_answered_once(host):
    host.say("worker:0", AskLearned(key="a", fits=0))
    host.say("worker:0", AskLearned(key="a", fits=0))
    host.say("worker:1", AskLearned(key="a", fits=0))
    host.plane.disconnected("worker:1")
    assert set(host.say("chief:0", Learned(key="a", state=b"[1]"))) == {"worker:0", "chief:0"}
    assert set(host.say("chief:0", Learned(key="a", state=b"[1]"))) == {"chief:0"}


@pytest.mark.parametrize("task", ["worker:0", "evaluator:0"])
def test_only_the_leader_tells(host, task):
    assert isinstance(host.say(task, Learned(key="a", state=b"[6]"))[task], Refusal)
    assert host.say("worker:1", AskLearned(key="a", fits=0)) == {}


def test_who_waits_for_what_the_leader_has_passed_over_learns_for_itself(host):
    host.say("worker:0", AskLearned(key="a", fits=0))
    host.say("worker:1", AskLearned(key="a", fits=1))
    assert host.begin(1) == {"worker:0": Learned(key="a")}
    assert host.say("evaluator:0", AskLearned(key="a", fits=0)) == {"evaluator:0": Learned(key="a")}
    assert host.say("chief:0", Farewell())["worker:1"] == Learned(key="a")
    assert host.say("worker:0", AskLearned(key="c", fits=7)) == {"worker:0": Learned(key="c")}


def test_a_worker_that_comes_later_takes_over_what_was_learned_before_the_fit(host):
    told = Learned(key="a", state=b"[1]")
    host.say("chief:0", told)
    host.begin(1)
    assert host.say("worker:1", AskLearned(key="a", fits=0)) == {"worker:1": told}


def test_what_is_too_large_is_not_kept_and_each_task_learns_it(host, monkeypatch):
    monkeypatch.setattr(learned, "STATE_LIMIT_BYTES", 10)
    monkeypatch.setattr(learned, "STATES_LIMIT_BYTES", 15)
    host.say("worker:0", AskLearned(key="a", fits=0))
    assert host.say("chief:0", Learned(key="a", state=bytes(11)))["worker:0"] == Learned(key="a")
    for _ in range(3):  # told again, it takes no more memory
        host.say("chief:0", Learned(key="b", state=bytes(10)))
    host.say("chief:0", Learned(key="c", state=bytes(6)))
    sizes = [len(host.say("worker:0", AskLearned(key=key, fits=0))["worker:0"].state) for key in "abc"]
    assert sizes == [0, 10, 0]
