"""The loop of an agent: what it does with orders and ends of tasks before and after its lease has run out."""

import random
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from dtrain.cluster import TaskId
from dtrain.errors import RunError
from dtrain.process.start_protocol import Exited, Started, StartTask, encode
from dtrain.runs.files import RunFiles
from dtrain_cli.agent import driver
from dtrain_cli.agent.copies import PIECE_BYTES
from dtrain_cli.agent.lease import GRACE_S, LEASE_S, REST_S
from dtrain_cli.agent.messages import (
    ORDERS,
    AllMade,
    BeginRun,
    Fetch,
    MadePart,
    Ping,
    Pong,
    RunReady,
    SignalOrder,
)

SEED = 20261126
WORKER, CHIEF = TaskId.parse("worker:0"), TaskId.parse("chief:0")


class Processes:
    """A stand-in for `LocalTarget`: an order starts a process, a signal ends it, and its end is reported once."""

    def __init__(self):
        self.alive = {}
        self.started = []
        self._events = []

    def wake_on(self, source):
        pass

    def start_ordered(self, order):
        task, attempt = TaskId.parse(order.task), order.attempt
        self.started.append((task, attempt))
        self.alive[task] = attempt
        self._events.append(Started(order.task, attempt, 7))
        return SimpleNamespace(attempt=attempt, signal=lambda number: self.end(task, attempt, -number))

    def end(self, task, attempt, status):
        if self.alive.get(task) == attempt:
            del self.alive[task]
            self._events.append(Exited(str(task), attempt, status, 0))

    def events(self, until_s):
        events, self._events = self._events, []
        return events


class Stage:
    """An agent on a clock that the test sets."""

    def __init__(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        monkeypatch.delenv("DTRAIN_RUNS_DIR", raising=False)
        monkeypatch.setattr(driver, "SignalInbox", lambda: SimpleNamespace(read=list))
        self.now_s = 1000.0
        monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.processes = Processes()
        self.said = []
        self._orders = []
        launcher = SimpleNamespace(
            read=self._read, send=self.said.append, waiting_bytes=0, over=False, writable=True
        )
        launcher.finish = lambda wait_s: None
        self.agent = driver.HostAgent(launcher, self.processes)

    def _read(self):
        orders, self._orders = self._orders, []
        return orders

    def turn(self, *orders, after_s=0.0):
        """Let time pass and the orders arrive; what the agent says to that."""
        self.now_s += after_s
        self._orders += orders
        before = len(self.said)
        self.agent._turn()
        return [word for word in self.said[before:] if not isinstance(word, Pong)]

    def begin(self, lease_s):
        (ready,) = self.turn(BeginRun("run", "h1", None, None, "/", lease_s))
        assert isinstance(ready, RunReady)
        self.turn(Ping(self.now_s))


def start(attempt=0, task=WORKER):
    return StartTask(str(task), attempt, ["true"], {}, {}, "/", "/dev/null", needs_grpc=False, executed=True)


@pytest.fixture
def stage(monkeypatch, tmp_path):
    return Stage(monkeypatch, tmp_path)


def test_the_wait_for_an_earlier_agent_does_not_use_up_the_lease(stage, monkeypatch):
    def locked(descriptor, wait_s, words):
        assert wait_s > 60.0 + GRACE_S, "the earlier one ends by its lease"
        stage.now_s += wait_s
        return True

    monkeypatch.setattr(driver, "lock", locked)
    stage.begin(60.0)
    stage.turn(start())
    assert stage.processes.alive == {WORKER: 0}


def test_an_order_to_start_that_comes_after_the_lease_starts_nothing_and_refuses_nothing(stage):
    """The task may run on another host by now; where it does not, the launcher starts it again here."""
    stage.begin(LEASE_S)
    stage.turn(after_s=LEASE_S)
    assert stage.turn(start(), after_s=0.5) == []
    assert stage.processes.started == []


def test_the_end_of_a_task_by_the_lease_is_not_told_as_its_own(stage):
    """A SIGTERM that its launcher has not sent would count as a stranger's, and the task as lost for good."""
    stage.begin(LEASE_S)
    stage.turn(start())
    stage.turn()
    stage.turn(after_s=LEASE_S)
    assert stage.processes.alive == {}
    assert stage.turn() == []
    assert stage.agent._lease_is_over()


def test_the_end_of_a_task_before_the_lease_is_told(stage):
    stage.begin(LEASE_S)
    stage.turn(start())
    stage.turn()
    stage.turn(SignalOrder(str(WORKER), 0, signal.SIGTERM))
    assert stage.turn() == [Exited(str(WORKER), 0, -signal.SIGTERM, 0)]


@pytest.mark.parametrize("number", range(40))
def test_a_cut_within_the_lease_costs_no_task_and_a_longer_one_ends_them_without_a_word(stage, number):
    """Cuts of any length up to the moment at which the launcher gives the host up, and an order to start
    that was under way meanwhile.
    """
    rng = random.Random(f"{SEED} {number}")
    lease_s = rng.choice((LEASE_S, 20.0, 60.0))
    cut_s = rng.uniform(0.5, 1.0) * (lease_s + REST_S)
    stage.begin(lease_s)
    stage.turn(start())
    stage.turn()
    heard_s = stage.now_s
    until_s = heard_s + cut_s
    told = []
    while stage.now_s < until_s:
        told += stage.turn(after_s=min(0.5, until_s - stage.now_s))
    told += stage.turn(Ping(heard_s), start(task=CHIEF), Ping(stage.now_s))
    told += stage.turn(after_s=0.5)
    found = f"seed {SEED}, {number}: a cut of {cut_s:.1f} s with a lease of {lease_s:g} s"
    if cut_s < lease_s:
        assert stage.processes.alive == {WORKER: 0, CHIEF: 0}, found
        assert told == [Started(str(CHIEF), 0, 7)], found
    else:
        assert stage.processes.started == [(WORKER, 0)], found
        assert stage.processes.alive == {}, found
        assert stage.agent._lease_is_over(), found
        assert told == [], found


def test_a_checkpoint_goes_from_one_host_to_another(stage, tmp_path, monkeypatch):
    """The launcher asks for it by its step, and sends the parts to a host that has none."""
    stage.begin(LEASE_S)
    (run_dir,) = [word.run_dir for word in stage.said if isinstance(word, RunReady)]
    checkpoint = Path(run_dir, "checkpoints", "ckpt-7")
    checkpoint.mkdir(parents=True)
    (checkpoint / "arrays.safetensors").write_bytes(b"a" * (2 * PIECE_BYTES + 1))
    (checkpoint / "manifest.json").write_text("{}")
    parts = stage.turn(Fetch(7))
    assert parts[-1] == AllMade([], 7)
    other = Stage(monkeypatch, tmp_path / "other")
    other.begin(LEASE_S)
    (there,) = [word.run_dir for word in other.said if isinstance(word, RunReady)]
    for part in parts[:-1]:
        other.turn(ORDERS.decode(encode(part)))
        assert RunFiles(Path(there)).newest_step is None, "it has not arrived as a whole"
    other.turn(ORDERS.decode(encode(parts[-1])))
    assert RunFiles(Path(there)).newest_step == 7
    for path in checkpoint.iterdir():
        assert Path(there, "checkpoints", "ckpt-7", path.name).read_bytes() == path.read_bytes()


def test_a_checkpoint_that_does_not_arrive_ends_the_agent_before_the_leader_begins_without_it(stage):
    stage.begin(LEASE_S)
    stage.turn(MadePart("../out", b"x", last=True))
    with pytest.raises(RunError, match="the launcher's checkpoint has not arrived"):
        stage.turn(AllMade([], 7))
