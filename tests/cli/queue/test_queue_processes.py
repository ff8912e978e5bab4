"""Launches that wait in line, as real processes: killed, stopped, moved, cancelled, drained, of two users."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from launching import COMMAND, SOURCES, Command, Launch, Launcher, wait_until

from dtrain.runs.files import RunFiles, RunRecord, SavedRecord, write_record
from dtrain.runs.states import RunState
from dtrain_cli.queue.rules import Ticket
from dtrain_cli.queue.tickets import QUEUE_DIR, TicketFolder, capacity_of_machine

ONE_TASK = ("--workers", "1", "--ps", "0", "--no-evaluator", "--set", "cluster.chief=0")
JOB = 'echo "+ $0" >> log; read x < gate-$0; echo "- $0 $OMP_NUM_THREADS" >> log'
"""Writes its name to the log when it begins, waits at its gate, and writes it again."""
LAUNCHES = int(os.environ.get("DTRAIN_QUEUE_LAUNCHES", "12"))
SEEDS = range(int(os.environ.get("DTRAIN_QUEUE_RUNS", "1")))
TOGETHER = 6
"""So many launches run or wait at a time."""


class Shop:
    """A queue in a folder of its own, and the launches that a test has put into it."""

    def __init__(self, launcher: Launcher, queue: Path) -> None:
        self.launcher = launcher
        self.environment = {QUEUE_DIR: str(queue)}
        self.folder = TicketFolder()
        self.launches: dict[str, Launch] = {}
        self.tickets: dict[str, Ticket] = {}
        self.gates: dict[str, int] = {}
        self.log = launcher.folder / "log"
        self.log.touch()

    def enter(self, name: str, *words: str, **options: Any) -> Launch:
        """Start a launch, and wait until it has its ticket."""
        os.mkfifo(gate := self.launcher.folder / f"gate-{name}")
        self.gates[name] = os.open(gate, os.O_RDWR)
        job = ("--queue", *ONE_TASK, "--name", name, *words, "--", "sh", "-c", JOB, name)
        launch = self.launcher.start(*job, environment=self.environment, **options)
        self.launches[name] = launch
        self.tickets[name] = launch.wait_for(lambda: self.ticket(name), f"the ticket of {name}")
        return launch

    def ticket(self, name: str) -> Ticket | None:
        """Return the ticket of a launch, if it lives."""
        return next((each for each in self.folder.tickets() if each.name == name), None)

    def release(self, name: str) -> None:
        """Open a gate."""
        os.write(self.gates[name], b"\n")

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def has_begun(self, name: str) -> bool:
        return f"+ {name}" in self.lines()

    def note(self, line: str) -> None:
        """Append to the log, as a job does."""
        with self.log.open("a") as file:
            file.write(f"{line}\n")

    def queue(self, *words: str) -> Command:
        """Run `dtrain queue` to its end."""
        command = self.launcher.dtrain("queue", *words, environment=self.environment)
        command.end()
        return command

    def line(self) -> list[str]:
        """Return the names of those that wait, as `dtrain queue --json` lists them."""
        rows = json.loads(self.queue("--json").out)["launches"]
        assert [row["position"] for row in rows if row["position"]] == list(
            range(1, 1 + sum(row["state"] == "waiting" for row in rows))
        )
        return [row["name"] for row in rows if row["state"] == "waiting"]


@pytest.fixture
def shop(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A queue that nobody else uses."""
    queue = launcher.folder / "queue"
    queue.mkdir(mode=0o700)
    monkeypatch.setenv(QUEUE_DIR, str(queue))
    made = Shop(launcher, queue)
    yield made
    for gate in made.gates.values():
        os.close(gate)
    made.folder.close()


def fits(tickets: Sequence[Ticket]) -> bool:
    """Return whether claims fit into this machine together."""
    machine = capacity_of_machine()
    return (
        sum(each.cores for each in tickets) <= machine.cores
        and sum(each.memory for each in tickets) <= machine.memory
    )


@pytest.mark.long("each launch is two processes; it runs a dozen of them, two at a time")
@pytest.mark.parametrize("seed", SEEDS)
def test_launchers_that_are_killed_at_drawn_moments_leave_the_line_in_order(shop: Shop, seed: int) -> None:
    """Killed, stopped or ended, waiting or running: never is more claimed than there is, who came first starts
    first, and nothing is left.
    """
    print(f"seed {seed}: DTRAIN_QUEUE_RUNS={seed + 1} DTRAIN_QUEUE_LAUNCHES={LAUNCHES}")
    draw = random.Random(seed)
    machine = capacity_of_machine()
    expected: dict[str, set[int]] = {}
    while len(shop.launches) < LAUNCHES or len(expected) < LAUNCHES:
        alive = [name for name in shop.launches if name not in expected]
        if len(shop.launches) < LAUNCHES and (
            len(alive) < 3 or (len(alive) < TOGETHER and draw.random() < 0.5)
        ):
            memory = int(machine.memory * draw.choice([0, 0.2, 0.4, 0.7])) // 1000
            claim = ("--cores", str(draw.randint(1, machine.cores)), "--memory", f"{memory}kB")
            shop.enter(f"j{len(shop.launches)}", *claim)
            continue
        running = wait_until(lambda alive=alive: [name for name in alive if shop.has_begun(name)], "a job")
        name, what = draw.choice(alive), draw.choice(["kill", "stop", "end", "end"])
        if what == "end":
            name = draw.choice(running)
            shop.release(name)
            expected[name] = {0}
            shop.launches[name].end()
        else:
            shop.note(f"- {name}")
            number = signal.SIGKILL if what == "kill" else draw.choice([signal.SIGTERM, signal.SIGINT])
            expected[name] = {-number if what == "kill" else 128 + number}
            shop.launches[name].send(number)
    for name, launch in shop.launches.items():
        launch.wait_gone()
        if launch.process.returncode is None:
            launch.end()
        assert launch.process.returncode in expected[name], (name, launch.out, launch.err)
    check_order(shop.lines(), shop.tickets)
    assert shop.folder.tickets() == []


def check_order(lines: Sequence[str], tickets: dict[str, Ticket]) -> None:
    """See that what ran together fits, and that nobody began while an earlier one could not."""
    active: set[str] = set()
    begun: set[str] = set()
    ended: set[str] = set()
    for line in lines:
        kind, name = line.split()[:2]
        if kind == "-":
            ended.add(name)
            active.discard(name)
        elif name not in ended:  # else it was killed as it began
            active.add(name)
            begun.add(name)
            place = tickets[name].place
            earlier = {each for each in tickets.keys() - begun - ended if tickets[each].place < place}
            assert fits([tickets[each] for each in active]), f"over-committed at {line}: {active}"
            together = [tickets[each] for each in active | earlier]
            assert fits(together), f"{name} began before {earlier}, which could not"


def test_a_run_that_waits_is_pending_and_ctrl_c_ends_it_at_once(shop: Shop) -> None:
    """The exit code is that of a launch, with --json its status is the last line, and nothing of it has started."""
    machine = capacity_of_machine()
    shop.enter("first", "--cores", str(machine.cores))
    waits = shop.enter("second", "--json", "--cores", "1")
    waits.wait_for(lambda: waits.record()["state"] == "pending", "a pending run")
    status = shop.launcher.dtrain("status", "second", environment=shop.environment)
    assert (status.end(), "pending" in status.out) == (0, True)
    waits.send(signal.SIGINT)
    assert waits.end() == 130, waits.err
    assert json.loads(waits.out.splitlines()[-1])["state"] == "stopped"
    assert "place 1 of 1 in the queue: waits for 1 core; 0 free" in waits.err
    assert not shop.has_begun("second")
    assert [each.name for each in shop.folder.tickets()] == ["first"]
    shop.release("first")
    assert shop.launches["first"].end() == 0
    assert shop.lines() == ["+ first", f"- first {machine.cores}"], "as many threads as it has claimed"


def test_a_short_one_passes_and_the_line_obeys_its_users(shop: Shop) -> None:
    """Backfill by --timeout; and move, cancel and drain change the line as they say."""
    cores = str(capacity_of_machine().cores)
    if cores == "1":
        pytest.skip("one core: nothing is free beside a run")
    others, dead = shop.folder.path / "train.py", shop.folder.path / "gone.1.ticket"
    for path in (others, dead):
        path.write_text("")
    shop.enter("runs", "--cores", "1", "--timeout", "500")
    wait_until(lambda: shop.has_begun("runs"), "the first one")
    assert others.exists(), "a file that is no ticket is not the queue's to remove"
    assert not dead.exists()
    shop.enter("head", "--cores", cores)
    for name in ("a", "b", "c"):
        shop.enter(name, "--cores", "1")
    assert shop.line() == ["head", "a", "b", "c"], "one core is free, but they have no limit"
    assert shop.queue("move", "c", "first").process.returncode == 0
    wait_until(lambda: shop.has_begun("c"), "c, which fits as the first")
    shop.release("c")
    assert shop.launches["c"].end() == 0
    assert shop.queue("move", "b", "before", "a").process.returncode == 0
    assert shop.line() == ["head", "b", "a"]
    assert shop.queue("cancel", "a").process.returncode == 0
    assert shop.launches["a"].end() == 143
    assert shop.queue("drain").process.returncode == 0
    shop.enter("short", "--cores", "1", "--timeout", "10")
    assert shop.line() == ["head", "b", "short"]
    assert "drain --off" in shop.queue("--json").out
    assert "short" in shop.queue().out
    assert shop.queue("drain", "--off").process.returncode == 0
    wait_until(lambda: shop.has_begun("short"), "short, which ends before head could start")
    for wrong in (
        ("cancel", "runs"),
        ("cancel", "nobody"),
        ("move", "b", "before"),
        ("move", "b", "last", "b"),
    ):
        assert shop.queue(*wrong).process.returncode == 2, wrong
    assert shop.line() == ["head", "b"]


def test_what_cannot_be_is_refused_before_anything_is_made(shop: Shop) -> None:
    """More than the machine has, with the figure; claims without a queue; a folder that others could spoil."""
    cores = capacity_of_machine().cores
    for words, text in (
        (("--queue", "--cores", str(cores + 1)), f"{cores + 1} cores; {cores} free when nothing else runs"),
        (("--queue", "--memory", "900TB"), "900.0 TB of memory"),
        (("--cores", "1"), "--cores and --memory belong to --queue"),
        (("--queue", "--memory", "much"), "is not an amount of memory such as 800MB or 2GB"),
        (("--queue", "--on", "kubernetes"), "--queue"),
    ):
        launch = shop.launcher.start(*ONE_TASK, *words, "--", "true", environment=shop.environment)
        assert (launch.end(), text in launch.err) == (2, True), (words, launch.err)
        assert not launch.run_dir.exists(), words
    shop.folder.path.chmod(0o777)
    assert "chmod +t" in shop.queue().err
    gone = shop.launcher.dtrain("queue", environment={QUEUE_DIR: str(shop.folder.path / "gone")})
    assert (gone.end(), "No such file" in gone.err) == (1, True)


def test_a_run_that_fails_behind_its_wait_is_recorded_as_failed(shop: Shop) -> None:
    """Its port was free as it entered; when its turn comes, a stranger has it."""
    shop.enter("first", "--cores", str(capacity_of_machine().cores))
    with contextlib.closing(socket.socket()) as stranger:
        stranger.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        stranger.close()
        waits = shop.enter("second", "--cores", "1", "--set", f"cluster.worker=[{address}]")
        waits.wait_for(lambda: waits.record()["state"] == "pending", "a pending run")
        with contextlib.closing(socket.create_server(("127.0.0.1", int(address.rpartition(":")[2])))):
            shop.release("first")
            assert waits.end() != 0
    record = waits.record()
    assert (record["state"], record["exit_code"]) == ("failed", waits.process.returncode)
    assert address in record["failure"]["message"]
    assert address in waits.err


def test_a_run_whose_checkpoints_are_gone_is_refused_before_it_waits(shop: Shop) -> None:
    """Nothing of it has changed, and it never stood in line."""
    shop.enter("first", "--cores", str(capacity_of_machine().cores))
    (shop.launcher.folder / "program.py").write_text("")
    (shop.launcher.folder / "spec.yaml").write_text("cluster: {worker: 1, ps: 1}\n")
    run = RunFiles(shop.launcher.folder / "gone")
    run.create()
    write_record(run.run, RunRecord("r1", "gone", RunState.STOPPED, saved=SavedRecord(7, "on h in /c")))
    before = run.run.read_bytes()
    words = ("--queue", "--resume", "--run-dir", str(run.directory), "spec.yaml", "program.py")
    launch = shop.launcher.start(*words, environment=shop.environment, run_dir=run.directory)
    assert launch.end() == 2, launch.err
    assert "the newest checkpoint, of step 7, is on h in /c" in launch.err
    assert "in the queue" not in launch.err
    assert run.run.read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
def test_two_users_share_a_folder(tmp_path: Path) -> None:
    """They wait for each other; nobody else's launch can be cancelled, moved, or kept alive by what it says."""
    nobody = 65534
    with contextlib.ExitStack() as closing:
        home = Path(tempfile.mkdtemp(prefix="dtrain-queue-"))
        closing.callback(shutil.rmtree, home)
        home.chmod(0o755)
        queue, theirs = home / "queue", home / "theirs"
        queue.mkdir()
        queue.chmod(0o1777)
        theirs.mkdir()
        os.chown(theirs, nobody, nobody)
        environment = {QUEUE_DIR: str(queue), "HOME": str(theirs), "DTRAIN_RUNS_DIR": str(theirs / "runs")}
        reads = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")  # dtrain, wherever it lies
        change = ("setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups", *reads)

        def as_nobody(*words: str) -> Command:
            command = Command(theirs, [*COMMAND, *words], environment=environment, wrapper=change, warm=False)
            closing.callback(kill, command)
            return command

        probe = as_nobody("--version")
        if probe.end() != 0:
            pytest.skip(f"another user cannot run dtrain from {SOURCES}: {probe.err[-200:]}")
        launcher = Launcher(tmp_path)
        closing.callback(launcher.close)
        cores = str(capacity_of_machine().cores)
        own = {QUEUE_DIR: str(queue)}
        first = launcher.start(
            "--queue",
            "--cores",
            cores,
            *ONE_TASK,
            "--",
            "sh",
            "-c",
            "echo go; read x < gate",
            environment=own,
        )
        os.mkfifo(tmp_path / "gate")
        gate = os.open(tmp_path / "gate", os.O_RDWR)
        closing.callback(os.close, gate)
        first.wait_running()
        (queue / "drained").touch()
        os.chown(queue / "drained", nobody, nobody)  # not theirs to say
        second = as_nobody(
            "launch", "--queue", "--name", "theirs", "--cores", "1", *ONE_TASK, "--", "echo", "ran"
        )
        rows = []

        def listed() -> bool:
            command = launcher.dtrain("queue", "--json", environment=own)
            command.end()
            rows[:] = json.loads(command.out)["launches"]
            return len(rows) == 2

        wait_until(listed, "the second launch in line")
        assert [(row["user"], row["state"]) for row in rows] == [("root", "running"), ("nobody", "waiting")]
        third = launcher.start(
            "--queue", "--name", "third", "--cores", "1", *ONE_TASK, "--", "true", environment=own
        )
        wait_until(lambda: len(list(queue.iterdir())) == 4, "three tickets")
        for words in (("cancel", "third"), ("move", "third", "first"), ("drain",)):
            refused = as_nobody("queue", *words)
            assert refused.end() == 2, (words, refused.out, refused.err)
        os.write(gate, b"\n")
        assert first.end() == 0, first.err
        assert second.end() == 0, second.err
        assert third.end() == 0, third.err


def kill(command: Command) -> None:
    """End a command that a failed test has left, and close its pipes."""
    command.process.kill()
    command.process.communicate()
