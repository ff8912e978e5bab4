"""What a server keeps in its trace: the updates that it made, and the states that it remembered."""

from roles.by_hand import Hand
from roles.test_in_place import Silent

from dtrain.cluster import TaskId
from dtrain.control.interface import Note
from dtrain.messages import Hello, Push, Snapshot, Verdict
from dtrain.roles.parameter_server.driver import ServerHandler
from dtrain.runs.events import CutTaken
from dtrain.runs.trace import Trace
from dtrain.wire.frames import Frame


class Kept(Trace):
    """A trace that is on and keeps the names of its spans."""

    def __init__(self):
        super().__init__(None)
        self.on = True
        self.spans = []

    def span(self, name, begun_s, ended_s, whom=None):
        self.spans.append(name)


class Caller:
    """A connection to the server; its answers are kept."""

    reading = ()

    def __init__(self, task):
        self.hello = Hello(run_id="run", cluster_hash="cluster", task=task)
        self.answers = []

    def send(self, message, blocks=(), payload=None):
        self.answers.append(message)

    def has_read(self):
        pass


def test_only_an_update_that_is_made_is_a_span_of_apply():
    hand, reporter = Hand(updates="async"), Silent()
    reporter.trace = Kept()
    reporter.status.max_steps = reporter.status.rolled_back_steps = 0
    handler = ServerHandler(hand.servers[0], Hello(run_id="run", cluster_hash="c", task="ps:0"), reporter)
    handler.received(Caller("chief:0"), Frame(hand.initialisation(), hand.blocks()))
    assert not reporter.trace.spans
    for sequence, finite, verdict in ((1, False, Verdict.REFUSED), (2, True, Verdict.ACCEPTED)):
        worker = Caller("worker:0")
        push = Push(
            generation=1,
            incarnation=1,
            sequence=sequence,
            base_version=0,
            plan_hash=hand.plan.hash,
            part=hand.dealt("worker:0", None),
            finite=finite,
        )
        handler.received(worker, Frame(push, hand.blocks()))
        assert [answer.verdict for answer in worker.answers] == [verdict]
        assert reporter.trace.spans == ["apply"] * finite


def test_a_state_that_is_remembered_for_a_checkpoint_is_an_event(hand):
    machine = hand.servers[0]
    question = Snapshot(at_least=0, wait_s=1.0, term=machine.held.term, number=7)
    actions = machine.receive("chief:0", TaskId.parse("chief:0"), question, (), hand.now)
    assert [each.event for each in actions if isinstance(each, Note)] == [CutTaken(step=0, whole=True)]
