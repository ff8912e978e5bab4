"""The readers of the environment, of run directories and of specs, for the fuzzer."""

import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import rich._emoji_codes  # noqa: F401 -- rich imports it at the first text with a colon, within a watch
from rich.console import Console
from security.mutations import SCALARS, some_bytes, some_json
from security.readers import Reader, files_of, of_bytes

from dtrain.config import RunSpec
from dtrain.messages import Verdict
from dtrain.messages.membership import TaskStatus
from dtrain.process.assignment import TaskAssignment
from dtrain.runs.files import (
    FailureRecord,
    JoinRecord,
    RunFiles,
    RunRecord,
    TaskRecord,
    read_record,
    write_record,
)
from dtrain.runs.ledger import COMPUTE, SHEET_BYTES, Cause, Timesheet
from dtrain.runs.trace import read_trace
from dtrain_cli.console.run_table import runs_table, status_table
from dtrain_cli.runs.history import read_story
from dtrain_cli.runs.index import find_run, survey
from dtrain_cli.runs.report import read_report, with_joined
from dtrain_cli.runs.summary import figures_of, figures_table, time_tables
from dtrain_cli.spec import read_spec
from dtrain_cli.stories.campaign import read_campaign

# The environment


def environments(folder: Path) -> Iterator[tuple[str, Reader]]:
    """Yield the readers of TF_CONFIG and of dtrain's own variables."""
    cluster = {"chief": ["a:1"], "worker": {"1": "b:2"}, "ps": ["[::1]:2"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}).encode()
    found = TaskAssignment.from_environment({"TF_CONFIG": config.decode()})
    assert found is not None
    variables = found.to_environment(config.decode())

    def read(path: Path) -> None:
        given = {file.name: file.read_bytes() for file in path.iterdir()}
        texts = {
            name: data.replace(b"\0", b"").decode(errors="surrogateescape") for name, data in given.items()
        }
        if "secret_file" in texts.get("DTRAIN_SPEC", "").replace('"secret_file":null', ""):
            return  # the user's own environment names the file that is read
        TaskAssignment.from_environment({**variables, **texts})

    sound = [{"TF_CONFIG": config}]
    yield "TF_CONFIG", Reader(sound, of_bytes(sound, lambda _, data, chance: some_json(data, chance)), read)
    sound = [{"DTRAIN_SPEC": variables["DTRAIN_SPEC"].encode()}, {"DTRAIN_ATTEMPT": b"3"}]
    yield "DTRAIN_SPEC", Reader(sound, of_bytes(sound, lambda _, data, chance: some_json(data, chance)), read)


# Records


def records(folder: Path) -> Reader:
    """Return the readers of a run directory: what `status`, `runs`, `logs`, `rm` and a worker that joins do."""
    files = RunFiles(folder / "records")
    files.create()
    tasks = [TaskRecord("chief:0", "running", 1, "here"), TaskRecord("ps:0", "failed", message="x: y")]
    failure = FailureRecord("ps:0", "boom")
    run = RunRecord(
        "r", "n", "failed", "2026-11-21T10:00:00+00:00", "2026-11-21T11:00:00+00:00", 1, 5, 0.5, failure
    )
    run.tasks = tasks
    write_record(files.run, run)
    files.attempt(dt_task("chief:0"), 0).mkdir(parents=True)
    status = TaskStatus("chief:0", 1, "here", step=3, loss=0.5, evaluation={"global_step": 3, "loss": 1.0})
    write_record(files.status(dt_task("chief:0")), status)
    files.joined(dt_task("worker:3")).parent.mkdir(parents=True)
    owner = {"owner_pid": 1, "owner_started": 0.5, "task": TaskRecord("worker:3", "running", 1, "here")}
    write_record(files.joined(dt_task("worker:3")), owner)
    write_record(files.join, JoinRecord("r", True, {"ps": ["a:1"]}, "s"))
    files.trace(dt_task("chief:0"), 0).write_text(
        '{"kind": "span", "name": "x", "at_s": 1.0, "for_s": 0.1}\n'
    )
    memory = bytearray(SHEET_BYTES)
    sheet = Timesheet(memory, iter(range(5, 100)).__next__, Cause.LATE)
    sheet.begins(0)
    for verdict in (Verdict.ACCEPTED, Verdict.ACCEPTED, Verdict.VOID, Verdict.ACCEPTED):
        sheet.to(COMPUTE)
        sheet.judged(verdict, 0, 1)
    sheet.waited_for({"ps:0": 2.0})
    files.seconds(dt_task("chief:0"), 0, 0).write_bytes(memory)
    line = {"time": "2026-11-21T10:00:01.000+00:00", "task": "chief:0", "attempt": 0}
    started = {"event": "started", "monotonic_s": 1.5, **line, "pid": 1}
    exited = {"event": "exited", "monotonic_s": 50.5, **line, "status": -9}
    files.journal.write_text(f"{json.dumps(started)}\n{json.dumps(exited)}\n")
    assert read_report(files.directory)["goodput"]["seconds"]["good"] > 0
    said = {"step": 3, "loss": 0.5, "examples_per_s": 2.0, "waiting_share": 0.5, "staleness_counts": {"1": 3}}
    line = {"time": "2026-11-21T10:00:01+00:00", "global_step": 3, "tasks": {"chief:0": said}}
    files.metrics.write_text(json.dumps({**line, "versions": {"python": "3.11"}}))
    files.reports.write_text('{"loss": 0.5, "step": 3, "reported_s": 1795000000.5, "trained": true}')
    write_record(files.spec, RunSpec())
    sound = [files_of(files.directory)]

    def structured(name: str, data: bytes, chance: Random) -> bytes:
        if name.endswith(".bin"):
            return some_bytes(data, [bytes(memory)], chance)
        return b"\n".join(some_json(line, chance) for line in (data.splitlines() or [data]))

    def read(path: Path) -> None:
        for found in survey(path.parent).runs:
            find_run(found.record.name, path.parent)
            story = read_story([found])
            figures_table(figures_of(story))
            time_tables(story)
            msgspec.json.encode(story)
        read_record(path / "join.json", JoinRecord)
        read_trace(path / "tasks/chief-0/attempt-0/trace.jsonl")
        report = read_report(path)
        with_joined(RunFiles(path), ())
        if zlib.crc32(json.dumps(report).encode()) % 8:
            return  # tables are slow to draw
        console = Console(file=io.StringIO(), width=80)
        console.print(status_table(report, 80))
        console.print(runs_table([{**report, "where": "local"}]))

    return Reader(sound, of_bytes(sound, structured), read)


def dt_task(name: str) -> Any:
    """Return a task by its name."""
    from dtrain.cluster import TaskId

    return TaskId.parse(name)


# Specs


def specs(folder: Path) -> Reader:
    """Return the reader of specs with `--set`."""
    root = Path(__file__).parents[2] / "cluster_specs"
    sound = [
        {"spec.yaml": path.read_bytes(), "set": b"training.updates=sync"}
        for path in sorted(root.glob("*.yaml"))
    ]
    sound.append(
        {"spec.toml": b'name = "x"\n[cluster]\nchief = 1\nps = 1\n', "set": b"simulate.slow.worker:0=2"}
    )
    whole = {
        "cluster": {"chief": 1, "worker": 2, "ps": 1},
        "simulate": {"kill": [{"task": "worker:0", "at_step": 3}]},
    }
    sound.append({"spec.yaml": json.dumps(whole).encode(), "set": b"restart.ps.max=3"})

    def structured(name: str, data: bytes, chance: Random) -> bytes:
        if name == "set":
            key = chance.choice(
                [b"cluster.worker", b"cluster.0", b"training.x.y", b".", b"simulate.slow.ps:9", b"name"]
            )
            return key + b"=" + json.dumps(chance.choice(SCALARS)).encode()
        return some_json(data, chance) if data.startswith(b"{") else some_bytes(data, [data], chance)

    def read(path: Path) -> None:
        file = next(path.glob("spec.*"))
        read_spec(
            file, [(path / "set").read_bytes().decode(errors="surrogateescape")], {"workers": 2}, trains=True
        )

    return Reader(sound, of_bytes(sound, structured), read)


def campaigns(folder: Path) -> Reader:
    """Return the reader of the files of campaigns."""
    examples = Path(__file__).parents[2] / "examples"
    program = (examples / "digits.py").read_bytes()
    story = {"name": "a", "simulate": {"kill": [{"task": "ps:0", "at_step": [1, 3]}]}, "seeds": 2}
    whole = {"program": "digits.py", "arguments": [1, "x"], "stories": [story], "loss_within": 0.5}
    whole["spec"] = {"cluster": {"chief": 1, "ps": 1}}
    texts = [(examples / "campaign.yaml").read_bytes(), json.dumps(whole).encode()]
    sound = [{"c.yaml": text, "digits.py": program} for text in texts]

    def structured(name: str, data: bytes, chance: Random) -> bytes:
        if name != "c.yaml":
            return data
        return some_json(data, chance) if data.startswith(b"{") else some_bytes(data, [data], chance)

    return Reader(sound, of_bytes(sound, structured), lambda path: read_campaign(path / "c.yaml"))
