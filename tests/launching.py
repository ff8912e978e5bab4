"""Launching real clusters in tests: start one, wait for things to be true, and see that nothing of it is
left.
"""

import atexit
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from warm_commands import COLD, NETWORK

PATIENCE_S = 60.0
"""Far above any promise: no test may fail because the machine is busy."""
COMMAND = ("-m", "dtrain_cli.main")
SOURCES = os.pathsep.join(
    str(Path(folder).resolve()) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder
)
MARK = "DTRAIN_TEST_MARK"
WARM = "DTRAIN_TEST_FORK_SERVER"
"""Names the fork server of the process that started this one for a test."""

WARM_SERVER = """
import ctypes, importlib, runpy
ctypes.CDLL(None).prctl(1, 9)
from dtrain.task import fork_server
fork_server.import_all()
for module in (*fork_server.STRATEGY_IMPORTS.values(), *fork_server.GRPC_IMPORTS):
    importlib.import_module(module)
runpy._run_module_as_main("dtrain.task")
"""
"""Dies with the tests, and imports what the fork server of each launch would import for its tasks: two tenths of a
second of a core.
"""

PRELUDE = """
import json, os, signal, subprocess, sys, time, types
from pathlib import Path
from dtrain.messages.membership import TaskStatus
from dtrain.cluster import TaskId
from dtrain.runs.files import (RunFiles, write_record)

sys.modules["dtrain.strategies.interface"] = types.SimpleNamespace(was_used=lambda: True, close_default=lambda error: None)
_place = json.loads(os.environ["TF_CONFIG"])["task"]
task = f'{_place["type"]}:{_place["index"]}'
attempt = int(os.environ["DTRAIN_ATTEMPT"])
run_dir = Path(os.environ["DTRAIN_RUN_DIR"])

def status(phase="running", **facts):
    now = time.monotonic()
    record = TaskStatus(task, os.getpid(), "here", attempt, phase, now, facts.pop("progress_monotonic_s", now), **facts)
    write_record(RunFiles(run_dir).status(TaskId.parse(task)), record)

def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"waited in vain for {path}"
        time.sleep(0.01)

def forever():
    while True:
        time.sleep(0.05)  # not pause(): a signal just before it would be waited for in vain
"""
"""A program that says of itself what training would, and nothing else: these tests are about processes."""

FAMILY = """
subprocess.Popen(["sleep", "1001"])
subprocess.Popen(["setsid", "sleep", "1002"])
subprocess.Popen(["sh", "-c", "(setsid sleep 1003 &) ; exit"]).wait()
status()
forever()
"""
SHELL_FAMILY = "sleep 1001 & setsid sleep 1002 & (setsid sleep 1003 &); exec sleep 1004"


def wait_until(condition: Callable[[], Any], what: str = "", within_s: float = PATIENCE_S) -> Any:
    """Poll until `condition` holds; what it returned. Polling leaves four fifths of a core to what is waited for."""
    deadline_s = time.monotonic() + within_s
    while True:
        asked_s = time.monotonic()
        if result := condition():
            return result
        now_s = time.monotonic()
        assert now_s < deadline_s, f"waited in vain: {what or condition}"
        time.sleep(max(0.02, min(4 * (now_s - asked_s), 0.2)))


_ports = iter(random.SystemRandom().sample(range(10_000, 32_000), 2_000))
"""Below those from which Linux takes the ports of connections and of `bind` to port 0; each of them once."""


def free_port() -> int:
    """A port that a program will listen at a moment later; no other process comes to it by chance meanwhile."""
    for port in _ports:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise AssertionError("no port is free")


@contextlib.contextmanager
def _heard_hangups() -> Iterator[None]:
    """For children, also when pytest itself runs under nohup. A preexec_fn would fork this process, with
    gRPC's threads in it.
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@functools.cache
def _warm_fork_server() -> tuple[subprocess.Popen[bytes], str]:
    path = str(Path(tempfile.mkdtemp(prefix="dtrain-warm-")) / "socket")
    atexit.register(shutil.rmtree, Path(path).parent, ignore_errors=True)
    words = [sys.executable, "-P", "-c", WARM_SERVER, "--warm-server", path]
    server = subprocess.Popen(
        words,
        env={**os.environ, "PYTHONPATH": SOURCES},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    atexit.register(server.kill)
    assert server.stdout.readline(), "no warm fork server"
    return server, path


def warm_fork_server() -> str:
    """The socket of a fork server that has imported everything: one for all launches of this process, with
    which the kernel ends it; or that of the process which started this one for a test. One that a test of what
    kills all children has killed is started again.
    """
    if WARM in os.environ:
        return os.environ[WARM]
    if _warm_fork_server()[0].poll() is not None:
        _warm_fork_server.cache_clear()
    return _warm_fork_server()[1]


@dataclass
class Command:
    """One Python command as a child process, with everything it starts marked by an environment variable.

    Attributes:
        wrapper: a command that runs it, such as a shell that first changes a limit.
        warm: whether a launch without a wrapper takes its fork server from `warm_fork_server`, and whether the
            command itself is forked (`warm_commands`).
        network: a process in whose namespaces it runs, or 0; only of a warm one without a wrapper.
    """

    folder: Path
    words: list[str]
    stdout: Any = subprocess.PIPE
    stderr: Any = subprocess.PIPE
    stdin: Any = subprocess.DEVNULL
    environment: dict[str, str] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()
    warm: bool = True
    network: int = 0
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        own = {"PYTHONPATH": SOURCES, "DTRAIN_RUNS_DIR": str(self.folder / "runs"), MARK: self.mark}
        if not self.warm:
            own[COLD] = "1"
        elif not self.wrapper:
            own["DTRAIN_FORK_SERVER"] = warm_fork_server()
        if self.network:
            own[NETWORK] = str(self.network)
        with _heard_hangups():
            self.process = subprocess.Popen(
                [*self.wrapper, sys.executable, *self.argv()],
                cwd=self.folder,
                env={**os.environ, **own, **self.environment},
                stdin=self.stdin,
                stdout=self.stdout,
                stderr=self.stderr,
                text=True,
                errors="replace",
            )
        self.out = self.err = ""

    def argv(self) -> list[str]:
        """What Python is started with."""
        return self.words

    def end(self, within_s: float = PATIENCE_S * 1.5) -> int:
        """Wait for the end; the exit code. `out` and `err` hold what was printed."""
        self.out, self.err = self.process.communicate(timeout=within_s)
        return self.process.returncode

    def send(self, number: int) -> None:
        """Signal the process itself."""
        self.process.send_signal(number)

    def pids(self, *words: str) -> list[int]:
        """The living processes that it has started, whatever their session; those with `words` in their
        argv. What a warm fork server forks has no environment of its own; it bears the launcher's pid.
        """
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != self.process.pid:
                with contextlib.suppress(OSError):
                    marked = (
                        f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes()
                        or (entry / "comm").read_text().strip() == f"dtrain-{self.process.pid}"
                    )
                    argv = (entry / "cmdline").read_bytes().split(b"\0") if marked else [b""]
                    if argv != [b""] and all(word.encode() in argv for word in words):
                        found.append(int(entry.name))
        return found

    def wait_gone(self) -> None:
        """Wait until no process that it has started is left."""
        wait_until(lambda: not self.pids(), f"processes are left: {self.pids()}")


@dataclass
class Launch(Command):
    """One `dtrain launch`."""

    run_dir: Path | None = None

    def argv(self) -> list[str]:
        """With a run directory of its own, unless one is given."""
        options = []
        if self.run_dir is None:
            self.run_dir = self.folder / f"run-{self.mark[:6]}"
            options = ["--run-dir", str(self.run_dir)] if "--run-dir" not in self.words else []
        return [*COMMAND, "launch", *options, *self.words]

    def record(self) -> dict[str, Any]:
        """run.json as it is now."""
        with contextlib.suppress(OSError, json.JSONDecodeError):
            return json.loads((self.run_dir / "run.json").read_text())  # type: ignore[no-any-return]
        return {"state": None, "tasks": []}

    def task(self, name: str) -> dict[str, Any]:
        """A task of run.json."""
        return next(
            (task for task in self.record()["tasks"] if task["task"] == name), {"state": None, "pid": None}
        )

    def pid(self, name: str) -> int:
        """The process of a task; run.json knows it a moment after the task has begun to act."""
        found: int = self.wait_for(lambda: self.task(name)["pid"], f"the process of {name}")
        return found

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The journal's events of a kind."""
        with contextlib.suppress(OSError):
            lines = (self.run_dir / "events.jsonl").read_text().splitlines()
            return [event for event in map(json.loads, lines) if event["event"] == kind]
        return []

    def log(self, name: str, attempt: int = 0) -> str:
        """What an attempt of a task has printed."""
        path = self.run_dir / "tasks" / name.replace(":", "-") / f"attempt-{attempt}" / "output.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
        """Wait until `condition` holds; the launcher must not end before."""
        found = wait_until(lambda: condition() or self.process.poll() is not None, what, within_s)
        assert self.process.poll() is None, self.process.communicate()
        return found

    def wait_running(self) -> None:
        """Wait until every task is up."""
        self.wait_for(lambda: self.record()["state"] == "running", "all tasks up")

    def fork_server(self) -> int:
        """The pid of the process from which programs are forked."""
        (pid,) = {psutil.Process(task["pid"]).ppid() for task in self.record()["tasks"] if task["pid"]}
        return pid

    def guardian(self, task: str) -> int:
        """The pid of the guardian of a foreign task."""
        return psutil.Process(self.pid(task)).ppid()


class Launcher:
    """Writes programs into a folder and launches them; whatever a failing test leaves is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launches: list[Command] = []

    def program(self, body: str, name: str = "program.py") -> str:
        """Write a program with the prelude; its name."""
        (self.folder / name).write_text(PRELUDE + textwrap.dedent(body))
        return name

    def start(self, *words: str, **options: Any) -> Launch:
        """Launch with these words after `dtrain launch`."""
        launch = Launch(self.folder, [str(word) for word in words], **options)
        self.launches.append(launch)
        return launch

    def start_family(self, *words: str, foreign: bool, **options: Any) -> Launch:
        """Launch tasks that each have a child in their group, one in a session of its own, and an orphan in
        one of its own.
        """
        launch = self.start(
            *words, *(("--", "sh", "-c", SHELL_FAMILY) if foreign else (self.program(FAMILY),)), **options
        )
        launch.wait_running()
        families = [task for task in launch.record()["tasks"] if foreign or not task["task"].startswith("ps")]
        for name in ("1001", "1002", "1003"):
            launch.wait_for(
                lambda name=name: len(launch.pids("sleep", name)) == len(families),
                f"sleep {name} in every task",
            )
        return launch

    def run(self, *words: str, **options: Any) -> Command:
        """Start Python with these words."""
        command = Command(self.folder, [str(word) for word in words], **options)
        self.launches.append(command)
        return command

    def dtrain(self, *words: str, **options: Any) -> Command:
        """Start any other `dtrain` command."""
        return self.run(*COMMAND, *words, **options)

    def close(self) -> None:
        """Kill what is left."""
        for launch in self.launches:
            with contextlib.suppress(ProcessLookupError):
                launch.process.kill()
            launch.process.wait()
            for pid in launch.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pipe in (launch.process.stdout, launch.process.stderr):
                if pipe is not None:
                    pipe.close()
