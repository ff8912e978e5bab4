"""The readers of what hosts say to their launcher, and of what a launcher says to an agent, for the fuzzer."""

import contextlib
import fcntl
import itertools
import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
from security.mutations import some_json
from security.readers import Case, Reader, of_bytes

from dtrain.cluster import TaskId
from dtrain.config import ClusterSection, RunSpec, read_hosts
from dtrain.errors import RunError
from dtrain.messages.membership import TaskStatus
from dtrain.process.start_protocol import (
    ORDER_BYTES_MAX,
    Exited,
    Lines,
    MessageStream,
    Refused,
    Started,
    StartTask,
    encode,
)
from dtrain.runs.files import FailureRecord, KillRequest, RunFiles, TaskRecord, read_record, write_record
from dtrain.runs.joined import JoinedRecord
from dtrain_cli.agent import driver
from dtrain_cli.agent import messages as told
from dtrain_cli.code import CodeArchive
from dtrain_cli.fleet import host_rules, preparation
from dtrain_cli.fleet.host_rules import HERE
from dtrain_cli.fleet.link import HostError
from dtrain_cli.fleet.target import FleetRun, FleetTarget
from dtrain_cli.plan.run_plan import Workload
from dtrain_cli.targets.target import HostNews

WORKER = TaskId.parse("worker:0")
FOLDER = "tasks/worker-0"
PIPE_BYTES = 1 << 20
"""Room for the lines of one case: nobody reads while they are written."""
TURNS = 12
WELCOME = told.HostFacts(
    version("dtrain"), HERE, "/python", "h", 9.0, 1.0, 4, "10.0.0.1", {"eth0": ["10.0.0.1/24", "::1/64"]}
)


def agent_readers(folder: Path) -> Iterator[tuple[str, Reader]]:
    """Yield the readers of both ends of an agent's stream."""
    said = [sound_answers()]

    def changed(case: Case, chance: Random) -> Case:  # every other time in the news, which have most kinds
        part = {"news": case["news"]} if chance.random() < 0.5 else case
        return {**case, **of_bytes(said, changed_lines)(part, chance)}

    yield "words of hosts", Reader(said, changed, read_host, writes=True)
    orders = [{"orders": _orders()}]
    yield "orders to hosts", Reader(orders, of_bytes(orders, changed_lines), read_orders, writes=True)


def changed_lines(name: str, data: bytes, chance: Random) -> bytes:
    """Change the lines of a stream: the data of one, what it carries, how long it is, their number and order."""
    every = data.splitlines(keepends=True)
    number = chance.randrange(len(every))
    match chance.randrange(6):
        case 0:
            more = (every, [b'{"type":"x'], [b"[" * 5000 + b"\n"], [b"9" * 9000, b"\n"])
            every[number:number] = chance.choice(more)
        case 1:
            chance.shuffle(every)
        case 2:
            every[number] = every[number].rstrip() * chance.choice((1, 2, 300)) + chance.choice((b"", b"\n"))
        case _:
            every[number] = _changed_line(every[number], chance)
    return b"".join(every)


def _changed_line(line: bytes, chance: Random) -> bytes:
    if not line.startswith(b"{"):
        return line
    said = msgspec.json.decode(line)
    if "data" in said and chance.random() < 0.7:
        with contextlib.suppress(ValueError):  # it carries no JSON
            said["data"] = some_json(msgspec.convert(said["data"], bytes), chance)
            return msgspec.json.encode(said) + b"\n"
    return some_json(line, chance) + b"\n"


def _emptied(folder: Path) -> Path:
    """Remove all files below a folder; its folders stay, because removing them is slow."""
    for left in folder.rglob("*"):
        if left.is_file():
            left.unlink()
    return folder


def _lines(*messages: Any) -> bytes:
    return b"".join(map(encode, messages))


# What a host says


def sound_answers(host: str = "h1") -> Case:
    """Return what a sound host says, by the order that it answers; `news` come by themselves."""
    beat, port = time.monotonic(), {"h1": 2222, "h2": 3333}[host]
    status = TaskStatus(str(WORKER), 7, host, step=3, saved_step=3, monotonic_s=beat, evaluation={"loss": 1})
    status.staleness_counts = {1: 2}
    records = {
        f"{FOLDER}/status.json": status,
        f"{FOLDER}/attempt-0/failure.json": FailureRecord(str(WORKER), "boom", monotonic_s=beat),
        f"{FOLDER}/kill.json": KillRequest("silent", 0, beat, 5.0),
        "tasks/worker-7/joined.json": JoinedRecord(1, 0.5, TaskRecord("worker:7", host=host)),
        "spec.json": RunSpec(),
    }
    welcome = msgspec.structs.replace(WELCOME, host=host, monotonic_s=beat)
    return {
        "welcome": told.MAGIC + b"\n" + _lines(welcome),
        "begin": _lines(told.RunReady("/runs/h", False, 2)),
        "code_part": _lines(told.Done()),
        "hold": _lines(told.Held([port])),
        "listen": _lines(told.Done()),
        "try": _lines(told.Tried({})),
        "fetch": _lines(told.MadePart("manifest.json", b"{}", True), told.AllMade([], 3)),
        "news": _lines(
            *(told.Replaced(path, msgspec.json.encode(record)) for path, record in records.items()),
            told.Replaced(
                f"{FOLDER}/status.json", msgspec.json.encode(msgspec.structs.replace(status, step=4))
            ),
            told.Appended(f"{FOLDER}/attempt-0/output.log", b"epoch 1\n"),
            told.Appended("metrics.jsonl", b"{}\n"),
            *(told.Pong(beat), told.Signalled(15), told.Failed("its disk is full")),
            *(Started(str(WORKER), 0, 7), Refused(str(WORKER), 0, "no fork"), Exited(str(WORKER), 0, 0, 1)),
        ),
    }


class Hosts:
    """The way to h1, which says what a case holds, and to h2, which says what a host should."""

    def __init__(self, said: dict[str, Case]) -> None:
        self.said = said
        self._theirs: list[int] = []
        self._answers: dict[str, int] = {}

    def open(self, host: str) -> Any:
        (orders, stdin), (stdout, answers), (stderr, words) = os.pipe(), os.pipe(), os.pipe()
        fcntl.fcntl(answers, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(answers, False)
        self._theirs += [orders, answers, words]
        self._answers[host] = answers
        self.say(host, "welcome")
        return SimpleNamespace(
            stdin=os.fdopen(stdin, "wb", buffering=0),
            stdout=os.fdopen(stdout, "rb", buffering=0),
            stderr=os.fdopen(stderr, "rb", buffering=0),
            kill=lambda: None,
            wait=lambda timeout=None: 255,
        )

    def explain(self, host: str, code: int, words: str) -> tuple[str, bool]:
        return f"{host}: its stream has ended", True

    def say(self, host: str, name: str) -> None:
        with contextlib.suppress(OSError):  # it is full, or nobody reads it any more
            os.write(self._answers[host], self.said[host].get(name, b""))

    def close(self) -> None:
        for end in self._theirs:
            os.close(end)


def read_host(path: Path) -> None:
    """Do what a launcher does with what h1 says, from the login to the news of its task.

    Nothing of it reaches h2, or a task there; the loss of h1 is raised, as what is said to the user about it.
    """
    files = RunFiles(_emptied(path.parent / "run"))
    files.create()
    write_record(files.spec, RunSpec())
    hosts = Hosts(
        {"h1": {each.name: each.read_bytes() for each in path.iterdir()}, "h2": sound_answers("h2")}
    )
    cluster = ClusterSection(chief=0, worker=2, ps=0, evaluator=0)
    workload = Workload(Path("p.py"), (), path.parent)
    code = (Path("/code"), CodeArchive("d" * 64, b""))
    spec = RunSpec(cluster=cluster)
    run = FleetRun("run", spec, read_hosts("h1:1,h2:1"), workload, files, {}, "d", lambda: code)
    signals = os.eventfd(0)
    target = FleetTarget(run, hosts, SimpleNamespace(read=list, fileno=lambda: signals), lambda text: None)
    send = target._agents.send

    def send_and_answer(host: str, order: Any) -> None:
        send(host, order)
        hosts.say(host, order.__struct_config__.tag)

    target._agents.send = send_and_answer
    try:
        seconds = SimpleNamespace(
            monotonic=itertools.count().__next__
        )  # a second passes at each look at the clock
        with (
            mock.patch.object(preparation, "time", seconds),
            mock.patch.object(host_rules, "version", return_value=WELCOME.version),
        ):  # it reads files
            target.hold_addresses(cluster)
        target._agents.alive.started(WORKER, 0, "h1")
        hosts.say("h1", "news")
        events = [event for _ in range(TURNS) for event in target.events(0.0)]
        assert target._agents.alive.is_up("h2")
        assert {event.task for event in events if hasattr(event, "task")} <= {str(WORKER)}
        read_record(files.status(WORKER), TaskStatus)
        read_record(files.failure(WORKER, 0), FailureRecord)
        for event in events:
            if isinstance(event, HostNews) and event.kind == "cut":
                raise HostError(event.text)
    finally:
        hosts.close()
        target.close()
        os.close(signals)


# What a launcher says


def _orders() -> bytes:
    return _lines(
        told.BeginRun("run", "h1", "/p.py", "d", "/", 8.0, {"metrics.jsonl": 3}),
        *(told.Ping(time.monotonic()), told.CodePart("d", b"tar", True)),
        *(told.HoldPorts("127.0.0.1", 2, 1, 9, [5]), told.Listen(True), told.Try(["127.0.0.1:9"], 0.1)),
        told.ReleasePorts(),
        StartTask("worker:0", 0, ["/p.py"], {"A": "b"}, {}, "/", "/run/output.log", needs_grpc=False),
        *(told.SlowOrder("worker:0", 0, 2.0), told.SlowOrder("worker:0", 0, None)),
        *(told.SignalOrder("worker:0", 0, 15), told.Fetch(), told.Fetch(7)),
        *(told.MadePart("manifest.json", b"{}", True), told.AllMade([], 7)),
        *(told.FindFile("/x", "0" * 64),),
    )


def read_orders(path: Path) -> None:
    """Do what an agent does with a launcher's orders, but for sockets, processes and archives of code.

    The reason that it tells when it goes on no more is raised; a launcher takes each of its answers.
    """
    state = _emptied(path.parent / "state")
    (reading, orders), (answers, writing) = os.pipe(), os.pipe()
    for end in (orders, writing):
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(orders, False)
    os.write(orders, (path / "orders").read_bytes())
    os.close(orders)
    processes = SimpleNamespace(
        wake_on=lambda source: None,
        start_ordered=lambda launch: SimpleNamespace(attempt=launch.attempt, signal=lambda number: None),
        events=lambda until_s: [],
        close=lambda: None,
    )
    stand_ins = {
        "SignalInbox": lambda: SimpleNamespace(read=list),
        "SentCode": lambda: SimpleNamespace(receive=lambda order, run_dir: told.Done()),
        "unreachable": lambda addresses, timeout_s: {},
        "hold": lambda order, held: told.Held([]),
        "welcome": lambda environment: WELCOME,
        "_holds": lambda program, digest: True,
        "_LAST_WORD_S": 0.0,
    }
    environment = {"XDG_STATE_HOME": str(state), "DTRAIN_RUNS_DIR": ""}
    orders_of = Lines(told.ORDERS.decode, ORDER_BYTES_MAX)
    with mock.patch.multiple(driver, **stand_ins), mock.patch.object(os, "environ", environment):
        agent = driver.HostAgent(MessageStream(reading, writing, orders_of), processes)
        try:
            agent.run()
        finally:
            for end in (reading, writing, *([agent._run.lock] if agent._run is not None else [])):
                os.close(end)
    with os.fdopen(answers, "rb") as said:
        _, _, words = said.read().partition(told.MAGIC + b"\n")
    for answer in Lines(told.ANSWERS.decode).feed(words):
        if isinstance(answer, told.Failed):
            raise RunError(answer.reason)
