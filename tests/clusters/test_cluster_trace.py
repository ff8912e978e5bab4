"""A traced run: every task's spans and events, and the timeline that `dtrain trace` makes of them."""

import json
import subprocess
import sys

from dtrain.cluster import TaskId
from dtrain.runs.files import RunFiles
from dtrain.runs.trace import Happened, Header, Span, read_trace

PROGRAM = """
import numpy as np
import dtrain as dt
model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
model.compile("sgd", "mse")
x = np.ones((40, 1), np.float32)
model.fit(dt.data.Dataset.from_tensor_slices((x, x)).batch(4), epochs=1, verbose=0)
"""


def trace_of(files, task):
    return read_trace(files.trace(TaskId.parse(task), 0))


def spans(lines):
    return {line.name for line in lines if isinstance(line, Span)}


def test_each_task_says_what_it_did(launcher):
    (launcher.folder / "train.py").write_text(PROGRAM)
    words = ["--workers", "1", "--ps", "2", "--no-evaluator", "--updates", "sync", "--set", "trace=true"]
    launch = launcher.start(*words, launcher.folder / "train.py")
    assert launch.end() == 0, launch.err
    files = RunFiles(launch.run_dir)
    for task in ("chief:0", "worker:0"):
        lines = trace_of(files, task)
        assert isinstance(lines[0], Header)
        assert lines[0].task == task
        assert spans(lines) >= {"input", "compute", "send", "wait"}
        assert len([line for line in lines if isinstance(line, Span) and line.name == "compute"]) == 10
    for task in ("ps:0", "ps:1"):
        applied = [line for line in trace_of(files, task) if isinstance(line, Span) and line.name == "apply"]
        assert len(applied) == 10
    happened = [line.what for line in trace_of(files, "ps:0") if isinstance(line, Happened)]
    told = {type(event).__name__ for event in happened}
    assert {"MemberJoined", "MemberLeft", "DecidedEvent"} <= told
    decided = [event for event in happened if type(event).__name__ == "DecidedEvent"]
    assert [event.step for event in decided] == list(range(1, 11))
    leader = {type(line.what).__name__ for line in trace_of(files, "chief:0") if isinstance(line, Happened)}
    assert {"TermBegun", "Saved", "ConfigChanged"} <= leader
    shown = subprocess.run(
        [sys.executable, "-m", "dtrain_cli.main", "trace", str(launch.run_dir), "-o", "-"],
        capture_output=True,
        text=True,
        check=True,
    )
    events = json.loads(shown.stdout)["traceEvents"]
    rows = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert rows == {"chief:0", "worker:0", "ps:0", "ps:1"}
    assert all(event["ts"] >= 0 for event in events if event["ph"] != "M")


def test_a_run_without_a_trace_says_how_to_get_one(launcher):
    (launcher.folder / "train.py").write_text(PROGRAM)
    launch = launcher.start("--workers", "0", "--ps", "1", "--no-evaluator", launcher.folder / "train.py")
    assert launch.end() == 0, launch.err
    refused = subprocess.run(
        [sys.executable, "-m", "dtrain_cli.main", "trace", str(launch.run_dir)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "launch with `--set trace=true` or DTRAIN_TRACE=1" in refused.stderr
    assert not list(launch.run_dir.rglob("trace.jsonl"))
