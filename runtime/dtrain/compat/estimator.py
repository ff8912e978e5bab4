"""`train_and_evaluate`: the Estimator's API and its exporters, for programs that were written for it.

    estimator = dt.Estimator(model_fn)
    train_spec = dt.TrainSpec(input_fn, max_steps=30)
    dt.train_and_evaluate(estimator, train_spec, dt.EvalSpec(eval_input_fn, steps=10))

The chief and the workers train, the evaluator follows the checkpoints, and one process alone does both.

Source: `tf.estimator.train_and_evaluate`.

    dt.EvalSpec(input_fn, exporters=[dt.BestExporter(), dt.FinalExporter("final")])

They run where evaluations do, in the evaluator or else in the leader, and write files that `dt.load_model`
reads: ``export/<name>/<global step>.dtrain`` in the run directory, or without one in the working directory.

Source: `tf.estimator.Exporter` and its kinds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from dtrain.callbacks import Callback
from dtrain.checkpoints import Pace
from dtrain.errors import InputError
from dtrain.training.arguments import check_finite
from dtrain.training.batches import Batches, BatchesOfReplicas
from dtrain.training.evaluation import Validation
from dtrain.training.models import Model

Results: TypeAlias = Mapping[str, float]


@dataclass
class Exporter:
    """Base of exporters, to override `wants`; `exports_to_keep` (None: all) in the folder `name`."""

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


@dataclass
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


InputFunction = Callable[[], Any]


@dataclass(frozen=True)
class Estimator:
    """A model to be made in each task: `model_fn` is called once in the strategy's scope and compiles it.

    Args:
        model_fn: ``() -> Model``, compiled.
    """

    model_fn: Callable[[], Model]


@dataclass(frozen=True)
class TrainSpec:
    """The training data, and the global step at which training ends.

    Attributes:
        input_fn: returns a Dataset of batches (or arrays); called once.
        max_steps: absolute: a training that resumes from a checkpoint counts the steps in it.
        callbacks: run on the leader (the Estimator's hooks).

    Raises:
        InputError: max_steps is not positive.
    """

    input_fn: InputFunction
    max_steps: int
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise InputError(f"TrainSpec: expected max_steps of at least 1, found {self.max_steps}")


@dataclass(frozen=True)
class EvalSpec:
    """The evaluation data, and the times of evaluations.

    Attributes:
        input_fn: returns a Dataset of batches (or arrays).
        steps: batches of one evaluation; None: all there are.
        start_delay_secs: from the evaluator's start to its first evaluation. The final checkpoint is
            evaluated at once.
        throttle_secs: from the beginning of one evaluation to the next.
        exporters: keep models that were evaluated; see `dtrain.compat.estimator`.

    Raises:
        InputError: steps is not positive, or a time is negative.
    """

    input_fn: InputFunction
    steps: int | None = 100
    start_delay_secs: float = 120
    throttle_secs: float = 600
    exporters: Sequence[Exporter] = ()

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
) -> tuple[Model, dict[str, float] | None]:
    """Train or evaluate, as this task's role says.

    Returns: The model, with the final weights; and the metrics of the final evaluation in the leader and in
    the evaluator, else None.

    Args:
        estimator: the model to be made.
        train_spec: the training data, and where training ends.
        eval_spec: the evaluation data, and when they are looked at.

    Raises:
        InputError: data do not fit, or those to evaluate on are infinite and `EvalSpec.steps` is None.
    """
    model = estimator.model_fn()
    strategy = model.strategy
    evaluation_data = eval_spec.input_fn()
    held_out = Batches.of(evaluation_data, batch_size=None, shuffle=False, seed=0)
    check_finite(held_out, eval_spec.steps, "EvalSpec: input_fn", "steps")
    pace = Pace(eval_spec.start_delay_secs, eval_spec.throttle_secs)

    def export(step: int, results: dict[str, float], is_final: bool) -> None:
        for exporter in eval_spec.exporters:
            exporter.export(model, step, results, is_final)

    model.fit(
        BatchesOfReplicas(train_spec.input_fn()),
        epochs=1,
        steps_per_epoch=train_spec.max_steps,
        callbacks=train_spec.callbacks,
        validation_data=Validation(held_out, eval_spec.steps, pace=pace, evaluated=export),
    )
    if not (strategy.is_leader or strategy.evaluates):
        return model, None
    results = model.evaluate(evaluation_data, steps=eval_spec.steps, return_dict=True)
    if not strategy.has_evaluator and not strategy.evaluates:
        export(train_spec.max_steps, results, True)
    return model, results
