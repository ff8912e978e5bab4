"""The tuner: it starts the launches of trials, follows their files, and writes down what came of them.

Each trial is a `dtrain launch` in its own run directory, a child that the kernel kills with the tuner; its
tasks end with it. So a tuner that holds the study's lock knows that no trial of an earlier tuner lives.
`trials`, `packing` and the search decide; each decision is in the journal before it is carried out.

The metrics of a trial come from four sources; the first that has the study's metric counts.

0. `dt.tuning.report` (`reports.jsonl`);
1. hypertune's file, whose form is that of the package cloudml-hypertune: the value is a text under the
   metric's name beside `global_step`, and the whole file is written anew at each report;
2. evaluations of `fit`, the evaluator's or the leader's (`reports.jsonl`), with `val_` before a name or not;
3. what the leader prints: ``{"accuracy": 0.9, "step": 100}``, or
   ``{"metric": "accuracy", "value": 0.9, "global_step": 100}``.

All are lines of JSON objects; other lines are passed over.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from dtrain.config import RunSpec
from dtrain.errors import RunError
from dtrain.process import WARM_START_VARIABLE
from dtrain.runs import trial_reports
from dtrain.runs.files import RunFiles, RunRecord, read_sound
from dtrain.runs.journal import now_text
from dtrain.studies import trials as machine
from dtrain.studies.samplers import Search
from dtrain.studies.study_files import StudyFiles, StudyJournal, StudyRecord, values_text
from dtrain.studies.trials import Trial, Trials, TrialState
from dtrain_cli.console.streams import say
from dtrain_cli.launch.child import STOP_S, start_child, start_launch
from dtrain_cli.plan.run_plan import limits_beside, threads_per_task
from dtrain_cli.runs.history import number, object_of
from dtrain_cli.runs.report import ProcessMeter, is_locked, read_report
from dtrain_cli.study.packing import Room, how_many, needs_of, packing_text
from dtrain_cli.targets.signals import STOP_SIGNALS, SignalInbox, signal_name

LOOK_S = 0.25
SOCKET_MAX = 100
"""Characters of a path that a socket can have, with some to spare. Source: unix(7)."""
MEMORY_EVERY_S = 1.0


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


class TrialLaunch(msgspec.Struct):
    """The launch of a trial that runs; `signals` are due to it, each at its time."""

    trial: Trial
    process: subprocess.Popen[bytes]
    files: RunFiles
    sources: MetricSources
    meter: ProcessMeter = msgspec.field(default_factory=ProcessMeter)
    peak_memory_bytes: int = 0
    measured_s: float = 0.0
    signals: list[tuple[float, int]] = msgspec.field(default_factory=list)

    def stop(self, at_s: float) -> None:
        self.signals = [(at_s, signal.SIGTERM), (at_s + STOP_S, signal.SIGKILL)]

    def tend(self, now_s: float) -> None:
        """Send the signals that are due, and note the memory of all tasks where it is the highest so far."""
        while self.signals and now_s >= self.signals[0][0]:
            self.process.send_signal(self.signals.pop(0)[1])
        if now_s >= self.measured_s + MEMORY_EVERY_S:
            self.measured_s = now_s
            with contextlib.suppress(RunError, OSError):
                tasks = read_report(self.files.directory, self.meter, goodput=False)["tasks"]
                nbytes = sum(task["memory_bytes"] or 0 for task in tasks)
                self.peak_memory_bytes = max(nbytes, self.peak_memory_bytes)


class Tuner(msgspec.Struct):
    """One study from now until it has ended, or is stopped; `stopped`: the exit code, and why."""

    files: StudyFiles
    record: StudyRecord
    run_spec: RunSpec
    trials: Trials
    search: Search
    journal: StudyJournal
    stopped: tuple[int, str] | None = None
    _running: dict[int, TrialLaunch] = msgspec.field(default_factory=dict)
    _said: str | None = None
    _limits: dict[str, str] | None = None
    _warm: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Run trials until none is left to run."""
        signals = SignalInbox()
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the inbox
        try:
            while self._running or not (self.stopped or self.trials.left == 0):
                if self.stopped is None:
                    self._start_what_fits()
                select.select([signals], [], [], LOOK_S)
                now_s = time.monotonic()
                for number in signals.read():
                    self._signalled(number, now_s)
                for launch in list(self._running.values()):
                    self._follow(launch, now_s)
                if self.stopped is None and self.trials.too_many_failed:
                    self._end(1, "more trials have failed than max_failed_trial_count says", now_s)
        finally:
            for launch in self._running.values():
                launch.process.kill()
                launch.process.wait()
            if self._warm is not None:
                self._warm.kill()
                self._warm.wait()

    def _fork_server(self, limits: dict[str, str]) -> subprocess.Popen[bytes] | None:
        """Start what spares tasks their imports; a launch before it is ready does without."""
        socket = self.files.socket
        served = os.environ.get(WARM_START_VARIABLE)
        if self.record.program is None or served or len(str(socket)) > SOCKET_MAX:
            return None
        socket.unlink(missing_ok=True)
        words = [sys.executable, "-P", "-m", "dtrain.task", "--warm-server", str(socket)]
        return start_child(words, limits, subprocess.PIPE, subprocess.DEVNULL)

    def _start_what_fits(self) -> None:
        trials, spec = self.trials, self.trials.spec
        cores = len(os.sched_getaffinity(0))
        held = sum(launch.peak_memory_bytes for launch in self._running.values())
        room = Room(cores, psutil.virtual_memory().available + held)
        peaks = [trial.end.peak_memory_bytes for trial in trials.all if trial.end]
        needs = needs_of(spec, min(self.run_spec.replicas, cores), peaks)
        wanted = min(spec.parallel or trials.left, trials.left)
        if self._said is None and spec.parallel and (text := packing_text(needs, room, wanted)):
            self._said = text
            say(text)
        fit = min(how_many(needs, room), wanted)
        waiting, new = trials.next(fit)
        for _ in range(new):
            if (values := self.search.ask(trials)) is None:
                self._note(machine.SearchExhausted(trial=len(trials.all)))
                break
            self._note(machine.TrialAsked(trial=len(trials.all), values=values))
            waiting.append(trials.all[-1])
        if self._limits is None:  # the same for all trials
            threads = threads_per_task(self.run_spec, cores // max(1, fit))
            self._limits = limits_beside(os.environ, str(threads))
            self._warm = self._fork_server(self._limits)
        for trial in waiting:
            if trial.pruning:  # the order was the last that its tuner has done
                self._conclude(trial, machine.RunEnd(0))
            # Of a launch that was killed a task may still be on its way out.
            elif not is_locked(self.files.trial(trial.number).lock):
                self._start(trial, self._limits)

    def _start(self, trial: Trial, limits: dict[str, str]) -> None:
        files = self.files.trial(trial.number)
        hypertune = self.files.output(trial.number, "hypertune")
        variables = {
            trial_reports.TRIAL: str(trial.number),
            "CLOUD_ML_TRIAL_ID": str(trial.number),
            "CLOUD_ML_HP_METRIC_FILE": str(hypertune),
        }
        said = self._warm.stdout if self._warm is not None else None
        if said is not None and select.select([said], [], [], 0)[0]:  # that it is ready
            variables[WARM_START_VARIABLE] = str(self.files.socket)
        self._note(machine.TrialStarted(trial=trial.number))
        words = self.files.launch_words(self.record, trial)
        with self.files.output(trial.number, "log").open("ab") as log:
            process = start_launch(words, limits | variables, log)
        sources = MetricSources(files, hypertune, self.trials.spec.metric_name)
        self._running[trial.number] = TrialLaunch(trial, process, files, sources)
        say(f"trial {trial.number:04d}: {values_text(trial.values)}")

    def _follow(self, launch: TrialLaunch, now_s: float) -> None:
        code = launch.process.poll()  # asked before the files are read: what comes last must not be missed
        self._read_metrics(launch, now_s, may_prune=code is None)
        if code is None:
            launch.tend(now_s)
            return
        trial = launch.trial
        del self._running[trial.number]
        if self.stopped is None or trial.pruning or code == 0:
            why, names = failure_text(launch.files), tuple(launch.sources.names)
            end = self._conclude(trial, machine.RunEnd(code, why, names, launch.peak_memory_bytes or None))
            done = self.trials.count(TrialState.COMPLETE, TrialState.PRUNED)
            if end is TrialState.FAILED and code == machine.USAGE_ERROR and not done:
                log = self.files.output(trial.number, "log")
                self._end(1, f"trial {trial.number:04d} has failed as all others would (log: {log})", now_s)

    def _read_metrics(self, launch: TrialLaunch, now_s: float, *, may_prune: bool) -> None:
        trial = launch.trial
        for source, step, value in launch.sources.poll():
            if trial.by_source.get(source, {}).get(step, ()) == value:
                continue  # read again after a restart
            before = trial.last
            self._note(machine.MetricReported(trial=trial.number, step=step, value=value, source=source))
            newer = trial.last is not None and (before is None or trial.last[0] > before[0])
            # A trial that has come to its end is complete, whatever the search says of its last reports.
            if newer and not trial.pruning and self.search.prunes(self.trials, trial) and may_prune:
                self._note(machine.PruneOrdered(trial=trial.number, step=step))
                say(f"trial {trial.number:04d} is pruned at step {step}")
                launch.files.prune.touch(mode=0o600)
                launch.stop(now_s + (machine.PRUNE_GRACE_S if self.record.program else 0.0))

    def _conclude(self, trial: Trial, run: machine.RunEnd) -> TrialState | None:
        """Note the end of a trial, and return its state; None: it is started again."""
        number, best = f"trial {trial.number:04d}", self.trials.ranked()[:1]
        if (end := self.trials.judge(trial, run)) is None:
            trial.state = TrialState.ASKED
            say(f"{number}: its launch was killed by signal {-run.code}; it is started again")
            return None
        self._note(end)
        self.search.tell(self.trials, trial)
        said = f"{self.trials.spec.metric_name} {end.value:.6g}" if end.value is not None else ""
        said = "; ".join(filter(None, (said, end.why)))
        if end.state is TrialState.COMPLETE and self.trials.ranked()[:1] != best:
            said += " (best so far)"
        say(f"{number} {end.state}: {said}; {self.trials.left} to go")
        return end.state

    def _signalled(self, number: int, now_s: float) -> None:
        if number in STOP_SIGNALS and self.stopped is None:
            say(f"{signal_name(number)}: stopping {len(self._running)} trials; a second signal kills them")
            self._end(128 + number, f"stopped by {signal_name(number)}", now_s)
        elif number in STOP_SIGNALS:
            for launch in self._running.values():
                launch.signals = [(now_s, signal.SIGKILL)]

    def _end(self, code: int, why: str, now_s: float) -> None:
        """Stop what runs. Its trials have not ended: they go on when the study does."""
        self.stopped = code, f"{why}; `dtrain tune --resume {self.files.directory.name}` goes on"
        for launch in self._running.values():
            launch.stop(now_s)

    def _note(self, event: machine.Event) -> None:
        event = msgspec.structs.replace(event, time=now_text())
        self.journal.append([event])
        self.trials.apply(event)
