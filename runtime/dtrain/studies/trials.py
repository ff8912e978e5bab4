"""The trials of a study: what each event of the journal makes of them, and what is to happen next. Pure.

A trial is asked, then runs, then has ended: complete, pruned or failed. One that lost its process with the
tuner, or by a signal, goes on in the same run directory and under the same number: no trial is lost, and
none counts twice.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from dtrain.studies.study_spec import Scalar, StudySpec

ATTEMPTS_MAX = 3
"""Starts of a trial whose launcher was killed each time; then it has failed."""
PRUNE_GRACE_S = 60.0
"""The time from the order to end a trial to SIGTERM, for a program that does not ask about the order."""
USAGE_ERROR = 2
"""The exit code of a command line that is wrong (argparse, click, dtrain itself): so it is for all trials."""


class TrialState(StrEnum):
    """The state of a trial."""

    ASKED = "asked"
    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"
    FAILED = "failed"


ENDED_TRIAL = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED)


class TrialEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    """An event in the life of a trial, and its ISO time: a line of the journal."""

    trial: int
    time: str = ""


class TrialAsked(TrialEvent, frozen=True, tag="asked"):
    """A new trial with its values."""

    values: dict[str, Scalar]


class TrialStarted(TrialEvent, frozen=True, tag="started"):
    """A launch of the trial."""


class MetricReported(TrialEvent, frozen=True, tag="reported"):
    """The metric at a step; None: NaN or infinity. `source` is its rank: see `dtrain_cli.study.driver`."""

    step: int
    value: float | None
    source: int


class PruneOrdered(TrialEvent, frozen=True, tag="prune ordered"):
    """The order to end a trial early, which holds whatever happens then."""

    step: int


class TrialEnded(TrialEvent, frozen=True, tag="ended"):
    """The end of a trial, its value if it has one, why it failed, and the memory of all of its tasks."""

    state: TrialState
    value: float | None = None
    why: str | None = None
    peak_memory_bytes: int | None = None


class TrialExtended(TrialEvent, frozen=True, tag="extended"):
    """An ended trial is trained on, to a later step."""

    steps: int


class SearchExhausted(TrialEvent, frozen=True, tag="exhausted"):
    """The search has no values for this trial nor for later ones, as at the end of a grid."""


Event = (
    TrialAsked | TrialStarted | MetricReported | PruneOrdered | TrialEnded | TrialExtended | SearchExhausted
)


class Trial(msgspec.Struct):
    """A trial as the events so far have made it.

    Attributes:
        steps: until which it is trained on; None: it is not.
        before: its end before that, which stands where the further training fails.
    """

    number: int
    values: dict[str, Scalar]
    state: TrialState = TrialState.ASKED
    starts: int = 0
    by_source: dict[int, dict[int, float | None]] = msgspec.field(default_factory=dict)
    pruning: bool = False
    end: TrialEnded | None = None
    steps: int | None = None
    before: TrialEnded | None = None

    @property
    def reports(self) -> Mapping[int, float | None]:
        """The metric by step, from the best source that has it."""
        return self.by_source[min(self.by_source)] if self.by_source else {}

    @property
    def last(self) -> tuple[int, float | None] | None:
        """The newest step with its value."""
        reports = self.reports
        return max(reports.items(), key=lambda item: item[0]) if reports else None

    @property
    def value(self) -> float | None:
        return self.end.value if self.end is not None else None


class RunEnd(msgspec.Struct, frozen=True):
    """The end of a launch of a trial.

    Attributes:
        code: its exit code; negative: the signal that killed it.
        message: why it failed.
        metrics: the names of all metrics that came.
    """

    code: int
    message: str | None = None
    metrics: Sequence[str] = ()
    peak_memory_bytes: int | None = None


class Trials:
    """All trials of a study."""

    def __init__(self, spec: StudySpec, events: Iterable[Event] = ()) -> None:
        self.spec = spec
        self.all: list[Trial] = []
        self.exhausted = False
        for event in events:
            self.apply(event)

    def apply(self, event: Event) -> None:
        """Apply an event. An event that repeats another, or that names no trial, changes nothing."""
        if isinstance(event, TrialAsked):
            if event.trial == len(self.all):
                self.all.append(Trial(event.trial, event.values))
            return
        if isinstance(event, SearchExhausted):
            self.exhausted = True
            return
        if not 0 <= event.trial < len(self.all):
            return
        trial = self.all[event.trial]
        if isinstance(event, TrialStarted):
            trial.state = TrialState.RUNNING
            trial.starts += 1
        elif isinstance(event, MetricReported):
            trial.by_source.setdefault(event.source, {})[event.step] = event.value
        elif isinstance(event, PruneOrdered):
            trial.pruning = True
        elif isinstance(event, TrialEnded):
            trial.state = event.state
            trial.end = event
        else:
            trial.before, trial.end = trial.end, None
            trial.state, trial.steps = TrialState.ASKED, event.steps
            trial.pruning, trial.starts = False, 0

    def lose_processes(self) -> None:
        """Note that no trial has a process: the trials that ran have to be started again."""
        for trial in self.all:
            if trial.state is TrialState.RUNNING:
                trial.state = TrialState.ASKED
                trial.starts = 0  # the tuner died, not the trial

    def count(self, *states: TrialState) -> int:
        return sum(trial.state in states for trial in self.all)

    @property
    def total(self) -> int:
        """The number of trials of the whole study, asked or not."""
        return len(self.all) if self.exhausted else max(len(self.all), self.spec.max_trial_count)

    @property
    def left(self) -> int:
        """The number of trials that have not ended, asked or not."""
        return self.total - self.count(*ENDED_TRIAL)

    @property
    def too_many_failed(self) -> bool:
        return self.count(TrialState.FAILED) > self.spec.max_failed_trial_count

    def next(self, fit: int) -> tuple[list[Trial], int]:
        """Return the trials to start now, and how many new ones to ask for, where `fit` may run at a time."""
        room = min(fit, self.spec.parallel or fit) - self.count(TrialState.RUNNING)
        waiting = [trial for trial in self.all if trial.state is TrialState.ASKED][: max(0, room)]
        left = 0 if self.exhausted else self.spec.max_trial_count - len(self.all)
        return waiting, max(0, min(room - len(waiting), left))

    def judge(self, trial: Trial, run: RunEnd) -> TrialEnded | None:
        """Return how a trial ends with its launch; None: it is to be started again."""

        def ended(state: TrialState, value: float | None = None, why: str | None = None) -> TrialEnded:
            if state is TrialState.FAILED and trial.before is not None:
                why = f"it could not be trained on: {why}"
                return replace(trial.before, why=why, peak_memory_bytes=run.peak_memory_bytes)
            event = TrialEnded(trial=trial.number, state=state, value=value, why=why)
            return replace(event, peak_memory_bytes=run.peak_memory_bytes)

        last = trial.last
        if trial.pruning:
            return ended(TrialState.PRUNED, None if last is None else last[1])
        if run.code < 0 and trial.starts < ATTEMPTS_MAX:
            return None
        if run.code != 0:
            said = f"its launch has ended with code {run.code}, start {trial.starts}"
            return ended(TrialState.FAILED, None, run.message or said)
        name = self.spec.metric_name
        if last is None:
            came = f"those that came: {', '.join(run.metrics)}" if run.metrics else "no metric came at all"
            remedy = f"report it with dt.tuning.report({name}=...), or name another one in `metric`"
            return ended(TrialState.FAILED, None, f"the metric {name} never came; {came}; {remedy}")
        if last[1] is None:
            return ended(TrialState.FAILED, None, f"{name} is not a finite number at step {last[0]}")
        return ended(TrialState.COMPLETE, last[1])

    def ranked(self) -> list[Trial]:
        """Return the complete trials, the best first; of equals the earlier one."""
        sign = -1.0 if self.spec.maximizes else 1.0
        done = [trial for trial in self.all if trial.state is TrialState.COMPLETE and trial.value is not None]
        return sorted(done, key=lambda trial: (sign * (trial.value or 0.0), trial.number))


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
