"""Leases of agents and the launcher's view of its hosts, over links that cut, delay and are half open.

The shipped machines run on virtual time; only streams, logins and processes are made up. Safety after every
step: no task ever runs twice, and what the launcher takes for dead is dead. Progress: a task that its agent's
lease has ended is started again, on its host or, as all tasks start again, on the spare one; without one workers
wait for their host, however long it is away, and the run ends without its chief or a server; on a host that stays cut off nothing is left soon after its lease.
DTRAIN_SEEDS=FROM:TO chooses the seeds.
"""

import os
import random
import signal
from dataclasses import dataclass, field

import pytest

from dtrain.cluster import Role, TaskId
from dtrain_cli.agent.lease import Lease
from dtrain_cli.fleet.host_rules import Gone, HostsAlive, LogInAgain, SendPing
from dtrain_cli.launch.policies.ordered_stop import RemainingTask

FIRST, LAST = (int(seed) for seed in os.environ.get("DTRAIN_SEEDS", "0:200").split(":"))
LANES = 4
STEP_S = 0.5
FAULTS_S = 45.0
REST_S = 45.0
LEASES_S = (8.0, 12.0, 20.0)
RESTART_S = 1.0
TASKS = [TaskId.parse(name) for name in ("chief:0", "worker:0", "worker:1", "worker:2", "ps:0", "ps:1")]


@dataclass
class Agent:
    """An agent, and the processes that it has started: attempt, and when it was told to stop."""

    number: int
    host: str
    lease: Lease
    connected: bool = True
    ready: bool = False
    tasks: dict[TaskId, tuple[int, float | None]] = field(default_factory=dict)


class World:
    """Hosts, their agents, the links to them, and a launcher that starts again what is gone."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 100.0
        self.lease_s = self.rng.choice(LEASES_S)
        self.hosts = [f"h{number}" for number in range(self.rng.randint(2, 4))]
        self.spares = self.hosts[self.rng.randint(1, len(self.hosts)) :]
        self.offset_s = {host: self.rng.uniform(-1e5, 1e5) for host in self.hosts}
        self.agents: list[Agent] = []
        self.count = 0
        self.dead: set[str] = set()
        self.cut: dict[str, dict[str, float]] = {host: {} for host in self.hosts}
        self.delay_s = dict.fromkeys(self.hosts, 0.0)
        self.cut_since: dict[str, float] = {}
        self.wires: dict[tuple[int, str], list[tuple[float, tuple]]] = {}
        self.alive = HostsAlive(self.lease_s)
        self.used = list(self.hosts)
        self.waiting: list[str] = []
        self.begun_s = 0.0
        first = [host for host in self.hosts if host not in self.spares]
        self.place = {task: first[number % len(first)] for number, task in enumerate(TASKS)}
        self.attempts = dict.fromkeys(TASKS, 0)
        self.restart_s: dict[TaskId, float] = dict.fromkeys(TASKS, self.now_s)
        self.reluctant = {task for task in TASKS if self.rng.random() < 0.3}
        self.stubborn = self.rng.random() < 0.5
        self.logins: dict[str, Agent] = {}
        for host in self.hosts:
            self.log_in(host)

    def clock(self, host: str) -> float:
        return self.now_s + self.offset_s[host]

    def open(self, host: str, way: str) -> bool:
        return host not in self.dead and self.now_s >= self.cut[host].get(way, 0.0)

    def log_in(self, host: str) -> None:
        """A login succeeds if both ways are open; the agent is ready when no earlier one is left."""
        if not (self.open(host, "to") and self.open(host, "from")):
            self.alive.cut(host, self.now_s)
            return
        self.count += 1
        agent = Agent(self.count, host, Lease(self.clock(host), self.lease_s))
        self.agents.append(agent)
        self.logins[host] = agent

    def send(self, agent: Agent, way: str, message: tuple) -> None:
        delay_s = self.rng.uniform(0, self.delay_s[agent.host])
        wire = self.wires.setdefault((agent.number, way), [])
        wire.append((max(self.now_s + delay_s, wire[-1][0] if wire else 0.0), message))

    def arrived(self, agent: Agent, way: str) -> list[tuple]:
        """TCP: in order, late after a cut, and nothing while it lasts."""
        wire = self.wires.get((agent.number, way), [])
        if not self.open(agent.host, way):
            return []
        count = sum(at_s <= self.now_s for at_s, _ in wire)
        messages = [message for _, message in wire[:count]]
        del wire[:count]
        return messages

    # -- the hosts

    def step_agent(self, agent: Agent) -> None:
        if not agent.ready:
            agent.ready = not any(other is not agent and other.host == agent.host for other in self.agents)
            if agent.ready:
                self.send(agent, "from", ("ready", self.clock(agent.host)))
        for message in self.arrived(agent, "to"):
            match message:
                case ("end",):
                    agent.connected = False
                case ("ping", heard_s):
                    agent.lease.renew(heard_s)
                    self.send(agent, "from", ("pong", self.clock(agent.host)))
                case ("start", task, attempt) if agent.lease.order is None:
                    agent.tasks[task] = attempt, None
        now_s = self.clock(agent.host)
        there = [RemainingTask(task, stop_s) for task, (_, stop_s) in agent.tasks.items()]
        for task, number in agent.lease.due(there, now_s):
            attempt, stop_s = agent.tasks[task]
            agent.tasks[task] = attempt, now_s if stop_s is None else stop_s
            if number == signal.SIGKILL or task not in self.reluctant:
                del agent.tasks[task]
        if not agent.connected or (agent.lease.order is not None and not agent.tasks):
            self.end(agent)

    def end(self, agent: Agent) -> None:
        """The agent ends, and all that it has started; its stream ends where that can be seen."""
        self.agents.remove(agent)
        if self.logins.get(agent.host) is agent and agent.host not in self.dead:
            self.send(agent, "from", ("end",))

    # -- the launcher

    def step_launcher(self) -> None:
        for host, agent in list(self.logins.items()):
            for message in self.arrived(agent, "from"):
                match message:
                    case _ if self.logins.get(host) is not agent:
                        pass  # it was of the start before
                    case ("ready", at_s):
                        for action in self.alive.ready(host, at_s, self.now_s):
                            self.act(action)
                    case ("pong", at_s):
                        self.alive.heard(host, self.now_s, at_s)
                    case ("exited", task, attempt):
                        self.alive.heard(host, self.now_s)
                        self.alive.ended(task, attempt)
                        if self.attempts[task] == attempt:
                            self.restart_s[task] = self.now_s + RESTART_S
                    case ("end",):
                        self.alive.cut(host, self.now_s)
        for action in self.alive.due(self.now_s):
            self.act(action)
        if self.waiting and all(self.open(host, way) for host in self.waiting for way in ("to", "from")):
            for host in self.waiting:
                self.log_in(host)
            self.waiting, self.begun_s = [], self.now_s
        for task, at_s in list(self.restart_s.items()):
            host = self.place[task]
            if self.now_s >= at_s and self.alive.is_up(host):
                del self.restart_s[task]
                self.attempts[task] += 1
                self.alive.started(task, self.attempts[task], host)
                self.send(self.logins[host], "to", ("start", task, self.attempts[task]))

    def act(self, action: object) -> None:
        match action:
            case SendPing(host=host) | LogInAgain(host=host) | Gone(host=host) if (
                self.waiting or host not in self.used
            ):
                pass  # it is no host of this start
            case SendPing(host=host, heard_s=heard_s):
                self.send(self.logins[host], "to", ("ping", heard_s))
            case LogInAgain(host=host):
                self.log_in(host)
            case Gone(host=host, tasks=tasks, usable=usable):
                for task, attempt in tasks:
                    running = [agent for agent in self.agents if agent.tasks.get(task, (0,))[0] == attempt]
                    assert not running, f"{task} was taken for dead and runs on {running[0].host}"
                if usable:
                    self.restart_s |= {task: self.now_s + RESTART_S for task, _ in tasks}
                else:
                    self.lose(host)

    def lose(self, host: str) -> None:
        """Wait for a host of workers; else end the streams to all agents, and begin anew with a spare host."""
        up = [name for name in self.spares if self.alive.is_up(name)]
        here = [task for task in TASKS if self.place[task] == host]
        if host in self.spares or not here:
            return
        if not up and all(task.role is Role.WORKER for task in here):
            self.restart_s |= {task: self.now_s + RESTART_S for task in here if task not in self.restart_s}
            return
        self.used.remove(host)
        for agent in self.logins.values():
            self.send(agent, "to", ("end",))
        self.logins = {}
        self.alive = HostsAlive(self.lease_s)
        self.waiting = list(self.used) if up else []
        self.restart_s = dict.fromkeys(TASKS, self.now_s + RESTART_S) if up else {}
        self.used = self.used if up else []
        if up:
            self.spares.remove(up[0])
            self.place |= {task: up[0] for task in TASKS if self.place[task] == host}

    # -- chance

    def misfortune(self) -> None:
        host = self.rng.choice(self.hosts)
        for_s = self.rng.choice((1, 3, 6, 10, 14, 20, 60))
        there = [agent for agent in self.agents if agent.host == host]
        match self.rng.choice(("cut", "cut", "to", "from", "delay", "ssh", "agent", "task", "host")):
            case "cut":
                self.cut[host] = {"to": self.now_s + for_s, "from": self.now_s + for_s}
            case "to" | "from" as way:
                self.cut[host][way] = self.now_s + for_s
            case "delay":
                self.delay_s[host] = self.rng.choice((0.0, 2.0, 7.0))
            case "ssh" if host in self.logins and self.logins[host] in self.agents:
                self.send(self.logins[host], "to", ("end",))
                self.alive.cut(host, self.now_s)
            case "agent" if there:
                self.end(self.rng.choice(there))
            case "task" if there and there[0].tasks and there[0].lease.order is None:
                task, (attempt, _) = there[0].tasks.popitem()
                self.send(there[0], "from", ("exited", task, attempt))
            case "host" if not self.waiting and len(self.dead) < len(self.hosts) - 1:
                self.dead.add(host)
                self.agents = [agent for agent in self.agents if agent.host != host]

    def run(self) -> None:
        end_s = self.now_s + FAULTS_S + REST_S
        faults_s = self.now_s + FAULTS_S
        while self.now_s < max(end_s, self.begun_s + 5.0):
            self.now_s += STEP_S
            if self.now_s < faults_s and self.rng.random() < 0.04:
                self.misfortune()
            if self.now_s >= faults_s:
                self.delay_s = dict.fromkeys(self.hosts, 0.0)
            for agent in list(self.agents):
                self.step_agent(agent)
            self.step_launcher()
            self.check()
        up = [host for host in self.hosts if self.alive.is_up(host)]
        if up:
            running = [task for agent in self.agents for task in agent.tasks]
            missing = {task for task in TASKS if task not in running and self.place[task] in up}
            assert not missing, f"{missing} stand still although {up} are up"
        assert self.used or not any(agent.tasks for agent in self.agents), "a run that has ended still works"

    def check(self) -> None:
        running = [task for agent in self.agents for task in agent.tasks]
        assert len(running) == len(set(running)), f"a task runs twice: {sorted(map(str, running))}"
        for host in self.hosts:
            if self.open(host, "to") or self.open(host, "from"):
                self.cut_since.pop(host, None)
                continue
            since_s = self.cut_since.setdefault(host, self.now_s)
            left = [agent for agent in self.agents if agent.host == host and agent.tasks]
            assert not left or self.now_s - since_s < self.lease_s + 12.0, f"{host} still works for nobody"


@pytest.mark.parametrize("lane", range(LANES))
def test_no_task_runs_twice_and_none_is_forgotten(lane):
    for seed in range(FIRST + lane, LAST, LANES):
        try:
            World(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
