"""The files of a trial's run: why it failed, and its metrics.

These come from four sources; the first that has the study's metric counts.

0. `dt.tuning.report` (`reports.jsonl`);
1. hypertune's file, whose form is that of the package cloudml-hypertune: the value is a text under the
   metric's name beside `global_step`, and the whole file is written anew at each report;
2. evaluations of `fit`, the evaluator's or the leader's (`reports.jsonl`), with `val_` before a name or not;
3. what the leader prints: ``{"accuracy": 0.9, "step": 100}``, or
   ``{"metric": "accuracy", "value": 0.9, "global_step": 100}``.

All are lines of JSON objects; other lines are passed over.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtrain.runs import trial_reports
from dtrain.runs.files import RunFiles, RunRecord, read_sound
from dtrain_cli.runs.history import number, object_of

LINE_BYTES_MAX = 1 << 20
NAMES_MAX = 100
REPORTED, HYPERTUNE, EVALUATED, PRINTED = range(4)
_BESIDE = (
    *("global_step", "step", "timestamp", "trial", "checkpoint_path"),
    *("reported_s", trial_reports.EVALUATED),
)
Found = tuple[int, int, float | None]
"""The rank of the source, the step, and the value of the study's metric."""


class MetricSources:
    """The sources of one launch of a trial; `names` are those of all metrics that have come."""

    def __init__(self, files: RunFiles, hypertune: Path, metric: str) -> None:
        self.names: dict[str, None] = {}
        self._files = files
        self._metric = metric
        self._hypertune = hypertune
        self._offsets: dict[Path, int] = {}

    def poll(self) -> list[Found]:
        """Return what has come since the last call, in its order; all of hypertune's file each time."""
        self._offsets.pop(self._hypertune, None)
        leaders = [task for task in self._files.tasks() if task.trains and task.index == 0]
        sources = [(REPORTED, self._files.reports), (HYPERTUNE, self._hypertune)]
        for leader in sorted(leaders)[:1]:
            sources += [(PRINTED, self._files.log(leader, each)) for each in self._files.attempts(leader)]
        return [
            found for rank, path in sources for entry in self._new(path) for found in self._in(rank, entry)
        ]

    def _new(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the objects of the lines that have come; a line has come when its end has."""
        try:
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                while (line := file.readline(LINE_BYTES_MAX)).endswith(b"\n") or len(line) == LINE_BYTES_MAX:
                    self._offsets[path] = file.tell()
                    yield object_of(line)
        except OSError:
            return

    def _in(self, rank: int, entry: dict[str, Any]) -> Iterator[Found]:
        step = next((int(value) for name in _BESIDE[:2] if (value := number(entry.get(name))) is not None), 0)
        if trial_reports.TRAINED in entry:  # the metrics of an epoch are no result
            return
        if isinstance(entry.get("metric"), str):
            entry = {entry["metric"]: entry.get("value")}
        for name, value in entry.items():
            if name in _BESIDE or isinstance(value, list | dict) or number(value) is value is None:
                continue
            if len(self.names) < NAMES_MAX:
                self.names.setdefault(name)
            evaluated = bool(entry.get(trial_reports.EVALUATED))
            if name == self._metric or (evaluated and f"val_{name}" == self._metric):
                yield EVALUATED if evaluated else rank, step, number(value)


def failure_text(files: RunFiles) -> str | None:
    """Return why a run has failed, with the last line that its task has printed if it only exited."""
    record = read_sound(files.run, RunRecord)
    if record is None or (failure := record.failure) is None:
        return None
    last = [
        line for line in failure.last_lines[-1:] if failure.traceback is None and line not in failure.message
    ]
    return ": ".join([failure.task, failure.message, *last])
