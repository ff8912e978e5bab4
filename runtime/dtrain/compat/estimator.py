"""`dt.estimator`: the Estimator, its specs and exporters, for programs that were written for it.

    estimator = dt.estimator.Estimator(model_fn, model_dir="model")
    train_spec = dt.estimator.TrainSpec(input_fn, max_steps=30)
    dt.estimator.train_and_evaluate(estimator, train_spec, dt.estimator.EvalSpec(eval_input_fn, steps=10))

The chief and the workers train, the evaluator follows the checkpoints, and one process alone does both. What
a `model_fn` says is in `dtrain.compat.model_fn`.

Source: `tf.estimator`.

    dt.EvalSpec(input_fn, exporters=[dt.BestExporter(), dt.FinalExporter("final")])

They run where evaluations do, in the evaluator or else in the leader, and write files that `dt.load_model`
reads: ``export/<name>/<global step>.dtrain`` in the run directory, or without one in the working directory.

Source: `tf.estimator.Exporter` and its kinds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Self, TypeAlias

from dtrain.callbacks import Callback
from dtrain.callbacks.callback import Logs
from dtrain.checkpoints import Pace
from dtrain.compat.model_fn import MODES, EstimatorSpec, MadeModel, ModeKeys, called, made_model
from dtrain.data.dataset import Dataset
from dtrain.errors import InputError
from dtrain.learning.core.configuration import Configurable
from dtrain.saving.model_files import read_model
from dtrain.strategies.interface import Strategy
from dtrain.training.arguments import check_finite
from dtrain.training.batches import Batches, BatchesOfReplicas
from dtrain.training.evaluation import Validation
from dtrain.training.models import Model

__all__ = [
    "BestExporter",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "train_and_evaluate",
]

PREFIX, ENDING = "model.ckpt-", ".safetensors"
"""What the names of checkpoints begin and end with; between them is the global step."""

Results: TypeAlias = Mapping[str, float]


@dataclass
class Exporter:
    """Base of exporters, to override `wants`.

    Args:
        name: the folder, below ``export`` in that of the run.
        exports_to_keep: how many models stay; None: all.
    """

    name: str = "exporter"
    exports_to_keep: int | None = None
    written: list[Path] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.exports_to_keep is not None and self.exports_to_keep < 1:
            raise InputError(
                f"{type(self).__name__}: expected exports_to_keep of at least 1 or None, found "
                f"{self.exports_to_keep}"
            )

    def wants(self, results: Results, is_final: bool) -> bool:
        """Return whether to keep the model with these results; the final one is asked about last, again."""
        raise NotImplementedError(f"{type(self).__name__}.wants")

    def export(self, model: Model, global_step: int, results: Results, is_final: bool) -> None:
        """Write the model, if it is wanted, and remove surplus older ones."""
        path = Path(model.strategy.directory or ".", "export", self.name, f"{global_step}.dtrain")
        if not self.wants(results, is_final) or path in self.written:
            return
        model.write(path)
        self.written.append(path)
        while self.exports_to_keep is not None and len(self.written) > self.exports_to_keep:
            self.written.pop(0).unlink(missing_ok=True)


class FinalExporter(Exporter):
    """Keeps the model at the end of training.

    Args:
        name: the folder, below ``export`` in that of the run.
        exports_to_keep: how many models stay; None: all.
    """

    def wants(self, results: Results, is_final: bool) -> bool:
        """Return True for the final model."""
        return is_final


@dataclass
class LatestExporter(Exporter):
    """Keeps the newest evaluated models.

    Args:
        name: the folder, below ``export`` in that of the run.
        exports_to_keep: how many models stay; None: all.
    """

    exports_to_keep: int | None = 5

    def wants(self, results: Results, is_final: bool) -> bool:
        """Return True."""
        return True


@dataclass
class BestExporter(Exporter):
    """Keeps each model that is better than all before it by `compare_fn`; by default the loss is smaller.

    Args:
        name: the folder.
        exports_to_keep: how many models stay; None: all.
        compare_fn: ``(best, current) -> bool``: whether the current results are better.
    """

    name: str = "best_exporter"
    exports_to_keep: int | None = 5
    compare_fn: Callable[[Results, Results], bool] = lambda best, current: current["loss"] < best["loss"]
    best: Results | None = field(default=None, init=False)

    def wants(self, results: Results, is_final: bool) -> bool:
        """Return True for the first model, and for each that is better."""
        if self.best is not None and not self.compare_fn(self.best, results):
            return False
        self.best = results
        return True


InputFunction = Callable[..., Any]


@dataclass(frozen=True)
class RunConfig(Configurable):
    """How an `Estimator` trains; see `tf.estimator.RunConfig`.

    Args:
        model_dir: the folder of checkpoints, where the Estimator is given none.
        save_checkpoints_steps: steps between checkpoints in `model_dir`, beside the first and the last one.
        keep_checkpoint_max: how many checkpoints stay in `model_dir`; None: all.
        train_distribute: a strategy; None: that of the scope or of this task's cluster.
        tf_random_seed: without effect, as all that follow: `training.seed` of a run's spec says it.
        save_checkpoints_secs: the section `checkpoint` of a spec says it of a run.
        log_step_count_steps: a line of progress is printed.
    """

    model_dir: str | Path | None = None
    save_checkpoints_steps: int | None = None
    train_distribute: Strategy | None = None
    tf_random_seed: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int | None = 5
    log_step_count_steps: int | None = 100


class Estimator:
    """A model that is made anew, by `model_fn`, to train, to evaluate and to predict.

    Args:
        model_fn: ``(features, labels, mode[, params][, config]) -> EstimatorSpec``, called with symbols, by
            these names; or ``() -> Model``, which compiles the model for all three.
        model_dir: a folder of checkpoints: a process that trains alone goes on from the newest one, and saves
            there. Of a cluster the leader saves the last one there; the run keeps its own besides.
        config: further settings.
        params: handed to `model_fn` and to input functions.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | Path | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self.model_fn = model_fn
        self.config = RunConfig() if config is None else config
        self.model_dir = self.config.model_dir if model_dir is None else model_dir
        self.params = dict(params or {})
        self._made: dict[str, MadeModel] = {}

    def train(
        self,
        input_fn: InputFunction,
        hooks: Sequence[Callback] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Any = None,
    ) -> Self:
        """Train until the input ends, which all replicas share, or the steps are made.

        Args:
            input_fn: returns batches of (features, labels): a Dataset, or arrays. Each is one replica's.
            hooks: callbacks of `dt.callbacks`, which run on the leader.
            steps: how many to make at most; with `model_dir` they are added to those of its checkpoint.
            max_steps: the global step to end at: those of earlier calls count, and of a checkpoint.
            saving_listeners: without effect.

        Raises:
            InputError: data or arguments do not fit, or the data are endless and no number of steps is given.
        """
        if steps is not None and max_steps is not None:
            raise InputError("Estimator.train: give either steps or max_steps, not both")
        end = max_steps if steps is None else self.global_step + steps
        self._train(self._data(input_fn, ModeKeys.TRAIN), end, _callbacks("Estimator.train", hooks))
        return self

    def evaluate(
        self,
        input_fn: InputFunction,
        steps: int | None = None,
        hooks: Sequence[Callback] | None = None,
        checkpoint_path: str | Path | None = None,
        name: str | None = None,
    ) -> dict[str, float]:
        """Return the loss, the metrics of `eval_metric_ops` and the ``global_step``; means over all examples.

        Args:
            input_fn: returns batches of (features, labels).
            steps: how many batches; None: all there are.
            hooks: callbacks.
            checkpoint_path: a checkpoint of `model_dir`; None: what was trained last.
            name: without effect.

        Raises:
            InputError: nothing was trained, or the data do not fit.
        """
        with self._scope():
            data = self._data(input_fn, ModeKeys.EVAL)
            made = self._ready(ModeKeys.EVAL, data, checkpoint_path)
            called_back = _callbacks("Estimator.evaluate", hooks)
            return made.evaluated(data, steps, called_back) | {"global_step": self.global_step}

    def predict(
        self,
        input_fn: InputFunction,
        hooks: Sequence[Callback] | None = None,
        checkpoint_path: str | Path | None = None,
    ) -> Iterator[Any]:
        """Yield the predictions for each example, in order: an array, or a dict of arrays.

        Args:
            input_fn: returns batches of features, or of (features, labels), whose labels are not used.
            hooks: callbacks.
            checkpoint_path: as of `evaluate`.

        Raises:
            InputError: nothing was trained, or the data do not fit.
        """
        with self._scope():
            data = self._data(input_fn, ModeKeys.PREDICT)
            made = self._ready(ModeKeys.PREDICT, data, checkpoint_path)
            if isinstance(data.element_spec, tuple):
                data = data.map(lambda features, *labels: features)
            called_back = _callbacks("Estimator.predict", hooks)
            predicted = made.model.predict(data, callbacks=called_back, verbose=0)
        yield from made.examples(predicted)

    @property
    def global_step(self) -> int:
        """The updates made so far, in this process or up to the newest checkpoint of `model_dir`."""
        trained = self._made.get(ModeKeys.TRAIN)
        if trained is not None and trained.updates:
            return trained.updates
        saved = self.latest_checkpoint()
        return 0 if saved is None else _step_of(saved)

    def latest_checkpoint(self) -> Path | None:
        """Return the newest checkpoint in `model_dir`; None: there is none."""
        return None if self.model_dir is None else next(reversed(_checkpoints(self.model_dir)), None)

    def _scope(self) -> AbstractContextManager[Any]:
        strategy = self.config.train_distribute
        return nullcontext() if strategy is None else strategy.scope()

    def _data(self, input_fn: InputFunction, mode: str) -> Dataset:
        data = called(input_fn, "input_fn", mode=mode, params=self.params, config=self.config)
        return Batches.of(data, batch_size=None, shuffle=False, seed=0).dataset

    def _model(self, mode: str, data: Dataset) -> MadeModel:
        """Return the model for a mode, made at the first call in the scope of the strategy."""
        if mode not in self._made:
            known = {"params": self.params, "config": self.config}
            made = made_model(self.model_fn, mode, data.element_spec, **known)
            self._made |= dict.fromkeys(MODES if made.shared else (mode,), made)
        return self._made[mode]

    def _ready(self, mode: str, data: Dataset, checkpoint_path: str | Path | None = None) -> MadeModel:
        """Return the model for a mode with the values of the trained one, or of a checkpoint."""
        made = self._model(mode, data)
        made.model.build_for(Batches(data))
        trained = self._made.get(ModeKeys.TRAIN)
        path = checkpoint_path or (self.latest_checkpoint() if trained is None else None)
        if path is not None:
            made.model.load_weights(path)
        elif trained is None:
            where = f" and no checkpoint in {self.model_dir}" if self.model_dir else ""
            raise InputError(f"Estimator: expected a trained model, found no call of train{where}")
        elif trained.model is not made.model:
            made.model.set_weights(trained.model.get_weights())
        return made

    def _train(
        self, data: Dataset, end: int | None, callbacks: list[Callback], validation: Validation | None = None
    ) -> None:
        with self._scope():
            made = self._model(ModeKeys.TRAIN, data)
            strategy = made.model.strategy
            data = made.batches(data)
            alone = strategy.context.run_id is None
            path = self.latest_checkpoint() if alone and not made.updates else None
            if path is not None:
                made.model.build_for(Batches(data))
                made.model.load_weights(path)
                made.model.resume_optimizer(read_model(path).state)
            before = made.updates
            batches = Batches(data, uncut=True).for_fit(strategy, counts=end is None)
            if batches.count is None and end is None:
                raise InputError(
                    "Estimator.train: the dataset has no end; expected steps or max_steps, or a TrainSpec "
                    "with max_steps"
                )
            if batches.count is not None:
                last = before + ceil(batches.count / strategy.num_replicas_in_sync)
                end = last if end is None else min(end, last)
            assert end is not None
            if end <= before:
                return
            if self.model_dir is not None:  # a run of a cluster has checkpoints of its own besides
                every = self.config.save_checkpoints_steps if alone else None
                callbacks.append(_Saving(Path(self.model_dir), self.config.keep_checkpoint_max, every))
            made.model.fit(
                BatchesOfReplicas(data),
                epochs=1,
                steps_per_epoch=end - before,
                callbacks=callbacks,
                validation_data=validation,
            )


def _checkpoints(model_dir: str | Path) -> list[Path]:
    """Return the checkpoints of an Estimator in a folder, the oldest first."""
    return sorted(Path(model_dir).glob(f"{PREFIX}*{ENDING}"), key=_step_of)


def _step_of(path: Path) -> int:
    step = path.name.removeprefix(PREFIX).removesuffix(ENDING)
    return int(step) if step.isdecimal() else -1


class _Saving(Callback):
    """Saves the first step, the last one, and others every so many steps."""

    def __init__(self, folder: Path, keeps: int | None, steps: int | None) -> None:
        self._folder, self._keeps, self._steps = folder, keeps, steps
        self._at = 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._at = int(self.model.optimizer.iterations)
        if not _checkpoints(self._folder):
            self.on_train_end()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        if self._steps is not None and int(self.model.optimizer.iterations) - self._at >= self._steps:
            self.on_train_end()

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._at = int(self.model.optimizer.iterations)
        self.model.save(self._folder / f"{PREFIX}{self._at}{ENDING}")
        for old in _checkpoints(self._folder)[: -self._keeps if self._keeps else 0]:
            old.unlink(missing_ok=True)


def _callbacks(where: str, hooks: Sequence[Callback] | None) -> list[Callback]:
    """Return hooks, which are callbacks here."""
    for each in hooks or ():
        if not isinstance(each, Callback):
            raise InputError(
                f"{where}: hooks: expected callbacks of dt.callbacks, found {type(each).__name__}; there are "
                "no sessions"
            )
    return list(hooks or ())


@dataclass(frozen=True)
class TrainSpec:
    """The training data, and the global step at which training ends; see `tf.estimator.TrainSpec`.

    Attributes:
        input_fn: returns a Dataset of batches (or arrays); called once.
        max_steps: absolute: a training that resumes from a checkpoint counts the steps in it. None, or more
            than the input has: training ends with the input.
        hooks: callbacks of `dt.callbacks`, which run on the leader.
        saving_listeners: without effect.
        callbacks: another name of `hooks`.

    Raises:
        InputError: max_steps is not positive.
    """

    input_fn: InputFunction
    max_steps: int | None = None
    hooks: Sequence[Callback] | None = None
    saving_listeners: Any = None
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        if self.max_steps is not None and self.max_steps < 1:
            raise InputError(f"TrainSpec: expected max_steps of at least 1 or None, found {self.max_steps}")


@dataclass(frozen=True)
class EvalSpec:
    """The evaluation data, and the times of evaluations; see `tf.estimator.EvalSpec`.

    Attributes:
        input_fn: returns a Dataset of batches (or arrays).
        steps: batches of one evaluation; None: all there are.
        name: without effect.
        hooks: callbacks of the last evaluation.
        exporters: one, or several: they keep models that were evaluated; see `dtrain.compat.estimator`.
        start_delay_secs: from the evaluator's start to its first evaluation. The final checkpoint is
            evaluated at once.
        throttle_secs: from the beginning of one evaluation to the next.

    Raises:
        InputError: steps is not positive, or a time is negative.
    """

    input_fn: InputFunction
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[Callback] | None = None
    exporters: Exporter | Sequence[Exporter] | None = None
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise InputError(f"EvalSpec: expected steps of at least 1 or None, found {self.steps}")
        if min(self.start_delay_secs, self.throttle_secs) < 0:
            raise InputError(
                f"EvalSpec: expected times of at least 0 s, found {self.start_delay_secs} and "
                f"{self.throttle_secs}"
            )


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, float] | None, list[Path]]:
    """Train or evaluate, as this task's role says. See `tf.estimator.train_and_evaluate`.

    Returns: The loss, the metrics and the ``global_step`` of the final evaluation in the leader and in the
    evaluator, else None; and the files that exporters keep, where they run.

    Args:
        estimator: the model to be made.
        train_spec: the training data, and where training ends.
        eval_spec: the evaluation data, and when they are looked at.

    Raises:
        InputError: data do not fit, or those to evaluate on are infinite and `EvalSpec.steps` is None.
    """
    exporters = eval_spec.exporters or ()
    exporters = [exporters] if isinstance(exporters, Exporter) else list(exporters)
    with estimator._scope():
        data = estimator._data(eval_spec.input_fn, ModeKeys.EVAL)
        made = estimator._model(ModeKeys.EVAL, data)
        held_out = Batches(made.batches(data))
        check_finite(held_out, eval_spec.steps, "EvalSpec: input_fn", "steps")
        strategy = made.model.strategy
        followed = [0]

        def export(step: int, results: Mapping[str, float], is_final: bool) -> None:
            followed.append(step)
            for exporter in exporters:
                exporter.export(made.model, step, made.results(results), is_final)

        if strategy.evaluates:
            pace = Pace(eval_spec.start_delay_secs, eval_spec.throttle_secs)
            made.model.fit(validation_data=Validation(held_out, eval_spec.steps, pace=pace, evaluated=export))
            step = followed[-1]
        else:
            called_back = [*_callbacks("TrainSpec", train_spec.hooks), *train_spec.callbacks]
            training = estimator._data(train_spec.input_fn, ModeKeys.TRAIN)
            beside = Validation(held_out, eval_spec.steps) if strategy.has_evaluator else None
            estimator._train(training, train_spec.max_steps, called_back, beside)
            if not strategy.is_leader:
                return None, []
            estimator._ready(ModeKeys.EVAL, data)
            step = estimator.global_step
        results = made.evaluated(data, eval_spec.steps, _callbacks("EvalSpec", eval_spec.hooks))
        if not (strategy.has_evaluator or strategy.evaluates):
            for exporter in exporters:
                exporter.export(made.model, step, results, True)
    return {**results, "global_step": step}, [path for each in exporters for path in each.written]
