"""A whole simulated run: cluster, faults, progress; and how a failing one is told."""

import traceback
from contextlib import nullcontext
from random import Random

from msgspec.structs import replace
from simulation.clock import Clock
from simulation.disk import FOLDER, Disk, Written
from simulation.evaluator import EVALUATOR
from simulation.judging.judge import Judge
from simulation.network import Network
from simulation.process import Process
from simulation.scenario import Fault, Resume, Scenario
from simulation.servers import Server
from simulation.setup import Setup

from dtrain.cluster import Role, TaskId

LIMIT_S = 900.0
"""Every run has come to its end by then, in virtual seconds."""

RESTART_S = 0.3
"""How long a restart takes at least; what the dead process has sent may arrive later."""

ORDERED_STOP_S = 10.0
"""How long after the chief's end the launcher stops the tasks that are left."""

IN_PIECES = 3
"""Modulo 8, the seeds in which the leader sends and reads arrays in pieces."""

STORY_LINES = 120
REPLICAS = ("crash", "die", "pause", "partition", "slow", "stick")
FOR_EVER = 1e6
"""Times as long as a step takes is for ever."""
"""Faults of replicas; the others are those of servers and connections."""


class World:
    """One run of a scenario."""

    def __init__(
        self, scenario: Scenario, story: list[str] | None = None, judge: Judge | None = None
    ) -> None:
        self.scenario = scenario
        self.clock = Clock()
        self._limit_s = LIMIT_S * (1 + scenario.alone)  # one replica computes for all
        self.judge = judge or Judge(scenario)
        self.network = Network(self.clock, Random(scenario.seed), scenario.mean_delay_s, self.judge, story)
        self.disk = Disk()
        self.disk.written = self._written
        self.disk.restored = self._restored
        self._begin(Setup(scenario, scenario.replicas, scenario.servers))
        for fault in scenario.faults:
            self.clock.later(fault.at_s, self._befall, fault)
        for number, at_s in enumerate(scenario.joins):
            self.clock.later(at_s, self._join, number)
        if scenario.resume is not None:
            self.clock.later(scenario.resume.at_s, self._resume, scenario.resume)

    def _begin(self, setup: Setup) -> None:
        """Start every task of a cluster."""
        self.setup = setup
        self._stopping = False
        self.judge.begins(setup)
        self.servers: list[Server] = []
        for index in range(setup.servers):
            self.servers.append(Server(index, setup, self.network, self.servers[0] if index else None))
        self.tasks = list(setup.tasks)
        self.processes: dict[str, Process] = {}
        started = [*self.tasks, *[EVALUATOR] * setup.evaluators]
        self.starting = set(started)
        for task in started:
            self.clock.later(self.network.random.uniform(0.0, 0.5), self._start, task, setup)

    def _resume(self, resume: Resume) -> None:
        """Kill everything, and begin again with what is on the disk."""
        chief = self.processes.get(self.tasks[0])
        if chief is not None and chief.finished:
            return
        self.network.say(
            f"the run is killed, and resumed with {resume.replicas} replicas and {resume.servers} servers"
        )
        for process in self.processes.values():
            if process.alive:
                process.crash()
        for server in self.servers:
            server.end()
        for wire in sorted(self.network.wires, key=repr):
            wire.cut()
        begun = self.setup if self.disk.list_checkpoints(FOLDER) else None
        after = Setup(self.scenario, resume.replicas, resume.servers, begun)
        self._begin(after)

    def _written(self, checkpoint: Written) -> None:
        self.judge.written(checkpoint.on(self.setup.model))

    def _restored(self, checkpoint: Written) -> None:
        reader, evaluator = self.clock.current, self.processes.get(EVALUATOR)
        if reader is None or evaluator is None or reader.life is not evaluator.life:
            self.judge.restored(checkpoint.on(self.setup.model))

    def _join(self, number: int) -> None:
        """A worker comes that the cluster does not name."""
        task = str(TaskId(Role.WORKER, self.setup.cluster.first_joined + number))
        self.tasks.append(task)
        self.starting.add(task)
        self._start(task, self.setup)

    def _start(self, task: str, setup: Setup) -> None:
        if setup is not self.setup:
            return
        self.starting.discard(task)
        chief = self.processes.get(self.tasks[0])
        if chief is None or chief.alive or not chief.finished or task == EVALUATOR:
            rank = setup.cluster.rank(TaskId.parse(task), setup.training.chief_trains)
            rank = -1 if rank is None else rank
            self.processes[task] = Process(task, rank, setup, self.servers, self.network, self._kill)

    def _kill(self, server: Server) -> None:
        """The launcher kills a server on the chief's order, and starts it again."""
        server.crash(RESTART_S + self.network.random.uniform(0.0, 2.0))

    def _stop_the_others(self, setup: Setup) -> None:
        if setup is not self.setup:
            return  # the run was resumed meanwhile
        ends_well = self.processes[self.tasks[0]].finished
        for process in self.processes.values():
            if process.alive and not (ends_well and process.task == EVALUATOR):
                process.finished = self.processes[self.tasks[0]].finished
                process.stop(None)

    def _befall(self, fault: Fault) -> None:
        if fault.kind in REPLICAS and fault.target >= len(self.tasks):
            return  # it is not in the cluster with which the run was resumed
        task = EVALUATOR if fault.target < 0 else self.tasks[fault.target % len(self.tasks)]
        process = self.processes.get(task)
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
            self._crash(process, fault.for_s)
        elif fault.kind == "stick":
            process.stick(FOR_EVER)
            self.clock.later(fault.for_s, self._crash, process, 0.0)
        elif fault.kind == "die":
            process.crash()
        elif fault.kind == "pause":
            process.pause(fault.for_s)
        elif fault.kind == "partition":
            process.isolate(fault.for_s)
        else:
            process.slowness = fault.for_s

    def _crash(self, process: Process, away_s: float) -> None:
        """A replica dies, or the launcher has seen that it is stuck and kills it; it is started again."""
        if process.alive:
            process.crash()
            self.starting.add(process.task)
            self.clock.later(RESTART_S + away_s, self._start, process.task, self.setup)

    def run(self) -> None:
        """To the end; raises AssertionError if a rule is broken or it does not come."""
        self.clock.later(self._limit_s, self.clock.look)
        in_pieces = self.disk.in_pieces() if self.scenario.seed % 8 == IN_PIECES else nullcontext()
        with self.disk.mounted(), in_pieces:
            self.clock.run(self._over)
        assert self._ended(), f"no end after {self.clock.now:.0f} s: {self._waiting()}"
        chief = self.processes[self.tasks[0]]
        replicas = [process for process in self.processes.values() if process.task != EVALUATOR]
        failures = sorted({process.failure for process in replicas if process.failure})
        if failures and not chief.finished:
            self._check_failure(failures)
        else:
            assert chief.finished
            assert not failures, f"the run succeeded, and yet {failures}"
            self.judge.check_end()
            evaluator, ps_0_stays = self.processes.get(EVALUATOR), self.scenario.hears_the_end
            if evaluator is not None and (ps_0_stays or evaluator.failure is None):
                self.judge.evaluations.check_end(evaluator.finished, evaluator.failure)

    def _over(self) -> bool:
        chief = self.processes.get(self.tasks[0])
        if chief is not None and not chief.alive:
            if not self._stopping and (chief.finished or chief.failure):
                self._stopping = True
                for server in self.servers:
                    server.leader_has_ended(told=chief.said_farewell and self.scenario.hears_the_end)
                self.clock.later(ORDERED_STOP_S, self._stop_the_others, self.setup)
            if self._ended():
                return True
        return self.clock.now >= self._limit_s

    def _ended(self) -> bool:
        """Whether all tasks have ended; servers that know of the end go after them."""
        ended = not self.starting and not any(process.alive for process in self.processes.values())
        return ended and not any(server.has_to_end for server in self.servers)

    def _waiting(self) -> str:
        tasks = [f"{p.task}: {p.program.stands}" for p in self.processes.values() if p.alive]
        servers = [f"{server.name} has not ended" for server in self.servers if server.has_to_end]
        return ", ".join([*tasks, *servers])

    def _check_failure(self, failures: list[str]) -> None:
        rule = self.scenario.training
        assert rule.updates == "sync", f"an asynchronous run failed: {failures}"
        assert not self.scenario.harmless, failures
        if rule.too_few != "fail":
            assert any(fault.kind == "die" for fault in self.scenario.faults), (
                f"no task died, and yet {failures}"
            )
        assert all("too few replicas" in failure for failure in failures), failures


def broken_rule(scenario: Scenario) -> str | None:
    """What is wrong with a run of the scenario; None if nothing is."""
    return outcome(World(scenario))


def outcome(world: World) -> str | None:
    """What is wrong with a run; None if nothing is."""
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
    return whole_story(scenario, STORY_LINES)


def whole_story(scenario: Scenario, lines: int = 0) -> str:
    """Return what happens in a run, the last `lines` of it or everything, and what is wrong with it."""
    story: list[str] = []
    reason = outcome(World(scenario, story))
    return "\n".join([str(scenario), *map(str, scenario.faults), *story[-lines:], f"=> {reason}"])
