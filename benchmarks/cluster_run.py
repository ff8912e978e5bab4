"""One `dtrain launch` that is measured from outside."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).parents[1]
PROGRAMS = Path(__file__).parent / "programs"
PEERS = Path(__file__).parent / "peers"
TWO_WORKERS = ("--no-evaluator", "--workers", 2, "--ps", 2, "--set", "training.chief_trains=false")
"""The cluster in which both workers together are counted: the chief leads and does not train."""
BOTH_WORKERS = ("worker:0", "worker:1")
BARE_STREAMS = (
    *("--workers", 2, "--ps", 2, "--set", "cluster.chief=0", "--set", "success=all_workers"),
    *("--", sys.executable, PROGRAMS / "bare_streams.py"),
)
"""gRPC streams between two workers and two servers that do nothing else; their arguments follow."""


class ClusterRun:
    """A launch, under way from the beginning.

    Attributes:
        wall_s: after `end`: of the whole command.
        status: after `end`: the object of `dtrain status --json`.
    """

    def __init__(
        self, run_dir: Path, words: Sequence[object], through: Sequence[object] = (), tree: Path | None = None
    ) -> None:
        """Begin the launch.

        Args:
            run_dir: the folder that the run makes.
            words: what follows `dtrain launch`.
            through: a command that runs the one it is given.
            tree: a checkout whose dtrain is run; default: the installed one.
        """
        self.run_dir = run_dir
        self.wall_s = 0.0
        self.status: dict[str, Any] = {}
        self.started_s = time.monotonic()
        self._process = subprocess.Popen(
            [
                *map(str, through),
                sys.executable,
                "-m",
                "dtrain_cli.main",
                "launch",
                "--json",
                "--run-dir",
                str(run_dir),
                *map(str, words),
            ],
            cwd=tree or ROOT,
            env={**os.environ, "DTRAIN_RUNS_DIR": str(run_dir.parent / "runs"), **import_path(tree)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def under_way(self) -> bool:
        """Whether the command has not ended."""
        return self._process.poll() is None

    def end(self) -> "ClusterRun":
        """Wait for success; itself."""
        out, err = self._process.communicate()
        self.wall_s = time.monotonic() - self.started_s
        assert self._process.returncode == 0, err
        self.status = json.loads(out.splitlines()[-1])
        assert self.status["state"] == "succeeded"
        return self

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The journal's events of a kind, in their order."""
        journal = self.run_dir / "events.jsonl"
        events = map(json.loads, journal.read_text().splitlines()) if journal.exists() else ()
        return [event for event in events if event["event"] == kind]

    def kill(self) -> None:
        """End it, if it has not ended; its tasks die with it."""
        if self.under_way:
            self._process.kill()
            self._process.communicate()

    def processes(self) -> list[psutil.Process]:
        """The launcher and everything that it has started."""
        launcher = psutil.Process(self._process.pid)
        return [launcher, *launcher.children(recursive=True)]

    def log(self, task: str) -> str:
        """What the first attempt of a task has printed."""
        return (self.run_dir / "tasks" / task.replace(":", "-") / "attempt-0" / "output.log").read_text()

    def task(self, name: str) -> dict[str, Any]:
        """A task's entry in the status file of the run, which may be under way; empty before there is one."""
        try:
            tasks = json.loads((self.run_dir / "run.json").read_text())["tasks"]
        except (OSError, ValueError):
            return {}
        return next((task for task in tasks if task["task"] == name), {})

    def said(self, task: str, word: str) -> float:
        """The number behind a word where a task has printed it at the beginning of a line."""
        return float(re.search(rf"^{word} ([-+.e\d]+)", self.log(task), re.M)[1])  # type: ignore[index]

    def marks(self, task: str) -> list[tuple[int, float]]:
        """(steps done, when) by a replica's own clock; see programs/step_clock.py."""
        return json.loads(re.search(r"^marks (.*)$", self.log(task), re.M)[1])  # type: ignore[index, no-any-return]

    def steps_per_s(self, *tasks: str) -> float:
        """Of these replicas together, by the marks of their clocks but for each one's first, while all of
        them trained.

        NaN if they never did, as in a run that is over when the second one arrives.
        """
        marks = [np.array(self.marks(task)[1:]) for task in tasks]
        if any(len(m) < 2 for m in marks):
            return float("nan")
        start_s, end_s = max(m[0, 1] for m in marks), min(m[-1, 1] for m in marks)
        steps = sum(np.interp(end_s, m[:, 1], m[:, 0]) - np.interp(start_s, m[:, 1], m[:, 0]) for m in marks)
        return float(steps / (end_s - start_s)) if end_s > start_s else float("nan")


def import_path(tree: Path | None) -> dict[str, str]:
    """Return the variables with which a Python imports the dtrain of a checkout."""
    return {} if tree is None else {"PYTHONPATH": f"{tree / 'runtime'}{os.pathsep}{tree / 'cli'}"}
