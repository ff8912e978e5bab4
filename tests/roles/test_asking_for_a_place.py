"""A worker that joins asks one task after the other where any replica may lead."""

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from dtrain.config import RunSpec, SecuritySection
from dtrain.config.choices import Transport
from dtrain.errors import PeerRefusedError, WaitTimeoutError
from dtrain.messages import Join, JoinPlace, NotReady, Refusal, RefusalKind
from dtrain.process.requests import JoinRequest
from dtrain.roles import joining

WORKERS = ["127.0.0.1:4001", "127.0.0.1:4002"]
CLUSTER = {"chief": ["127.0.0.1:4000"], "worker": WORKERS}
PLACE = JoinPlace(run_id="r-1", launched=True, cluster=CLUSTER, spec=RunSpec(), index=2)
NOT_LEADING = Refusal(reason="chief:0 does not lead", kind=RefusalKind.NOT_LEADING)


@dataclass
class Tasks:
    """What each task answers, in turn; one without answers is gone."""

    answers: dict
    asked: list = field(default_factory=list)
    open: int = 0

    def connect(self, server, address, credentials, timeout_s, transport, tell):
        self.asked.append(server)
        if not self.answers.get(server):
            tell("it refuses connections")
            raise WaitTimeoutError(f"{server} at {address} does not answer")
        self.open += 1
        return self.Channel(self, deque(self.answers[server]))

    @dataclass
    class Channel:
        tasks: object
        left: deque

        def send(self, message):
            assert message == Join()

        def receive(self, deadline):
            return SimpleNamespace(message=self.left.popleft())

        def close(self):
            self.tasks.open -= 1


def ask(monkeypatch, answers, *, server="chief:0", address="127.0.0.1:4000", cluster=CLUSTER, limit_s=60.0):
    tasks = Tasks(answers)
    monkeypatch.setattr(joining, "connect", tasks.connect)
    monkeypatch.setattr(joining, "_PAUSE_S", 0.0)
    request = JoinRequest(
        parent=1,
        server=server,
        address=address,
        transport=Transport.AUTO,
        reach_s=limit_s,
        wait_s=limit_s,
        run_id="r-1",
        cluster=cluster,
        security=SecuritySection(),
    )
    try:
        return joining.ask_for_place(request, lambda text: None), tasks.asked
    finally:
        assert tasks.open == 0, "every connection is closed"


def test_a_chief_that_has_come_back_and_follows_its_heir_is_passed_by(monkeypatch):
    place, asked = ask(monkeypatch, {"chief:0": [NOT_LEADING], "worker:1": [NotReady(reason="soon"), PLACE]})
    assert place == PLACE
    assert asked == ["chief:0", "worker:0", "worker:1"], "worker:0 is gone"


def test_one_that_leads_later_is_found_in_the_next_turn(monkeypatch):
    tasks = {"chief:0": [NOT_LEADING], "worker:0": [NOT_LEADING], "worker:1": [NOT_LEADING]}
    turns = []

    def connect(self, server, *arguments):
        turns.append(server)
        if len(turns) == 5:
            self.answers["worker:0"] = [PLACE]
        return original(self, server, *arguments)

    original = Tasks.connect
    monkeypatch.setattr(Tasks, "connect", connect)
    assert ask(monkeypatch, tasks)[0] == PLACE
    assert turns == ["chief:0", "worker:0", "worker:1", "chief:0", "worker:0"]


def test_a_refusal_for_another_reason_ends_it(monkeypatch):
    refusal = Refusal(reason="run r-1 is over")
    with pytest.raises(PeerRefusedError, match=r"chief:0 at .*: run r-1 is over"):
        ask(monkeypatch, {"chief:0": [refusal], "worker:0": [PLACE]})


def test_where_nobody_leads_the_wait_has_an_end(monkeypatch):
    with pytest.raises(WaitTimeoutError, match="does not lead; waited 0 s"):
        ask(monkeypatch, {"chief:0": [NOT_LEADING]}, limit_s=0.0)
    with pytest.raises(WaitTimeoutError, match="does not answer"):
        ask(monkeypatch, {}, limit_s=0.0)


def test_a_parameter_server_is_the_only_one_to_ask(monkeypatch):
    answers = {
        "ps:0": [Refusal(reason="ps:0 does not lead", kind=RefusalKind.NOT_LEADING)],
        "chief:0": [PLACE],
    }
    server = {"server": "ps:0", "address": "127.0.0.1:4003", "cluster": {**CLUSTER, "ps": ["127.0.0.1:4003"]}}
    with pytest.raises(PeerRefusedError, match=r"ps:0 at .*: ps:0 does not lead"):
        ask(monkeypatch, answers, **server)


def test_whom_it_waits_for_is_said_once_when_a_server_accepts_no_connection(monkeypatch):
    said = []
    clock = iter([0.0, 1.9, 2.1, 30.0, 31.0])
    request = SimpleNamespace(wait_s=60.0)
    monkeypatch.setattr(joining, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    waits = joining._Waits(request, said.append)
    for _ in range(4):
        waits.note("ps:0 at 127.0.0.1:4000", "it refuses connections")
    assert said == ["the worker that joins waits for ps:0 at 127.0.0.1:4000: it refuses connections"]
