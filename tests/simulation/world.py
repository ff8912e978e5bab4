"""A whole simulated run: cluster, faults, progress; and how a failing one is told."""

import traceback
from dataclasses import replace
from random import Random

from simulation.disk import Disk
from simulation.judge import Judge
from simulation.network import Clock, Network
from simulation.replicas import Process
from simulation.scenario import Fault, Scenario
from simulation.servers import Server

from dtrain.cluster import ClusterSpec

LIMIT_S = 900.0
"""Every run has come to its end by then, in virtual seconds."""

RESTART_S = 0.3
"""How long a restart takes at least; what the dead process has sent may arrive later."""

ORDERED_STOP_S = 10.0
"""How long after the chief's success the launcher stops whoever is left."""

STORY_LINES = 60


class World:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, story: list[str] | None = None) -> None:
        self.scenario = scenario
        self.clock = Clock()
        self.judges = [Judge(scenario) for _ in range(scenario.fits)]
        self.network = Network(self.clock, Random(scenario.seed), scenario.mean_delay_s, story)
        workers = [f"w:{i}" for i in range(scenario.tasks - 1)]
        cluster = ClusterSpec.from_lists(chief=["c:0"], worker=workers, ps=[f"p:{i}" for i in range(scenario.servers)])
        self.servers: list[Server] = []
        for index in range(scenario.servers):
            self.servers.append(Server(index, cluster, self.network, self.judges, self.servers[0] if index else None))
        self.tasks = [str(task) for task in cluster.replicas()]
        self.ranks = {str(task): rank for rank, task in enumerate(cluster.replicas(scenario.training.chief_trains))}
        self.disk = Disk()
        self.processes: dict[str, Process] = {}
        self.starting = set(self.tasks)
        for task in self.tasks:
            self.clock.later(self.network.random.uniform(0.0, 0.5), self._start, task)
        for fault in scenario.faults:
            self.clock.later(fault.at_s, self._befall, fault)

    def _start(self, task: str) -> None:
        self.starting.discard(task)
        chief = self.processes.get(self.tasks[0])
        if chief is None or chief.alive or not chief.finished:
            rank = self.ranks.get(task, -1)
            self.processes[task] = Process(task, rank, self.servers, self.network, self.judges, self.disk, self._kill)

    def _kill(self, server: Server) -> None:
        """The launcher kills a server on the chief's order, and starts it again."""
        server.crash(RESTART_S + self.network.random.uniform(0.0, 2.0))

    def _stop_the_others(self) -> None:
        for process in self.processes.values():
            if process.alive:
                process.finished = True
                process.stop(None)

    def _befall(self, fault: Fault) -> None:
        process = self.processes.get(self.tasks[fault.target])
        if fault.kind == "stall":
            self.servers[fault.target % len(self.servers)].stall(fault.for_s)
        elif fault.kind == "hang":
            self.servers[fault.target % len(self.servers)].stall(LIMIT_S)
        elif fault.kind == "fall":
            self.servers[fault.target % len(self.servers)].crash(RESTART_S + fault.for_s)
        elif fault.kind == "break":
            wires = sorted((wire for wire in self.network.wires if wire.breakable), key=repr)
            if wires:
                wires[int(fault.for_s * 1e6) % len(wires)].breaks()
        elif process is None or not process.alive:
            return
        elif fault.kind == "crash":
            process.crash()
            self.starting.add(process.task)
            self.clock.later(RESTART_S + fault.for_s, self._start, process.task)
        elif fault.kind == "die":
            process.crash()
        elif fault.kind == "pause":
            process.pause(fault.for_s)
        elif fault.kind == "partition":
            process.isolate(fault.for_s)
        else:
            process.slowness = fault.for_s

    def run(self) -> None:
        """To the end; raises AssertionError if a rule is broken or it does not come."""
        stopping = False
        while self.clock.now < LIMIT_S and (event := self.clock.next_event()) is not None and not self._over():
            event()
            chief = self.processes.get(self.tasks[0])
            if not stopping and chief is not None and chief.finished and not chief.alive:
                stopping = True
                self.clock.later(ORDERED_STOP_S, self._stop_the_others)
        assert self._over(), f"no end after {self.clock.now:.0f} s: {self._waiting()}"
        chief = self.processes[self.tasks[0]]
        failures = {process.failure for process in self.processes.values() if process.failure}
        if failures and not chief.finished:
            self._check_failure(failures)
        else:
            assert chief.finished
            self.judges[-1].check_end(self.disk.newest)

    def _over(self) -> bool:
        return not self.starting and not any(process.alive for process in self.processes.values())

    def _waiting(self) -> str:
        return ", ".join(
            f"{p.task}: {p.machine.phase.value if p.machine else 'starting'}" for p in self.processes.values() if p.alive
        )

    def _check_failure(self, failures: set[str]) -> None:
        rule = self.scenario.training
        assert rule.updates == "sync", f"an asynchronous run failed: {failures}"
        assert not self.scenario.harmless, failures
        if rule.too_few != "fail":
            assert any(fault.kind == "die" for fault in self.scenario.faults), f"nobody died, and yet {failures}"
        assert any("too few replicas" in failure for failure in failures), failures


def broken_rule(scenario: Scenario) -> str | None:
    """What is wrong with a run of the scenario; None if nothing is."""
    return _run(World(scenario))


def _run(world: World) -> str | None:
    try:
        world.run()
    except Exception as error:  # whatever a machine raises is a broken rule too
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {place.name}, line {place.lineno}: {error}"
    return None


def told(scenario: Scenario) -> str:
    """The shortest story of a failing scenario: faults and steps that it does not need are left out."""
    shorter = True
    while shorter:
        faults, steps = scenario.faults, scenario.max_steps
        candidates = [replace(scenario, faults=faults[:i] + faults[i + 1 :]) for i in range(len(faults))]
        candidates += [replace(scenario, max_steps=steps - 1)] * (steps > 1)
        shorter = next((candidate for candidate in candidates if broken_rule(candidate)), None)
        scenario = shorter or scenario
    story: list[str] = []
    reason = _run(World(scenario, story))
    return "\n".join([str(scenario), *map(str, scenario.faults), *story[-STORY_LINES:], f"=> {reason}"])
