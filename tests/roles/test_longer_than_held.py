"""What a task of the run sends is longer than a server can use, and the task cannot know it: the server was
started again, or holds the variables of another call of `fit`. It is answered as a short message is.
"""

import queue
import socket

import numpy as np
import pytest
from roles.by_hand import Hand
from roles.test_in_place import Silent, credentials

from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.learning.core.initializers import Constant
from dtrain.messages import (
    Initialised,
    Load,
    LookupRows,
    Operate,
    Operation,
    Push,
    Refusal,
    RefusalKind,
    Reply,
    Values,
    Verdict,
)
from dtrain.roles.parameter_server.driver import ServerHandler
from dtrain.variables import VariableSpec
from dtrain.wire.grpc_client import GrpcChannel
from dtrain.wire.grpc_service import GrpcService
from dtrain.wire.one_host.local import LocalChannel, LocalService

LARGE = (VariableSpec("kernel", (1500, 700)), VariableSpec("bias", (700,)))
SMALL = (VariableSpec("kernel", (2, 2)),)
LIMIT_S = 20.0


class Noting(ServerHandler):
    """Says when a message has been dealt with."""

    def __init__(self, hand):
        super().__init__(hand.servers[0], credentials("ps:0").hello, Silent())
        self.heard = queue.SimpleQueue()

    def received(self, caller, frame):
        answer = super().received(caller, frame)
        self.heard.put(type(frame.message))
        return answer


@pytest.fixture(params=["local", "grpc"])
def serve(request):
    """Serve the first server of a `Hand`; returns its handler, and what connects a task to it."""
    ends = []

    def serve(hand):
        handler = Noting(hand)
        if request.param == "local":
            service = LocalService(handler, credentials("ps:0"))
            channel, place = LocalChannel, service.name()
        else:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                place = f"127.0.0.1:{probe.getsockname()[1]}"
            channel = GrpcChannel
            service = GrpcService(handler, place, credentials("ps:0"), connections=8, share_port=False)
        ends.append(service.stop)

        def connect(task):
            made = channel("ps:0", place, credentials(task), LIMIT_S)
            ends.append(made.close)
            return made

        return handler, connect

    yield serve
    for end in reversed(ends):
        end()


def push(hand, **changes):
    """A gradient of all variables, 4.2 MB if they are large."""
    about = {"generation": 1, "incarnation": 1, "sequence": 1, "base_version": 0, "part": 0, "term": 1}
    return Push(**{**about, "plan_hash": hand.plan.hash, **changes}), hand.blocks(value=1)


def told(channel, message, blocks=()):
    channel.send(message, blocks)
    return channel.receive().message


@pytest.mark.parametrize("updates", ["sync", "async"])
def test_of_a_server_that_was_started_again_every_replica_hears_the_new_term(serve, updates):
    hand = Hand(variables=LARGE, updates=updates)
    handler, connect = serve(hand)
    workers = [connect(f"worker:{index}") for index in range(2)]
    for worker in workers:
        worker.send(*push(hand))
        assert handler.heard.get(timeout=LIMIT_S) is Push
    leader = connect("chief:0")
    assert isinstance(told(leader, hand.initialisation(term=2), hand.blocks()), Initialised)
    for worker in workers:
        answer = worker.receive().message
        assert (type(answer), answer.generation, answer.term) == (Values, 1, 2)
    assert hand.version() == 0, "nothing of the earlier term counts"


def test_of_the_servers_of_a_later_fit_a_replica_hears_that_its_own_is_over(serve):
    """A replica that is no longer needed may be at work on a large model when a small one is trained."""
    late, hand = Hand(variables=LARGE), Hand(variables=SMALL)
    _, connect = serve(hand)
    assert isinstance(
        told(connect("chief:0"), hand.initialisation(generation=2, term=1), hand.blocks()), Initialised
    )
    answer = told(connect("worker:0"), *push(late))
    assert (type(answer), answer.generation) == (Values, 2)


def test_a_question_for_many_rows_waits_for_the_variables_too(serve):
    hand = Hand(variables=LARGE)
    handler, connect = serve(hand)
    worker = connect("worker:0")
    worker.send(LookupRows(generation=1, tables=(0,), wait_s=LIMIT_S, term=1), [np.arange(300_000)])
    assert handler.heard.get(timeout=LIMIT_S) is LookupRows
    told(connect("chief:0"), hand.initialisation(term=2), hand.blocks())
    answer = worker.receive().message
    assert (type(answer), answer.term) == (Values, 2)


def test_a_server_that_lost_the_variables_of_a_coordinator_says_so(serve):
    _, connect = serve(Hand(variables=LARGE))
    change = Operate(session=1, closure=1, number=0, settled=1, kind=Operation.ADD, shards=(0,))
    answer = told(connect("worker:0"), change, [np.zeros(700_000, np.float32)])
    assert (type(answer), answer.kind) == (Refusal, RefusalKind.LOST)


def test_a_gradient_longer_than_the_plan_of_its_term_is_refused_and_changes_nothing(serve):
    hand = Hand(variables=SMALL, updates="async")
    _, connect = serve(hand)
    told(connect("chief:0"), hand.initialisation(term=1), hand.blocks())
    before = hand.image()
    message, _ = push(hand)
    answer = told(connect("worker:0"), message, [np.zeros(1_000_000, np.float32)])
    assert isinstance(answer, Refusal)
    assert "does not fit" in answer.reason
    assert hand.image() == before


def test_a_gradient_of_every_row_of_a_narrow_table_is_taken(serve):
    """Its row numbers take twice as many bytes as its rows."""
    rows = 400_000
    hand = Hand(variables=(VariableSpec("words", (rows, 1), sparse=True),), updates="async")
    _, connect = serve(hand)
    drawn = {"words": {"": DrawnTable.of((rows, 1), Constant(0.0), []).describe()}}
    leader = connect("chief:0")
    told(leader, hand.initialisation(term=1, drawn=drawn, loads=True), hand.blocks())
    told(leader, Load(term=1, table=0, array="", start=0, stop=rows, last=True))
    message, blocks = push(hand, part=hand.dealt("worker:0"))
    blocks += [np.arange(rows), np.ones(rows, np.float32)]
    answer = told(connect("worker:0"), message, blocks)
    assert (type(answer), answer.verdict) == (Reply, Verdict.ACCEPTED)
