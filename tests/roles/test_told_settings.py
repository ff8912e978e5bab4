"""Servers do what the leader says of `training`, whatever they were started with: the program may have wished
it.
"""

import threading

import msgspec
import numpy as np
import pytest
from net.spec_keys import IN_STRATEGIES
from roles.by_hand import TASKS, VARIABLES, Hand, lost
from roles.test_in_place import Silent
from row_by_row import every_row

from dtrain.config import AsyncSection, SyncSection, training_section
from dtrain.control.interface import Report, Send
from dtrain.errors import PeerLostError
from dtrain.messages import Commit, Complete, Heartbeat, Hello, Initialised, Reply, Subscribe
from dtrain.roles.parameter_server.driver import ServerHandler
from dtrain.wire.frames import Frame
from dtrain.wire.grpc_service import GrpcCaller

PATIENCE_S = 20.0
VALUES = {**IN_STRATEGIES, "updates": "sync"}
SPECIAL = {
    "strategy": {},
    "replicas_to_aggregate": {"replicas_to_aggregate": 2},
    "too_few": {"too_few": "shrink"},
    "too_few_timeout_s": {"too_few_timeout_s": 1.0},
    "staleness_bound": {"staleness_bound": 1},
    "max_staleness": {"stale_gradients": "drop", "max_staleness": 0},
    "compensation": {"stale_gradients": "compensate", "compensation": 0.5},
    "on_stale": {"stale_gradients": "drop", "max_staleness": 0, "on_stale": "retry_same_batch"},
    "warmup_steps": {"warmup_steps": 2},
}
"""What the story below needs beside a key, and values that it shows."""


def wish(key):
    sync = key.startswith(("too_few", "chief_")) or key not in AsyncSection.__struct_fields__
    return {
        **({"updates": "sync"} if sync else {}),
        **(SPECIAL[key] if key in SPECIAL else {key: VALUES[key]}),
    }


WISHES = {key: wish(key) for section in (SyncSection, AsyncSection) for key in section.__struct_fields__}
"""For each key of `training` that servers know, what a program would say that wants another value than the
default.
"""


class TwoServers(Hand):
    """What ps:1 reports reaches ps:0, and what ps:0 decides reaches ps:1; all that is sent to any task is
    written down.
    """

    def __init__(self, started_with, told):
        super().__init__(servers=2, max_steps=100, **started_with)
        self.said = []
        self.newest = {}
        self.training = training_section(**told)

    def say(self, task, message, blocks=(), server=0, caller=None):
        actions = super().say(task, message, blocks, server, caller)
        for action in actions:
            match action:
                case Report(Complete() as report):
                    self.say("ps:1", report)
                case Send(caller="ps:1", message=Commit() as commit):
                    self.say("ps:0", commit, server=1)
                case Send(message=Reply(version=version)):
                    self.newest[server, action.caller] = version
            if not isinstance(message, Heartbeat):
                self.said.append((server, repr(action), dict(self.parts)))
        return actions


SHOWN = sorted(
    set(WISHES)
    - {
        "strategy",
        "transport",
        "placement",
        "partitioner",
        "nan_policy",
        "deterministic",
        "validation",
        "seed",
        "outer",
    }
)
"""What a server's own doings show; the others are the replicas' business, and the outer optimizer comes with
the variables.
"""


def story(hand):
    """Let three replicas read and push twice at both servers, one run ahead, and another push NaN and be
    lost.

    Returns:
        All that was said, the values, and what failed.
    """
    assert hand.initialise() == [Initialised(given_up=-1), Initialised(given_up=-1)]
    hand.say("ps:1", Subscribe(generation=1, version=0, term=0), caller="ps:1")
    for server in (1, 0):  # ps:0, which deals the parts, is the last one heard
        for task in TASKS:
            hand.pull(task, server=server)
    for sequence, tasks in ((1, TASKS), (2, TASKS), (3, TASKS[:2]), (4, TASKS[:1]), (5, TASKS[:1])):
        for number, task in enumerate(tasks):
            part = max(0, hand.parts.get(task, 0))
            for server in (1, 0):
                base, value = hand.newest.get((server, task), 0), 1.0 + number + sequence / 7
                hand.push(task, sequence, base, value, server, part=part, examples=number + 1)
    for server in (0, 1):
        hand.push(
            "worker:1",
            3,
            hand.newest.get((server, "worker:1"), 0),
            9,
            server,
            finite=False,
            part=hand.parts.get("worker:1", 0),
        )
    for server in (1, 0):
        hand.push(
            "chief:0",
            6,
            hand.newest.get((server, "chief:0"), 0),
            3,
            server,
            part=hand.parts.get("chief:0", 0),
        )
    hand.said.append(repr(lost(hand, "worker:1")))
    hand.now += 2.0
    hand.said.append([repr(hand.tick(server)) for server in (0, 1)])
    return (
        hand.said,
        [hand.image(server) for server in (0, 1)],
        [server.held.failed for server in hand.servers],
    )


@every_row("key", WISHES)
def test_two_servers_do_what_they_are_told_and_not_what_they_were_started_with(key):
    wish = WISHES[key]
    told = TwoServers({}, wish)
    assert story(told) == story(TwoServers(wish, wish))
    assert [server.held.training for server in told.servers] == [training_section(**wish)] * 2


@every_row("key", SHOWN)
def test_the_story_shows_the_key(key):
    default = dict(WISHES[key])
    del default[key]
    default.pop("backup_workers", None)
    assert story(TwoServers({}, WISHES[key])) != story(TwoServers({}, default))


@pytest.fixture
def second():
    """ps:1, started with the default spec; whether it has gone to ps:0 for decisions."""
    hand = Hand(servers=2, variables=VARIABLES)
    asked = threading.Event()

    def to_host(timeout_s):
        asked.set()
        raise PeerLostError("ps:0 is not there in this test")

    handler = ServerHandler(
        hand.servers[1], Hello(run_id="run", cluster_hash="hash", task="ps:1"), Silent(), to_host=to_host
    )
    others = set(threading.enumerate())
    yield hand, handler, asked
    handler.ended.set()
    handler.close()
    for thread in set(threading.enumerate()) - others:
        thread.join(PATIENCE_S)


def initialise(hand, handler, **training):
    hand.training = training_section(**training)
    blocks = [np.zeros(group.size, group.dtype) for group in hand.plan.layout(1).groups]
    handler.received(
        GrpcCaller(Hello(run_id="run", cluster_hash="hash", task="chief:0")),
        Frame(hand.initialisation(), blocks),
    )


def test_a_server_follows_decisions_where_the_leader_says_that_training_is_synchronous(second):
    hand, handler, asked = second
    initialise(hand, handler, updates="sync")
    assert asked.wait(PATIENCE_S)
    assert handler.follows


def test_a_server_of_asynchronous_training_needs_no_decisions(second):
    hand, handler, asked = second
    initialise(hand, handler)
    assert not handler.follows
    assert not asked.is_set()


def test_what_is_told_is_the_whole_section():
    told = [Hand(**WISHES[key]).training for key in ("updates", "on_stale")]
    assert {key for each in told for key in msgspec.to_builtins(each)} == {*WISHES, "kind"}
