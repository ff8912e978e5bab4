"""The leader's thread: a beginning that is saved first, a server that loses everything, the last step."""

import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from dtrain import checkpoints
from dtrain.config import CheckpointSection, training_section
from dtrain.errors import PeerLostError, PeerRefusedError
from dtrain.learning import optimizers
from dtrain.messages import HeartbeatReply, Lineage, SnapshotReply
from dtrain.parameters import placement
from dtrain.roles.chief import machine
from dtrain.roles.chief.driver import Keeper, KeeperParts
from dtrain.roles.chief.start import fresh
from dtrain.runs.trace import NO_TRACE
from dtrain.state.batch_cut import Dealt
from dtrain.state.fit_state import FitState
from dtrain.variables import VariableSpec

PLAN = placement.plan([VariableSpec("one", (2,)), VariableSpec("two", (3,))], servers=2)
VALUES = {"one": np.zeros(2, np.float32), "two": np.ones(3, np.float32)}
OPTIMIZER = optimizers.serialize(optimizers.SGD(0.5))
MAX = 40
ASKED = FitState(compiled=OPTIMIZER, optimizer=OPTIMIZER, max_steps=MAX, dealt=Dealt(MAX))
TIMEOUT_S = 20.0


@dataclass
class Servers:
    """The leader's connections: what was given to the servers, and how far they are."""

    version: int = 0
    term: int = 0
    host: int = 0
    terms: list[int] = field(default_factory=list)
    given: list[object] = field(default_factory=list)
    limits: list[int | None] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    given_up: int = -1
    concluded: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def initialise(self, start, training, term, directory, until, heard_of):
        with self.changed:
            self.terms.append(term)
            self.term = term
            self.given.append(start)
            self.limits.append(until)
            self.changed.notify_all()
            if self.errors:
                raise self.errors.pop(0)
            self.version = start.state.version
            return self.given_up

    def snapshot(self, cut, newest, last):
        state = ASKED.but(version=self.version)
        return [SnapshotReply(state=state, slots=()) for _ in range(2)]

    def snapshot_rows(self, server, question):
        return np.full(question.stop - question.start, self.version, np.float32)

    def conclude(self, generation, rows):
        self.concluded.append(generation)

    def reconnect(self):
        pass

    def until(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, TIMEOUT_S)


class Links:
    """Two heartbeat links: what the servers say of themselves."""

    def __init__(self):
        self.links = [SimpleNamespace(failure=None, incarnation=100, away=False) for _ in range(2)]
        for server in range(2):
            self.say(server)

    def say(self, server, generation=0, term=0, version=0):
        link = self.links[server]
        link.reply = HeartbeatReply(
            incarnation=100, generation=generation, version=version, ended=False, term=term, lineage=Lineage()
        )
        link.answer = time.monotonic(), link.reply


@pytest.fixture
def keep(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "LOOK_S", 0.01)
    made = []

    def keep(servers, links, updates="async"):
        said = []
        status = SimpleNamespace(rolled_back_steps=0)
        reporter = SimpleNamespace(
            trace=NO_TRACE, status=status, warn=said.append, said=said, tried_to_save=lambda step, error: None
        )
        training, section = training_section(updates=updates), CheckpointSection(every_s=None)
        place = KeeperParts(servers, links.links, reporter, tmp_path, training, section, server_s=60.0)
        made.append(Keeper(place, PLAN, ASKED))
        return made[-1], place

    yield keep
    for each in made:
        each.stop(save=False)


def begun(keep, **more):
    servers, links = Servers(**more), Links()
    keeper, place = keep(servers, links)
    keeper.begin(fresh(ASKED, PLAN, VALUES), save=True)
    return keeper, place, servers, links


def finish(keeper):
    """Also if it is asked before it has seen what became of the servers."""
    while not keeper.finish():
        pass


def saved(place):
    return [found.step for found in checkpoints.list_checkpoints(place.checkpoints)]


def test_a_beginning_is_saved_and_given_to_all_in_a_term_that_nobody_knows(keep):
    _, place, servers, _ = begun(keep)
    assert saved(place) == [0]
    assert servers.terms == [101], "above the leader's incarnation"
    assert place.reporter.said == []


def test_a_server_that_dies_while_a_term_begins_is_given_another_one(keep):
    *_, servers, _ = begun(keep, errors=[PeerLostError("gone"), PeerLostError("gone again")])
    assert servers.terms == [101, 102, 103]


def test_a_server_that_lost_everything_takes_all_back_to_the_newest_checkpoint(keep):
    keeper, place, servers, links = begun(keep)
    servers.version = 20
    keeper._saver.save_cut(101)
    servers.given_up = 33
    links.say(0, 1, 101, 31)
    links.say(1)
    servers.until(lambda: servers.terms == [101, 102])
    assert keeper.finish() is False, "training goes on"
    given = servers.given[-1]
    assert (given.state.version, given.values["one"].tolist()) == (20, [20, 20])
    assert given.state.lineage.rolled_back_steps == 11, "as far as it was known before the servers were asked"
    assert place.reporter.status.rolled_back_steps == 13
    assert place.reporter.said == [
        "ps:1 had lost all variables: every server goes back from step 33 to the checkpoint of step 20"
    ]


def test_steps_that_are_lost_again_are_counted_with_those_lost_before(keep):
    keeper, place, servers, links = begun(keep)
    servers.version = 20
    keeper._saver.save_cut(101)
    for term, reached in ((102, 33), (103, 24)):
        servers.given_up = reached
        links.say(0, 1, term - 1, 20)
        links.say(1)
        servers.until(lambda term=term: servers.terms[-1] == term)
        assert keeper.finish() is False
    assert place.reporter.status.rolled_back_steps == 13 + 4
    servers.version = MAX
    links.say(0, 1, 103, MAX)
    links.say(1, 1, 103, MAX)
    finish(keeper)
    with checkpoints.open_checkpoint(place.checkpoints) as checkpoint:
        assert checkpoint.state.lineage.rolled_back_steps == 13 + 4


def test_a_second_fit_begins_a_later_term_also_where_no_heartbeat_has_told_of_the_first_one(keep):
    _, _, servers, links = begun(keep)
    keeper, _ = keep(servers, links)
    keeper.begin(fresh(ASKED, PLAN, VALUES), save=True)
    assert servers.terms == [101, 102]


def test_in_no_term_a_step_is_made_before_the_leader_has_given_its_order(keep):
    servers, links = Servers(), Links()
    keeper, _ = keep(servers, links)
    keeper.begin(fresh(ASKED, PLAN, VALUES).but(version=3), save=True)
    keeper.ordered(10, end=None)
    links.say(1)
    servers.until(lambda: len(servers.terms) == 2)
    assert servers.limits == [3, 3]


def test_the_last_step_is_saved_before_anybody_may_go(keep):
    keeper, place, servers, _ = begun(keep)
    assert keeper.finish() is False, "the servers are not there"
    servers.version = MAX
    assert keeper.finish() is True
    assert saved(place) == [0, MAX]
    with checkpoints.open_checkpoint(place.checkpoints) as checkpoint:
        assert checkpoint.manifest.final
    assert servers.concluded == [1]


def test_what_cannot_be_restored_ends_training(keep):
    keeper, _, servers, links = begun(keep)
    reasons = []
    keeper.on_failure = reasons.append
    servers.errors = [PeerRefusedError("the leader's plan does not fit")]
    links.say(1)
    with pytest.raises(PeerRefusedError, match="does not fit"):
        finish(keeper)
    with pytest.raises(PeerRefusedError, match="does not fit"):
        keeper.finish()
    assert reasons == ["the leader's plan does not fit"]
    assert isinstance(keeper.failure, PeerRefusedError)


def test_a_server_that_is_gone_for_good_ends_training(keep):
    keeper, _, _, links = begun(keep)
    links.links[1].failure = PeerLostError("ps:1 has been away for 60 s")
    with pytest.raises(PeerLostError, match="away for 60 s"):
        finish(keeper)


def test_one_that_is_ordered_to_stop_saves_what_there_is_if_all_servers_are_there(keep):
    keeper, place, servers, links = begun(keep)
    servers.version = 9
    keeper.stop(save=True)
    assert saved(place) == [0, 9]
    servers.version, links.links[1].away = 12, True
    keeper.stop(save=True)
    assert saved(place) == [0, 9]
    assert place.reporter.said == ["no last checkpoint: ps:1 is not there"]


def test_a_leader_that_comes_back_goes_on_with_what_the_servers_hold(keep):
    servers, links = Servers(version=7), Links()
    for server in range(2):
        links.say(server, 1, 55, 7)
    keeper, place = keep(servers, links)
    keeper.attach()
    assert servers.terms == []
    assert keeper.first_version == 7
    assert saved(place) == [7], "it has no checkpoint of its own yet"
