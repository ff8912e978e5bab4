"""Stories of death under every strategy, drawn from a seed, and a judge that sees what a user sees: commands, processes,
files and what tasks print.

A strategy, on this host or over hosts that are network namespaces, has each of its faults in turn. Who is struck, when
and for how long is drawn. By the program every example owns a row that grows by 1 each time it is applied, or,
where the run is deterministic, the weights have the bits of a run in one process to which nothing happens.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from chaos.stretch import RESTARTS
from clusters.test_cluster_hosts import OverHosts
from launching import PATIENCE_S, wait_until
from warm_commands import start_warm

HERE = Path(__file__).parent
LEASE_S, LEASE_OF_HOSTS_S = 5.0, 10.0
"""Who is silent for longer is lost, as docs/guide/faults.md and docs/reference/strategies.md say."""
STATED_WAIT_S = 60.0
"""The longest wait that the spec states by default: for a lost server, leader or host."""
GONE_S = 15.0
COUNTED = {"examples": 240, "batch": 12, "epochs": 2}
EXACT_STEPS, COUNTED_STEPS = 32, 40
ATTEMPTS = 9
REST_S = 0.2
CUT_TO_THE_END, LEADER_TWICE = "cut to the end", "kill the leader twice"
FAULTS = {
    "one task": ("kill", "kill two", "stop shortly", "stop long"),
    "one host": ("kill", "kill the leader", LEADER_TWICE, "kill two", "stop shortly", "stop long"),
    "hosts": (
        *("kill the leader", "cut long", "mute long", CUT_TO_THE_END, "lose a host", "kill two"),
        *(LEADER_TWICE, "stop long", "cut shortly", "mute shortly", "kill", "stop shortly"),
    ),
}
"""By place, in the order of seeds. A host that is cut off hears nothing and is not heard, one that is mute is not heard."""


@dataclass(frozen=True)
class Way:
    """A strategy.

    Attributes:
        place: a key of `FAULTS`.
        options: of `dtrain launch`; over hosts the section `training` of a spec.
        parts: how many contributions make a step.
        exact: whether the run can be deterministic.
    """

    place: str
    options: tuple[str, ...] | dict[str, object]
    parts: int = 3
    exact: bool = True


SERVERS = ("--workers", "2", "--ps", "2")
MIRRORED = ("--strategy", "multi_worker_mirrored", "--workers", "2")
BACKUP = ("--backup-workers", "1", "--set", "training.on_stale=retry_same_batch")
BACKUP_OF_HOSTS = {"backup_workers": 1, "on_stale": "retry_same_batch"}
BOUND = ("--staleness-bound", "2")
WAYS = {
    "single": Way("one task", ("--strategy", "single"), parts=1),
    "mirrored": Way("one task", ("--strategy", "mirrored", "--set", "training.replicas=3")),
    "central storage": Way("one task", ("--strategy", "central_storage", "--set", "training.replicas=3")),
    "servers, sync": Way("one host", (*SERVERS, "--updates", "sync")),
    "servers, backups": Way("one host", (*SERVERS, "--updates", "sync", *BACKUP), 2, exact=False),
    "servers, async": Way("one host", (*SERVERS, "--updates", "async"), 1, exact=False),
    "servers, SSP": Way("one host", (*SERVERS, "--updates", "async", *BOUND), 1, exact=False),
    "one host": Way("one host", MIRRORED),
    "one host, backups": Way("one host", (*MIRRORED, *BACKUP), 2, exact=False),
    "hosts": Way("hosts", {"strategy": "multi_worker_mirrored"}),
    "hosts, backups": Way("hosts", {"strategy": "multi_worker_mirrored", **BACKUP_OF_HOSTS}, exact=False),
    "servers over hosts": Way("hosts", {"strategy": "parameter_server", "updates": "sync"}),
}


@dataclass(frozen=True)
class Blow:
    """What happens to tasks of a run, or to hosts of which others hear nothing.

    Attributes:
        step: after which it happens; 0 as soon as the tasks are there.
        after_s: so many seconds later.
        tasks: who are killed, or stopped for `for_s`.
        links: which hosts are not heard by which for `for_s`; None: until all others have ended.
    """

    step: int
    after_s: float
    tasks: tuple[str, ...] = ()
    for_s: float | None = None
    links: tuple[tuple[int, int], ...] = ()

    def __str__(self):
        what = f"not heard by: {self.links}" if self.links else ", ".join(self.tasks)
        for_ever = "to the end" if self.links else "killed"
        how = for_ever if self.for_s is None else f"for {self.for_s:.1f} s"
        return f"{self.after_s:.2f} s after step {self.step} {what} {how}"


@dataclass(frozen=True)
class Death:
    """A run and what happens to it.

    Attributes:
        layout: the host of each replica; empty on this host.
        servers: the host of each server.
        exact: whether it has the bits of another run; else examples are counted.
        lasting_s: how long its steps take at least.
    """

    seed: int
    strategy: str
    fault: str
    layout: tuple[int, ...]
    servers: tuple[int, ...]
    exact: bool
    lasting_s: float
    blows: tuple[Blow, ...]

    @property
    def way(self):
        return WAYS[self.strategy]

    @property
    def steps(self):
        return EXACT_STEPS if self.exact else COUNTED_STEPS

    @property
    def replicas(self):
        """The tasks that run the program."""
        workers = 0 if self.way.place == "one task" else (len(self.layout) or 3) - 1
        return ["chief:0", *(f"worker:{index}" for index in range(workers))]

    @property
    def parts(self):
        return len(self.layout) or self.way.parts

    @property
    def killed(self):
        return {task for blow in self.blows for task in blow.tasks if blow.for_s is None}

    @property
    def struck(self):
        """The tasks that are killed or stopped."""
        return {task for blow in self.blows for task in blow.tasks}

    @property
    def hosts(self):
        """The host of each task, where there are several."""
        return dict(zip((*self.replicas, "ps:0", "ps:1"), (*self.layout, *self.servers), strict=False))

    @property
    def excused(self):
        """The tasks that may come too late, or not at all: struck ones, and those of a host that others go on without."""
        long = [blow for blow in self.blows if blow.links and (blow.for_s is None or blow.for_s > LEASE_S)]
        apart = [set.intersection(*map(set, blow.links)) if max(self.layout) > 1 else {0, 1} for blow in long]
        if (
            self.strategy == "hosts, backups"
        ):  # a whole host is left behind where one of its replicas stands still
            stopped = (blow.tasks for blow in self.blows if not blow.links and (blow.for_s or 0) > LEASE_S)
            apart += [{self.hosts[task] for task in tasks} for tasks in stopped]
        return self.struck | {task for task, host in self.hosts.items() if host in set().union(*apart)}

    def program(self, lasting_s):
        pace_s = lasting_s / self.steps * (3 if "async" in self.way.options else 1)
        counted = [word for name, value in COUNTED.items() for word in (f"--{name}", str(value))]
        words = ["dropped_units.py"] if self.exact else ["counted_rows.py", *counted]
        return (str(HERE / words[0]), *words[1:], "--pace_s", f"{pace_s:.4f}", "--tell")

    def __str__(self):
        where = f" {self.layout} {self.servers}" if self.layout else ""
        blows = "; ".join(map(str, self.blows))
        return f"seed {self.seed}, {self.strategy}{where}{', exact' * self.exact}, {self.fault}: {blows}"


def draw(seed):
    """The story of a seed: every strategy in turn, and each of its faults in turn."""
    random, strategy = Random(f"deaths {seed}"), list(WAYS)[seed % len(WAYS)]
    way = WAYS[strategy]
    faults = [each for each in FAULTS[way.place] if each != CUT_TO_THE_END or strategy.startswith("hosts")]
    fault = faults[seed // len(WAYS) % len(faults)]
    layout = servers = ()
    if way.place == "hosts":
        with_servers = strategy.startswith("servers")
        layouts = [(0, 1, 2)] if with_servers else [(0, 1, 2), (0, 0, 1, 2), (0, 0, 1)]
        layouts = layouts[:1] if fault == CUT_TO_THE_END else layouts  # one of three replicas is a minority
        layout = random.choice(layouts)
        servers = (0, 1) if with_servers else ()
    exact = way.exact and random.random() < 0.5
    lease_s = LEASE_OF_HOSTS_S if strategy.startswith("hosts") else LEASE_S
    for_s = None
    if fault.endswith("shortly"):
        for_s = random.uniform(0.2, 0.6) * lease_s
    elif fault.endswith("long"):
        for_s = lease_s + random.uniform(1, 4)
    lasting_s = random.uniform(2.0, 4.0) + (0 if for_s is None else 1.3 * for_s)
    death = Death(seed, strategy, fault, layout, servers, exact, lasting_s, ())
    early, late = random.randint(1, 12), death.steps - random.randint(4, 10)
    dies = for_s is None and fault != CUT_TO_THE_END
    step = random.choice([0, *[early] * 5, late]) if dies else random.randint(1, 5)
    return replace(death, blows=tuple(_blows(random, death, step, for_s)))


def _blows(random, death, step, for_s):
    after_s = random.uniform(0.0, 0.3)
    tasks = death.replicas + (["ps:0", "ps:1"] if death.strategy.startswith("servers") else [])
    hosts = sorted({*death.layout})
    if death.fault == "kill two":
        first = random.choice(tasks)
        second = random.choice([task for task in tasks if task != first] or tasks)
        return [Blow(step, after_s, (first,)), Blow(step, random.uniform(0.0, 1.0), (second,))]
    if death.fault == LEADER_TWICE:  # the one that has come back, or the one that leads meanwhile
        second = random.choice(["chief:0", "worker:0"])
        return [Blow(step, after_s, ("chief:0",)), Blow(step, random.uniform(0.2, 1.5), (second,))]
    if death.fault == "lose a host":
        host = random.choice(hosts)
        return [Blow(step, after_s, tuple(task for task in tasks if death.hosts[task] == host))]
    if death.fault.startswith(("cut", "mute")):
        host = random.choice(hosts)
        pairs = [(host, other) for other in hosts if other != host]
        if death.fault.startswith("cut"):
            pairs += [(other, host) for _, other in pairs]
        elif random.random() < 0.5:
            pairs = [random.choice(pairs)]
        return [Blow(step, after_s, (), for_s, tuple(pairs))]
    return [Blow(step, after_s, ("chief:0" if "leader" in death.fault else random.choice(tasks),), for_s)]


class Launched:
    """A run under `dtrain launch`."""

    def __init__(self, launcher, death):
        exact = ("--set", "training.deterministic=true") if death.exact else ()
        settings = [word for each in (*RESTARTS, "checkpoint.every_steps=5") for word in ("--set", each)]
        words = (*death.way.options, *exact, *settings, "--no-evaluator", *death.program(death.lasting_s))
        self._launch = launcher.start(*words)

    def pid(self, task):
        found = self._launch.task(task)
        return found["pid"] if found["state"] in ("starting", "running") else None

    def run_dir(self):
        return self._launch.run_dir

    def ended(self):
        return self._launch.process.poll() is not None

    def end(self, within_s):
        """Wait for its end; what is wrong with it, and what each task has printed."""
        try:
            code = self._launch.end(within_s)
            wait_until(lambda: not self._launch.pids(), "processes are left", GONE_S)
            wrong = [] if code == 0 else [f"exit code {code}: {self._launch.err[-1500:]}"]
        except subprocess.TimeoutExpired:
            wrong = [f"hangs: {[(task['task'], task['state']) for task in self._launch.record()['tasks']]}"]
        logs = sorted(self.run_dir().glob("tasks/*/attempt-*/output.log"))
        return wrong, [(path.parts[-3].replace("-", ":"), path.read_text()) for path in logs]

    def close(self):
        pass


class ByHand:
    """A run whose tasks are commands of their own on several hosts, each with one that starts it again, as
    engines of containers do: after a signal or an exit code from 128 on, while none of the others has ended well.
    """

    def __init__(self, launcher, death):
        start_warm()
        self._death = death
        training = {**death.way.options, "deterministic": death.exact}
        self._run = OverHosts(launcher.folder, death.layout, death.servers, **training)
        self._codes, self._said, self._due_s = {}, [], {}
        for task in self._run.tasks:
            self._run.folders[task].mkdir()
            self._start(task)

    def _start(self, task):
        said = self._run.folders[task] / f"said-{len(self._said)}"
        self._said.append((task, said))
        options = {} if task.startswith("ps") else {"run_dir": self._run.folders[task] / "run"}
        program, *words = self._death.program(self._death.lasting_s)
        with said.open("w") as file:
            self._run.start(task, *words, program=program, stdout=file, stderr=file, **options)

    def tend(self):
        """Start tasks again that have died, a moment later."""
        for task, command in self._run.commands.items():
            code = command.process.poll()
            if code is None or task in self._codes:
                continue
            last = 0 in self._codes.values() or len(self._said) > ATTEMPTS * len(self._run.tasks)
            if last or 0 <= code < 128:
                self._codes[task] = code
            elif time.monotonic() > self._due_s.setdefault(task, time.monotonic() + REST_S):
                del self._due_s[task]
                self._start(task)

    def pid(self, task):
        command = self._run.commands.get(task)
        return command.process.pid if command and command.process.poll() is None else None

    def run_dir(self):
        return self._run.folders["chief:0"] / "run"

    def ended(self):
        self.tend()
        return len(self._codes) == len(self._run.tasks)

    def others_ended(self):
        return self._codes.keys() >= self._run.tasks.keys() - self._death.excused

    def set_links(self, links, *, heard):
        for speaker, listener in links:
            (self._run.hosts.unmute if heard else self._run.hosts.mute)(speaker, listener)

    def end(self, within_s):
        """Wait for the end of all; what is wrong with it, and what each task has printed."""
        with contextlib.suppress(AssertionError):
            wait_until(self.ended, "the end", within_s)
        living = [task for task in self._run.tasks if self.pid(task)]
        wrong = [f"{task} hangs" for task in living]
        if not living:
            commands = list(self._run.commands.values())
            wait_until(lambda: not any(each.pids() for each in commands), "processes are left", GONE_S)
        out = [(task, path.read_text()) for task, path in self._said]
        spared = sorted(self._run.tasks.keys() - self._death.excused)
        bad = {task: code for task in spared if (code := self._codes.get(task, 0))}
        return [*wrong, *(f"{task} ended with exit code {code}" for task, code in bad.items())], out

    def close(self):
        self._run.close()


def strike(run, death, blow):
    """Do it to the processes that run then, if any do; whether it was done."""
    wait_until(lambda: run.ended() or _reached(run, death, blow), str(blow), 2 * PATIENCE_S)
    _pass(run, blow.after_s)  # the moment is the point
    if run.ended():
        return False
    if blow.links:
        run.set_links(blow.links, heard=False)
        if blow.for_s is None:
            wait_until(lambda: run.ended() or run.others_ended(), "the end of the others", 2 * PATIENCE_S)
        else:
            _pass(run, blow.for_s)
        run.set_links(blow.links, heard=True)
        return True
    pids = [pid for task in blow.tasks if (pid := run.pid(task)) is not None]
    _signal(pids, signal.SIGKILL if blow.for_s is None else signal.SIGSTOP)
    if blow.for_s is not None:
        _pass(run, blow.for_s)
        _signal(pids, signal.SIGCONT)
    return bool(pids)


def _pass(run, for_s):
    until_s = time.monotonic() + for_s
    while not run.ended() and time.monotonic() < until_s:
        time.sleep(0.01)


def _reached(run, death, blow):
    return all(run.pid(task) for task in blow.tasks) and step_of(run.run_dir()) >= blow.step


def step_of(run_dir):
    """The last step that any task of a run has reported."""
    found = [0]
    for path in run_dir.glob("tasks/*/status.json"):
        with contextlib.suppress(OSError, ValueError):
            found.append(json.loads(path.read_text())["step"] or 0)
    return max(found)


def _signal(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def tell(launcher, seed):
    """Let a story happen; what is wrong with its end, a line each."""
    death = draw(seed)
    print(death, flush=True)
    quiet = launcher.start(*_quiet(death)) if death.exact else None
    run = (ByHand if death.layout else Launched)(launcher, death)
    try:
        begun_s = time.monotonic()
        struck = [blow for blow in death.blows if strike(run, death, blow)]
        wrong, said = run.end(death.lasting_s * 3 + STATED_WAIT_S + PATIENCE_S)
        took = f"{len(struck)} of {len(death.blows)} happened, {time.monotonic() - begun_s:.1f} s"
        print(f"{took}, processes by task: {dict(Counter(task for task, _ in said))}", flush=True)
    finally:
        run.close()
    assert quiet is None or quiet.end() == 0, quiet.err
    expected = None if quiet is None else told_in([("quiet", quiet.log("chief:0"))])["quiet"]
    wrong += judge(death, told_in(said), expected)
    if wrong:
        print("\n".join(f"--- {task}\n{text[-3000:]}" for task, text in said), flush=True)
    return wrong


def told_in(said):
    """What each task has told at its end, in the last of its processes that did."""
    lines = [(task, line) for task, text in said for line in text.splitlines()]
    return {task: json.loads(line[5:]) for task, line in lines if line.startswith("TOLD ")}


def _quiet(death):
    """The words of a launch of one process that makes the same steps, with nothing that happens."""
    replicas = ("--strategy", "mirrored", "--set", f"training.replicas={death.parts}")
    one = ("--strategy", "single") if death.parts == 1 else replicas
    return (*one, "--set", "training.deterministic=true", "--no-evaluator", *death.program(0.0))


def judge(death, told, expected=None):
    """What is wrong with what tasks have told at their end: History, weights and counts; `expected` is what a run
    to which nothing happened has told.
    """
    silent = [task for task in death.replicas if task not in told and task not in death.excused]
    wrong = [f"{task} has told nothing at its end" for task in silent]
    if not told:
        return [*wrong, "no task has told anything at its end"]
    for what in ("history", "bits"):
        values = {task: json.dumps(each[what]) for task, each in told.items()}
        if expected is not None:
            values["a quiet run"] = json.dumps(expected[what])
        if len(set(values.values())) > 1:
            wrong.append(f"tasks differ in {what}: {values}")
    if expected is None:
        for task, each in told.items():
            if each["miscounted"]:
                wrong.append(f"examples by how often they count at {task}: {each['miscounted']}")
            wrong += [f"{task}: {fault}" for fault in _losses(death, each["history"])]
    leaders = [task for task, each in told.items() if each["leads"]]
    if len(leaders) > 1 and not death.killed:  # one that is killed may have told all before
        wrong.append(f"all of these lead at the end: {leaders}")
    return wrong


def _losses(death, histories):
    """An epoch has all examples; where a step is not one batch, all epochs together have each as often as another."""
    mean = (COUNTED["examples"] - 1) / 2
    losses = [loss for each in histories for loss in each["loss"]]
    if len(losses) != COUNTED["epochs"]:
        return [f"{len(losses)} epochs, expected {COUNTED['epochs']}"]
    losses = [sum(losses) / len(losses)] if not death.way.exact else losses
    return [f"the mean of an epoch is {loss}, expected {mean}" for loss in losses if abs(loss - mean) > 1e-3]
