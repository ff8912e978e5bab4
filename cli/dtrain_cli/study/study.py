"""A study from its command line: its file is read, it is begun, gone on with, looked at."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dtrain.config import RunSpec
from dtrain.errors import DtrainError, RunError, SpecError
from dtrain.runs.files import default_runs_dir
from dtrain.runs.journal import now_text
from dtrain.studies import samplers
from dtrain.studies.search import make_search, search_problems
from dtrain.studies.study_files import StudyFiles, StudyJournal, StudyRecord, values_text
from dtrain.studies.study_spec import StudySpec, name_of
from dtrain.studies.trials import TrialExtended, Trials, TrialState
from dtrain_cli.console.streams import say
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import read_request
from dtrain_cli.runs.report import is_locked
from dtrain_cli.spec import SpecTree, inner_spec, mistakes_text, read_tree, sound_part
from dtrain_cli.study.driver import Tuner
from dtrain_cli.study.packing import blind_text

_STAND_IN = {"name": "s", "metric": {"m": "maximize"}, "parameters": {"p": [1]}}
CHANGEABLE = ("max_trial_count", "parallel_trial_count", "max_failed_trial_count", "resources", "timeout_s")
"""The keys that may change when a study goes on. Other changes would make its trials incomparable."""


def read_study(path: Path, foreign: bool) -> tuple[StudySpec, dict[str, Any] | None]:
    """Read a study, and the spec of its trials; raise a `SpecError` with all mistakes, a line each.

    Args:
        path: the file; that of the trials is relative to its folder.
        foreign: whether the trials are of `-- COMMAND`.
    """
    tree = read_tree(path)
    sound, problems = sound_part(tree, StudySpec)  # something stands in for what is needed
    spec = msgspec.convert(_STAND_IN | sound, StudySpec)
    problems += (each for each in [*spec.problems(), *search_problems(spec)] if each[0][0] in sound)
    trial, more = inner_spec("trial", tree, path.parent, foreign)
    problems.sort(key=lambda problem: tree.position(problem[0]))
    lines = [tree.describe(*problem) for problem in problems] + more
    if lines:
        raise SpecError(mistakes_text(lines))
    return spec, trial


def changed(before: StudySpec, now: StudySpec) -> list[str]:
    """Return the keys in which a study that goes on may not differ, and does."""
    names = (name for name in StudySpec.__struct_fields__ if name not in CHANGEABLE)
    return [name for name in names if getattr(before, name) != getattr(now, name)]


def study_files(name: str, runs_dir: Path | None) -> StudyFiles:
    return StudyFiles((runs_dir or default_runs_dir()).absolute() / "studies" / name)


def all_studies(runs_dir: Path | None) -> list[StudyFiles]:
    """Return the studies that have begun, by name."""
    found = (StudyFiles(path) for path in sorted(study_files("", runs_dir).directory.glob("*")))
    return [files for files in found if files.record.exists()]


def begin(path: Path, program: Path | None, arguments: Sequence[str], runs_dir: Path | None) -> int:
    """Begin a study and run it to its end; return the exit code.

    Raises:
        SpecError: the file, the program or the spec of a trial is wrong, or there is such a study already.
        RunError: the study has not come to its end, and why.
    """
    spec, trial = read_study(path, program is None)
    files = study_files(spec.name, runs_dir)
    name = None if program is None else str(program)
    record = StudyRecord(spec, trial, name, tuple(arguments), str(Path.cwd()))
    run_spec = _run_spec(record)
    with files.locked():
        if files.record.exists():
            raise SpecError(
                f"{path}: name: there is a study {spec.name} in {files.directory}; go on with it by `dtrain "
                f"tune --resume {spec.name}`, give another name, or remove that folder"
            )
        return _run(files, record, run_spec, Trials(spec), StudyJournal(files, 0))


def go_on(files: StudyFiles, path: Path | None, steps: int | None, top: int) -> int:
    """Go on with a study, also after its tuner was killed; return the exit code.

    Args:
        files: of the study.
        path: its file, if that has other numbers of trials now.
        steps: until which step the best trials are trained on.
        top: how many of them.

    Raises:
        SpecError: the file differs in what may not change.
        RunError: there is no such study, another tuner has it, or it has not come to its end.
    """
    record = files.read()
    if record.program is None and not record.arguments:
        raise SpecError(f"study {files.directory.name} is of a search in a program, which goes on with it")
    if path is not None:
        spec, trial = read_study(path, record.program is None)
        if others := changed(replace(record.spec, trial=record.trial), replace(spec, trial=trial)):
            raise SpecError(
                f"{path}: {', '.join(others)}: expected what study {spec.name} has, else its trials could "
                "not be compared; or begin a study with another name"
            )
        record = replace(record, spec=spec)
    if not Path(record.folder).is_dir():
        raise SpecError(f"{record.folder}: the folder of the study's program does not exist any more")
    os.chdir(record.folder)
    run_spec = _run_spec(record)
    with files.locked():
        events, nbytes = files.events()
        trials, journal = Trials(record.spec, events), StudyJournal(files, nbytes)
        trials.lose_processes()
        for best in trials.ranked()[:top] if steps is not None else ():
            journal.append([event := TrialExtended(trial=best.number, steps=steps or 0, time=now_text())])
            trials.apply(event)
        return _run(files, record, run_spec, trials, journal)


def _run_spec(record: StudyRecord) -> RunSpec:
    """Return the spec of the run of a trial; raise a `SpecError` if its launch would be refused."""
    tree = None if record.trial is None else SpecTree("trial", record.trial)
    program = None if record.program is None else Path(record.program)
    return read_request(LaunchOptions(earlier=tree, program=program, arguments=record.arguments))[1]


def _run(
    files: StudyFiles, record: StudyRecord, run_spec: RunSpec, trials: Trials, journal: StudyJournal
) -> int:
    spec = record.spec
    files.write(record)
    say(f"study {spec.name}: {trials.left} trials to go; files in {files.directory}")
    learns = name_of(spec.sampler) not in samplers.SAMPLERS
    if learns and not trials.all and (text := blind_text(spec.parallel or 1, spec.max_trial_count)):
        say(text)
    tuner = Tuner(files, record, run_spec, trials, make_search(spec, trials, files.optuna), journal)
    tuner.run()
    if tuner.stopped is not None:
        say(f"study {spec.name} has stopped: {tuner.stopped[1]}")
        return tuner.stopped[0]
    if not (best := trials.ranked()[:1]):
        raise RunError(f"no trial of study {spec.name} is complete: see `dtrain tune status {spec.name}`")
    say(f"the best trial is {best[0].number:04d}: `dtrain tune best {spec.name}` shows it")
    return 0


def look(files: StudyFiles) -> dict[str, Any]:
    """Return everything that is known of a study, as `--json` prints it; without a tuner no trial runs."""
    record = files.read()
    trials = Trials(record.spec, files.events()[0])
    if not (lives := is_locked(files.lock)):
        trials.lose_processes()
    listed = [
        {"trial": trial.number, "state": str(trial.state), "values": trial.values}
        | dict(zip(("step", "value"), trial.last or (None, None), strict=True))
        | ({} if trial.value is None else {"value": trial.value})
        | {name: getattr(trial.end, name, None) for name in ("why", "peak_memory_bytes")}
        | {"run_dir": str(files.trial(trial.number).directory), "command": files.command(record, trial)}
        for trial in trials.all
    ]
    return {
        "study": record.spec.name,
        "state": "running" if lives else "ended" if trials.left == 0 else "stopped",
        "metric": record.spec.metric,
        "max_trial_count": trials.total,
        "counts": {str(state): trials.count(state) for state in TrialState},
        "ranking": [trial.number for trial in trials.ranked()],
        "trials": listed,
    }


def lines_of(report: dict[str, Any], *, ranked: bool) -> Iterator[str]:
    """Yield a line about a study, and one a trial: as they were asked, or the best first."""
    counts = ", ".join(f"{count} {state}" for state, count in report["counts"].items() if count)
    yield f"study {report['study']}: {report['state']}; {counts or 'no trial'} of {report['max_trial_count']}"
    yield f"trial  state     {next(iter(report['metric'])):>12}  {'step':>8}  values"
    order = [*report["ranking"], *(row["trial"] for row in report["trials"])] if ranked else []
    for number in dict.fromkeys(order) or range(len(report["trials"])):
        row = report["trials"][number]
        shown = f"{row['state']:8}  {_text(row['value']):>12}  {_text(row['step']):>8}"
        why = _text(row["why"]).partition("\n")[0][:200]
        yield f"{number:04d}   {shown}  {values_text(row['values'])}  {why}".rstrip()


def _text(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def best_of(report: dict[str, Any]) -> dict[str, Any]:
    """Return the best trial of a report; raise a `DtrainError` if none is complete."""
    if not report["ranking"]:
        raise DtrainError(f"study {report['study']} has no complete trial yet")
    best: dict[str, Any] = report["trials"][report["ranking"][0]]
    return best
