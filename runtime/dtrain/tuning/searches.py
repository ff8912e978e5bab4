"""Searches within one program, in Keras Tuner's shape: trials are fitted one after another in this process.

The samplers, the machine of trials and the journal are those of `dtrain tune`; so is the folder, whose
study `dtrain tune status`, `best` and `report` show. A program that was killed goes on with its study when
it is started anew; the trial under way begins anew then.
"""

import copy
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from dtrain.callbacks import Callback, ModelCheckpoint
from dtrain.errors import SpecError
from dtrain.runs.files import default_runs_dir
from dtrain.runs.journal import now_text
from dtrain.studies.search import make_search
from dtrain.studies.study_files import StudyFiles, StudyJournal, StudyRecord, values_text
from dtrain.studies.study_spec import Better, Named, StudySpec
from dtrain.studies.trials import (
    Event,
    MetricReported,
    RunEnd,
    TrialAsked,
    Trials,
    TrialStarted,
    TrialState,
    finite,
)
from dtrain.training.saved_models import load_model
from dtrain.tuning.hyperparameters import HyperParameters

RISING = ("acc", "auc", "precision", "recall", "f1", "iou")


class Objective(NamedTuple):
    """The number of the logs that a search makes large or small. See `keras_tuner.Objective`.

    Args:
        name: such as ``val_accuracy``.
        direction: ``min`` or ``max``.
    """

    name: str
    direction: str


class RandomSearch:
    """A search that draws values at random. See `keras_tuner.RandomSearch`.

    A trial's score is its best epoch. Its study lies in the folder `project_name`; with the same one a
    program goes on where it was stopped or killed.

    Args:
        hypermodel: a function from `HyperParameters` to a compiled model, or an object whose method `build`
            is that.
        objective: a name of the logs of `fit`, or an `Objective`. By its name alone it is to be small, unless
            that speaks of accuracy, AUC, precision, recall, F1 or IoU.
        max_trials: how many trials.
        seed: of the values; None: 0.
        directory: the folder of studies; None: that of `dtrain tune`.
        project_name: the name of the study.
        overwrite: begin anew, and remove what the folder has of this study.
        max_consecutive_failed_trials: so many that fail one after the other end the search with their error.

    Raises:
        SpecError: an argument is wrong, or the folder has a study of something else.
        DtrainError: the sampler is Optuna's, which is not installed.
    """

    _sampler = "random"

    def __init__(
        self,
        hypermodel: Any,
        objective: str | Objective = "val_loss",
        max_trials: int = 10,
        seed: int | None = None,
        directory: str | Path | None = None,
        project_name: str = "untitled_project",
        overwrite: bool = False,
        max_consecutive_failed_trials: int = 3,
    ) -> None:
        if not isinstance(objective, Objective):
            rises = any(word in objective.lower() for word in RISING)
            objective = Objective(objective, "max" if rises else "min")
        self._build: Callable[[HyperParameters], Any] = getattr(hypermodel, "build", hypermodel)
        self._failures_max = max_consecutive_failed_trials
        self._mode = objective.direction
        if (better := {"max": Better.MAXIMIZE, "min": Better.MINIMIZE}.get(self._mode)) is None:
            raise SpecError(f"Objective: direction: expected min or max, found {self._mode!r}")
        sampler: Named = {self._sampler: {"seed": seed or 0}}
        spec = StudySpec(project_name, {objective.name: better}, {}, max_trials, sampler=sampler)
        if problems := [text for path, text in spec.problems() if path[0] != "parameters"]:
            raise SpecError("\n".join(f"{type(self).__name__}: {text}" for text in problems))
        folder = default_runs_dir() / "studies" if directory is None else Path(directory)
        self._files = StudyFiles(folder.absolute() / project_name)
        self._record = StudyRecord(spec, None, None, (), str(Path.cwd()))
        if overwrite and self._files.record.exists():  # what is no study stays
            with self._files.locked():
                shutil.rmtree(self._files.directory)
        if self._files.record.exists():
            found = self._files.read()
            known = {"parameters": found.spec.parameters}
            self._record = replace(self._record, spec=replace(spec, **known), folder=found.folder)
            if self._record != replace(found, spec=replace(found.spec, max_trial_count=max_trials, **known)):
                raise SpecError(
                    f"{self._files.directory}: expected a study with this objective and sampler, found one "
                    "with others; give another project_name, or overwrite=True"
                )
        self._trials = Trials(self._record.spec, self._files.events()[0])

    def search(self, *fit_args: Any, callbacks: Sequence[Callback] = (), **fit_kwargs: Any) -> None:
        """Fit a model in each trial that has not ended yet.

        Args:
            *fit_args: those of `Model.fit`.
            callbacks: those of `Model.fit`; each trial has copies.
            **fit_kwargs: those of `Model.fit`.

        Raises:
            RunInUseError: another process has this study, as where every task of a cluster searches.
            Exception: the error of a trial, if too many fail one after the other.
        """
        with self._files.locked():
            self._files.write(self._record)
            events, nbytes = self._files.events()
            self._trials = trials = Trials(self._record.spec, events)
            trials.lose_processes()
            self._journal = StudyJournal(self._files, nbytes)
            search, failures = make_search(trials.spec, trials, self._files.optuna), 0
            while trials.left:
                waiting = trials.next(1)[0]
                number = waiting[0].number if waiting else len(trials.all)
                values = waiting[0].values if waiting else search.ask(trials)
                asked = HyperParameters(trials.spec.parameters, values)
                error = self._run(number, asked, fit_args, {"callbacks": [*callbacks], **fit_kwargs})
                search.tell(trials, trials.all[number])
                search.widen(trials.spec)
                failures = failures + 1 if error else 0
                if error and failures >= self._failures_max:
                    raise error

    def _run(
        self, number: int, asked: HyperParameters, args: Sequence[Any], options: dict[str, Any]
    ) -> Exception | None:
        """Run a trial, whose model may ask for parameters that are new to the study."""
        trials, model, error = self._trials, None, None
        try:
            model = self._build(asked)
        except Exception as found:
            error = found
        trials.spec = replace(trials.spec, parameters=asked.space)
        self._record = replace(self._record, spec=trials.spec)
        self._files.write(self._record)
        self._note(TrialAsked(trial=number, values=asked.values), TrialStarted(trial=number))
        name, file, logs = trials.spec.metric_name, self._files.output(number, "model"), {}
        keeps = ModelCheckpoint(file, name, save_best_only=True, mode=self._mode)
        try:
            if model is not None:
                options["callbacks"] = [*copy.deepcopy(options["callbacks"]), keeps]
                logs = model.fit(*args, **options).history
        except Exception as found:
            error = found
        values = [finite(float(value)) for value in logs.get(name, ())]
        reports = enumerate(values, 1)
        self._note(*(MetricReported(trial=number, step=n, value=value, source=0) for n, value in reports))
        why = None if error is None else f"{type(error).__name__}: {error}"
        end = trials.judge(trials.all[number], RunEnd(0 if error is None else 1, why, tuple(logs)))
        assert end is not None
        if end.state is TrialState.COMPLETE:
            best = max if trials.spec.maximizes else min
            end = replace(end, value=best(value for value in values if value is not None))
        self._note(end)
        print(f"trial {number:04d} {end.state}: {end.why or end.value}; {values_text(asked.values)}")
        return error

    def _note(self, *events: Event) -> None:
        dated = [replace(event, time=now_text()) for event in events]
        self._journal.append(dated)
        for event in dated:
            self._trials.apply(event)

    def get_best_hyperparameters(self, num_trials: int = 1) -> list[HyperParameters]:
        """Return the parameters of the best trials, the best first.

        Args:
            num_trials: how many.
        """
        space = self._record.spec.parameters
        return [HyperParameters(space, trial.values) for trial in self._trials.ranked()[:num_trials]]

    def get_best_models(self, num_models: int = 1) -> list[Any]:
        """Return the models of the best trials as they were at their best epochs, the best first.

        Args:
            num_models: how many.

        Raises:
            Exception: what `dt.models.load_model` raises, as where a layer is the program's own.
        """
        best = self._trials.ranked()[:num_models]
        return [load_model(self._files.output(trial.number, "model")) for trial in best]

    def results_summary(self, num_trials: int = 10) -> None:
        """Print the best trials, the best first.

        Args:
            num_trials: how many.
        """
        print(f"Results in {self._files.directory}: {self._trials.spec.metric_name}, {self._mode}")
        for trial in self._trials.ranked()[:num_trials]:
            print(f"trial {trial.number:04d}: {trial.value:.6g}  {values_text(trial.values)}")


class BayesianOptimization(RandomSearch):
    """A search that learns from its trials, by TPE of Optuna (extra `tune`); arguments of `RandomSearch`.

    See `keras_tuner.BayesianOptimization`.
    """

    _sampler = "tpe"
