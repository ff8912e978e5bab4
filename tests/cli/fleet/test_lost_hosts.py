"""What becomes of the tasks of a host that is cut off, comes back, or is lost: the orders that a fleet sends."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from dtrain.cluster import TaskId
from dtrain.config import ClusterSection, Host, RunSpec, WaitSection, read_hosts
from dtrain.process.start_protocol import Exited, StartTask
from dtrain.runs.files import RunFiles
from dtrain_cli.agent.messages import Held, HoldPorts
from dtrain_cli.fleet.agents import AgentAnswer, StreamEnded
from dtrain_cli.fleet.host_rules import Gone, HostsAlive
from dtrain_cli.fleet.locations import RemotePlace
from dtrain_cli.fleet.mirror import LOST_STATUS
from dtrain_cli.fleet.target import FleetRun, FleetTarget
from dtrain_cli.plan.run_plan import TaskLaunch, Workload
from dtrain_cli.targets.target import HostLost, HostNews, TargetFailed

CHIEF, WORKER0, WORKER1 = (TaskId.parse(name) for name in ("chief:0", "worker:0", "worker:1"))
CLUSTER = ClusterSection(chief=1, worker=2, ps=0, evaluator=0)


class Agents:
    """Agents that hear every order, as `dtrain_cli.fleet.agents.Agents` has them, and say what a test says."""

    def __init__(self, hosts):
        self.alive = HostsAlive(60.0)
        self.members = dict.fromkeys(hosts)
        self.sent = []
        for host in hosts:
            self.alive.ready(host, 0.0, 0.0)

    def send(self, host, order):
        self.sent.append((host, order))

    def up(self, hosts):
        return [host for host in hosts if self.alive.is_heard(host)]

    def orders(self, kind):
        return [(host, order) for host, order in self.sent if isinstance(order, kind)]


@pytest.fixture
def fleet(tmp_path):
    """Makes a fleet whose chief is on h1 and whose workers are on h2, and starts all of it."""

    def fleet(*spares):
        hosts = [*read_hosts("h1:1,h2:2"), *spares]
        files = RunFiles(tmp_path)
        run = FleetRun(
            "run", RunSpec(cluster=CLUSTER), hosts, Workload(Path("p.py"), (), tmp_path), files, {}, "d", None
        )
        target = FleetTarget(run, None, SimpleNamespace(read=list), lambda text: None)
        names = [host.host for host in hosts]
        target._agents = Agents(names)
        target._locations.assign(CLUSTER, {})
        target._locations.addresses = {name: f"10.0.0.{name[1:]}" for name in names}
        held = {"h1": [2001], "h2": [2002, 2003]}
        target._locations.assign_ports(CLUSTER, held)
        target._places = {name: RemotePlace("/run", "/", "python") for name in names}
        for task in (CHIEF, WORKER0, WORKER1):
            target.start(launch(tmp_path, task))
        return target

    return fleet


def launch(folder, task, attempt=0):
    return TaskLaunch(task, None, Path("p.py"), (), (), {}, folder, folder, False, {}, attempt)


def lose(target, host, usable=False):
    """The host is gone, as `HostsAlive` says it; what the fleet tells the launcher."""
    alive = target._agents.alive
    if usable:
        alive.cut(host, 1.0)
        (gone,) = [action for action in alive.ready(host, 0.0, 2.0) if isinstance(action, Gone)]
    else:
        for other in target._agents.members:
            alive.heard(other, 100.0 if other != host else 0.0)
        (gone,) = [action for action in alive.due(100.0) if isinstance(action, Gone)]
    target._handle_news(gone)
    return told(target)


def told(target):
    events, target._queued = target._queued, []
    return [event for event in events if not isinstance(event, HostNews)]


def ends(*tasks, status=LOST_STATUS):
    return [Exited(task, 0, status, 0) for task in tasks]


def test_a_task_that_is_due_while_its_host_is_cut_off_can_start_when_the_host_is_back(fleet):
    target = fleet()
    target._agents.alive.ended(WORKER0, 0)  # it has died by itself
    target._agents.alive.cut("h2", 1.0)
    assert [target.can_start(task) for task in (CHIEF, WORKER0)] == [True, False]
    assert lose(target, "h2", usable=True) == ends("worker:1")
    assert not target.can_start(WORKER0), "its port is not held yet"
    target._handle_news(AgentAnswer("h2", Held([2002, 2003])))
    assert (target.can_start(WORKER0), told(target)) == (True, [])


def test_a_spare_host_takes_the_place_of_a_lost_one_by_another_start(fleet):
    target = fleet(Host("h3", spare=True))
    assert {host for host, _ in target._agents.orders(StartTask)} == {"h1", "h2"}
    target._agents.sent.clear()
    assert lose(target, "h2") == [
        HostLost("h2 is lost", [WORKER0, WORKER1], {"h2": "h3"}),
        *ends("worker:0", "worker:1"),
    ]
    assert target._agents.sent == [], "no task is moved"


def test_a_spare_host_that_is_lost_ends_nothing_as_it_has_no_task(fleet):
    target = fleet(Host("h3", spare=True))
    assert lose(target, "h3") == []
    assert lose(target, "h2")[0] == HostLost("h2 is lost", [WORKER0, WORKER1])


def test_a_command_is_not_started_again_as_nothing_of_it_is_saved(fleet):
    target = fleet(Host("h3", spare=True))
    target._run = replace(target._run, workload=Workload(None, ("sleep",), Path()))
    assert lose(target, "h2")[0].replaced == {}


def test_a_host_whose_ports_others_have_taken_meanwhile_is_lost(fleet):
    target = fleet(Host("h3", spare=True))
    assert lose(target, "h2", usable=True) == ends("worker:0", "worker:1")
    assert [(host, order.wanted) for host, order in target._agents.orders(HoldPorts)] == [
        ("h2", [2002, 2003])
    ]
    target._handle_news(AgentAnswer("h2", Held([2002, 2004])))
    why = "h2: ports of its tasks are taken"
    assert told(target) == [HostLost(why, [WORKER0, WORKER1], {"h2": "h3"}, may_return=False)]
    assert not target.can_start(WORKER0)


def test_a_launcher_that_hears_no_host_at_all_asks_whether_it_is_on_the_network(fleet):
    target = fleet()
    alive = target._agents.alive
    alive.heard("h1", 5.0)
    alive.due(60.0)
    (gone,) = [action for action in alive.due(69.0) if isinstance(action, Gone)]
    target._handle_news(gone)
    assert gone.host == "h2"
    assert told(target)[0] == TargetFailed(
        "h2 is lost, and no other is heard: is this machine on the network?"
    )


def test_without_a_spare_host_the_tasks_of_a_lost_one_can_start_when_it_is_back(fleet):
    target = fleet(Host("h3"))
    assert lose(target, "h2") == [HostLost("h2 is lost", [WORKER0, WORKER1]), *ends("worker:0", "worker:1")]
    (back,) = target._agents.alive.ready("h2", 0.0, 900.0)
    target._handle_news(back)
    assert (told(target), target.can_start(WORKER0)) == ([], False)
    assert target._agents.orders(HoldPorts)[-1][1].wanted == [2002, 2003]
    target._handle_news(AgentAnswer("h2", Held([2002, 2003])))
    assert target.can_start(WORKER0)


def test_logins_that_are_tried_again_are_one_line_and_a_count(fleet):
    target = fleet(Host("h3"))
    target._agents.alive.cut("h2", 1.0)
    for why in ("h2: its connection has ended", *["h2: ssh cannot log in"] * 4):
        target._handle_news(StreamEnded("h2", why, again=True))
    texts = [event.text for event in target._queued]
    assert texts == ["h2: its connection has ended; logging in again"]
    target._queued.clear()
    target._handle_news(Gone("h2", (), usable=False, silent_s=67.0))
    assert target._queued[0].text == "h2 is lost: no word for 67 s (failed logins: 4)"


def test_a_host_is_waited_for_as_long_as_the_spec_says(tmp_path):
    for server_s, gone_s in ((60.0, 67.0), (300.0, 307.0), (0.0, 15.0)):
        spec = RunSpec(cluster=CLUSTER, wait=WaitSection(server_s=server_s))
        run = FleetRun(
            "run", spec, [], Workload(Path("p.py"), (), tmp_path), RunFiles(tmp_path), {}, "d", None
        )
        target = FleetTarget(run, None, SimpleNamespace(read=list), lambda text: None)
        assert target._begin("h1").lease_s == gone_s - 7.0
        assert target._agents.alive.gone_s == gone_s
