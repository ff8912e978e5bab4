"""Run directories as launches leave them: written by the product's own writers, on a clock of one's own.

python tests/cli/report/told_runs.py DIRECTORY    # one hour of 20 tasks, to look at with `dtrain report DIRECTORY`
"""

import math
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from dtrain.cluster import TaskId
from dtrain.config import RunSpec
from dtrain.messages import HeartbeatReply
from dtrain.messages.membership import TaskStatus
from dtrain.runs import journal, trial_reports
from dtrain.runs.files import FailureRecord, RunFiles, RunRecord, TaskRecord, write_record
from dtrain.runs.trial_reports import EVALUATED, TRAINED, append_report

BEGIN = datetime(2026, 11, 27, 12, tzinfo=UTC)
HOUR_S = 3600.0


class ToldRun:
    """A run that is told second by second."""

    def __init__(self, directory: Path, name: str = "digits") -> None:
        directory.mkdir(mode=0o700, parents=True)
        self.files = RunFiles(directory)
        self.now_s = 0.0
        self._name = name
        self._log = None

    @contextmanager
    def clock(self) -> Iterator["ToldRun"]:
        """Let the writers take this run's time for that of the machine."""
        run = self

        class Clock(datetime):
            @classmethod
            def now(cls, tz=None):
                return BEGIN + timedelta(seconds=run.now_s)

        of_reports = SimpleNamespace(time=lambda: Clock.now().timestamp())
        variables = {"DTRAIN_RUN_DIR": str(self.files.directory)}
        with (
            patch.object(journal, "datetime", Clock),
            patch.object(trial_reports, "time", of_reports),
            patch.dict(os.environ, variables),
        ):
            self._log = journal.MetricsLog(self.files.metrics, lambda: self.now_s)
            yield self
            self._log.flush()

    def event(self, at_s: float, kind: str, **facts) -> None:
        self.now_s = at_s
        journal.append_event(self.files, kind, **facts)

    def heard(self, at_s: float, step: int, *statuses: TaskStatus) -> None:
        self.now_s = at_s
        self._log.update(self.reply(step, *statuses))

    @staticmethod
    def reply(step: int, *statuses: TaskStatus) -> HeartbeatReply:
        return HeartbeatReply(incarnation=1, generation=1, version=step, ended=False, statuses=statuses)

    def report(self, at_s: float, step: int, mark: str | None = None, **metrics: float) -> None:
        self.now_s = at_s
        append_report(step, metrics, mark)

    def end(
        self, statuses: list[TaskStatus], failure: FailureRecord | None = None, state: str = "succeeded"
    ) -> RunFiles:
        """Write the records of a run that has ended now."""
        started, ended = BEGIN.isoformat(), (BEGIN + timedelta(seconds=self.now_s)).isoformat()
        tasks = [TaskRecord(status.task, "succeeded", attempt=0) for status in statuses]
        record = RunRecord(self.files.directory.name, self._name, state, started, ended, 0, tasks=tasks)
        record.failure = failure
        write_record(self.files.run, record)
        write_record(self.files.spec, RunSpec())
        for status in statuses:
            path = self.files.status(TaskId.parse(status.task))
            path.parent.mkdir(parents=True)
            write_record(path, status)
        return self.files


def status(task: str, **fields) -> TaskStatus:
    return TaskStatus(task, 1, "here", **fields)


def hour_of_twenty(directory: Path) -> RunFiles:
    """Tell an hour of a chief, 15 workers, 3 servers and an evaluator: 36,000 steps, 120 epochs, and misfortunes."""
    chance = random.Random(7)
    replicas = ["chief:0", *(f"worker:{index}" for index in range(15))]
    others = [*(f"ps:{index}" for index in range(3)), "evaluator:0"]
    counts = {task: dict.fromkeys(range(30), 0) for task in replicas}
    with ToldRun(directory).clock() as run:
        for task in (*replicas, *others):
            run.event(0.2, "started", task=task, attempt=0, pid=1)
        run.event(1.0, "up")
        now_s = 1.0
        while now_s < HOUR_S:
            now_s += 0.5
            step = int(10 * now_s)
            for task in replicas:
                counts[task][min(29, int(chance.expovariate(0.1)))] += 1
            statuses = [
                status(
                    task,
                    step=step,
                    loss=2.3 * math.exp(-now_s / 900) * chance.uniform(0.9, 1.1),
                    examples_per_s=chance.gauss(900, 80),
                    waiting_share=chance.uniform(0.1, 0.4),
                    input_share=chance.uniform(0.0, 0.1),
                    staleness_counts=counts[task],
                    staleness_mean=10.0,
                )
                for task in replicas
            ]
            run.heard(now_s, step, *statuses)
            if now_s % 30 == 0:
                for mark, factor in ((TRAINED, 1.0), (EVALUATED, 1.1)):
                    loss = 2.3 * factor * math.exp(-now_s / 900)
                    run.report(now_s, step, mark, loss=loss, accuracy=1 - loss / 3)
            if now_s % 300 == 0:
                task = chance.choice(replicas)
                run.event(now_s, "fault", task=task, signal="SIGKILL")
                run.event(now_s, "exited", task=task, attempt=0, status=-9)
                run.event(now_s + 1, "started", task=task, attempt=1, pid=2)
        run.event(HOUR_S + 1, "stopping", because="succeeded")
        return run.end([*statuses, *map(status, others)])


if __name__ == "__main__":
    hour_of_twenty(Path(sys.argv[1]))
