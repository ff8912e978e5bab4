"""A `model_fn` of the Estimator's form: it is called with symbols, and becomes a compiled model.

    def model_fn(features, labels, mode):
        predictions = tf1.layers.dense(features, 1)
        loss = tf1.losses.mean_squared_error(labels, predictions)
        train_op = tf1.train.AdagradOptimizer(0.05).minimize(loss, tf1.train.get_global_step())
        return tf1.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

Layers make a graph as in a functional model. `tf1.losses` notes which loss belongs to which symbol,
`tf1.metrics` which metric, `minimize` which optimizer: nothing is computed before data come.

Source: `tf.estimator.EstimatorSpec`.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dtrain.data.dataset import Dataset
from dtrain.errors import InputError
from dtrain.learning import layers
from dtrain.learning.graphs.graph import as_list
from dtrain.learning.layers import Input, SymbolicTensor
from dtrain.learning.losses import Loss
from dtrain.learning.metrics import Metric
from dtrain.learning.optimizers import Optimizer
from dtrain.training.models import Model


class ModeKeys:
    """Names of what a model is made for; see `tf.estimator.ModeKeys`."""

    TRAIN, EVAL, PREDICT = "train", "eval", "infer"


MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)


@dataclass(frozen=True, eq=False)
class NotedMetric:
    """A metric of a symbol, as functions of `tf1.metrics` return it."""

    metric: Metric
    labels: Any
    predictions: Any


@dataclass(frozen=True, eq=False)
class NotedLoss:
    """A sum of losses of symbols, each with its factor, as functions of `tf1.losses` return it."""

    terms: tuple[tuple[Loss, float, Any, Any], ...]
    """For each loss: the loss, its factor, the symbol of the labels and the symbol of the predictions."""

    def __add__(self, other: Any) -> "NotedLoss":
        if isinstance(other, NotedLoss):
            return NotedLoss((*self.terms, *other.terms))
        return self if other == 0 else NotImplemented  # sum() begins with 0

    __radd__ = __add__

    def __mul__(self, factor: float) -> "NotedLoss":
        terms = [(loss, weight * float(factor), *ends) for loss, weight, *ends in self.terms]
        return NotedLoss(tuple(terms))

    __rmul__ = __mul__


@dataclass(frozen=True, eq=False)
class TrainOperation:
    """The result of `minimize`: the optimizer, for the loss that it was given."""

    optimizer: Optimizer
    loss: NotedLoss


@dataclass(frozen=True, eq=False)
class EstimatorSpec:
    """A model for one mode, as a `model_fn` returns it; see `tf.estimator.EstimatorSpec`.

    Args:
        mode: `ModeKeys.TRAIN`, `EVAL` or `PREDICT`.
        predictions: a symbol, or a dict of symbols: what `predict` returns.
        loss: of functions of `tf1.losses`, one or a sum.
        train_op: the result of `minimize`.
        eval_metric_ops: results of functions of `tf1.metrics`, by the names of their numbers.
        export_outputs: without effect: exporters write the model that is evaluated.

    Raises:
        InputError: the mode needs an argument that is missing, or one is of another kind.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Mapping[str, NotedMetric] | None = None
    export_outputs: Any = None

    def __post_init__(self) -> None:
        if self.mode == ModeKeys.PREDICT:
            if self.predictions is None:
                raise InputError("EstimatorSpec: expected predictions for the mode 'infer', found none")
            return
        metrics = self.eval_metric_ops or {}
        wanted: list[tuple[str, Any, type, str]] = [("loss", self.loss, NotedLoss, "tf1.losses")]
        if self.mode == ModeKeys.TRAIN:
            wanted.append(("train_op", self.train_op, TrainOperation, "an optimizer's minimize"))
        wanted += [(f"eval_metric_ops[{key!r}]", metrics[key], NotedMetric, "tf1.metrics") for key in metrics]
        for name, found, kind, maker in wanted:
            if not isinstance(found, kind):
                raise InputError(
                    f"EstimatorSpec: {name}: expected what {maker} returns for the mode {self.mode!r}, "
                    f"found {type(found).__name__}"
                )


@dataclass
class MadeModel:
    """A compiled model for one mode, and how data of an `input_fn` become its own.

    Attributes:
        targets: makes a batch's targets of its labels; None: they are the labels.
        outputs: keys of a dict of predictions, in the model's order; None: there is one symbol.
        metrics: the names of metrics in results, and those that the program gave them.
        shared: whether the program has made it, for every mode.
    """

    model: Model
    targets: Callable[[Any], Any] | None = None
    outputs: list[str] | None = None
    metrics: Mapping[str, str] | None = None
    shared: bool = False

    @property
    def updates(self) -> int:
        """The updates that the optimizer has made."""
        assert self.model.optimizer is not None
        return int(self.model.optimizer.iterations)

    def batches(self, data: Dataset) -> Dataset:
        """Return what `fit` and `evaluate` read, of batches of (features, labels)."""
        targets = self.targets
        return (
            data
            if targets is None
            else data.map(lambda features, labels, *weights: (features, targets(labels), *weights))
        )

    def evaluated(self, data: Dataset, steps: int | None, callbacks: list[Any]) -> dict[str, float]:
        """Return the results of an evaluation, by the names that the program gave them."""
        batches = self.batches(data)
        return self.results(
            self.model.evaluate(batches, steps=steps, callbacks=callbacks, verbose=0, return_dict=True)
        )

    def results(self, found: Mapping[str, float]) -> dict[str, float]:
        """Return results of an evaluation by the names that the program gave them."""
        if self.metrics is None:
            return dict(found)
        return {"loss": found["loss"]} | {own: found[name] for name, own in self.metrics.items()}

    def examples(self, predicted: Any) -> Iterator[Any]:
        """Yield the predictions for each example: an array, or a dict of arrays."""
        if self.outputs is None:
            yield from predicted
            return
        arrays = predicted if isinstance(predicted, list) else [predicted]
        for each in zip(*arrays, strict=True):
            yield dict(zip(self.outputs, each, strict=True))


def called(function: Callable[..., Any], what: str, **known: Any) -> Any:
    """Call a program's function with those of the `known` arguments that it has; `what` is its role.

    Raises:
        InputError: it needs others.
    """
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    for each in parameters:
        if (
            each.default is each.empty
            and each.name not in known
            and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ):
            raise InputError(
                f"Estimator: {what}: expected arguments of {', '.join(known)}, found {each.name}"
            )
    names = known if takes_all else [each.name for each in parameters if each.name in known]
    return function(**{name: known[name] for name in names})


def made_model(model_fn: Callable[..., Any], mode: str, element_spec: Any, **known: Any) -> MadeModel:
    """Call a `model_fn` for one mode, and compile what it describes.

    Args:
        model_fn: a function of features, labels, mode and some of `known`; or of nothing, which returns a
            compiled model.
        mode: see `ModeKeys`.
        element_spec: of the dataset that an `input_fn` has returned.
        known: further arguments by name, such as ``params``.

    Raises:
        InputError: the function returns something else.
    """
    parameters = inspect.signature(model_fn).parameters.values()
    if all(each.default is not each.empty for each in parameters):
        model = model_fn()
        if not isinstance(model, Model) or model.compiled is None:
            raise InputError(
                "Estimator: model_fn: a function without arguments returns a compiled dt.Model, found "
                f"{type(model).__name__}; write model_fn(features, labels, mode) for an EstimatorSpec"
            )
        return MadeModel(model, shared=True)
    features, labels = element_spec[:2] if isinstance(element_spec, tuple) else (element_spec, None)
    features = _symbols_of(features)
    labels = None if mode == ModeKeys.PREDICT or labels is None else _symbols_of(labels)
    spec = called(model_fn, "model_fn", features=features, labels=labels, mode=mode, **known)
    if not isinstance(spec, EstimatorSpec):
        raise InputError(f"Estimator: model_fn: expected an EstimatorSpec, found {type(spec).__name__}")
    inputs = _leaves(features)
    if mode != ModeKeys.PREDICT:
        return _compiled(spec, inputs, labels)
    if isinstance(spec.predictions, Mapping):
        return MadeModel(Model(inputs, list(spec.predictions.values())), outputs=list(spec.predictions))
    return MadeModel(Model(inputs, spec.predictions))


def _symbols_of(spec: Any, name: str | None = None) -> Any:
    """Return a symbol for each array of a batch."""
    if isinstance(spec, Mapping):
        return {key: _symbols_of(each, str(key)) for key, each in spec.items()}
    if isinstance(spec, tuple | list):
        return [_symbols_of(each) for each in spec]
    return Input(tuple(spec.shape[1:]), name, "string" if spec.dtype == "string" else None)


def _leaves(symbols: Any) -> list[SymbolicTensor]:
    """Return the symbols of features or labels, in order."""
    return as_list(list(symbols.values()) if isinstance(symbols, Mapping) else symbols)


def _compiled(spec: EstimatorSpec, inputs: list[SymbolicTensor], labels: Any) -> MadeModel:
    """Return a model with an output for each loss, and for metrics of further symbols."""
    outputs: list[Any] = []
    wanted: list[Any] = []
    metrics: list[list[Metric]] = []

    def add(predictions: Any, true: Any) -> None:
        taken = any(predictions is each for each in outputs)  # each output has a name of its own
        outputs.append(layers.Activation("linear")(predictions) if taken else predictions)
        wanted.append(true)
        metrics.append([])

    for _, _, true, predictions in spec.loss.terms:
        add(predictions, true)
    places: dict[str, int] = {}
    for key, noted in () if spec.mode == ModeKeys.TRAIN else (spec.eval_metric_ops or {}).items():
        same = [i for i, each in enumerate(outputs) if (each, wanted[i]) == (noted.predictions, noted.labels)]
        if not same:
            add(noted.predictions, noted.labels)
        places[key] = same[0] if same else len(outputs) - 1
        noted.metric.name = key
        metrics[places[key]].append(noted.metric)
    model = Model(inputs, outputs)
    without = [None] * (len(outputs) - len(spec.loss.terms))
    model.compile(
        "sgd" if spec.train_op is None else spec.train_op.optimizer,
        [*[loss for loss, *_ in spec.loss.terms], *without],
        metrics,
        [*[weight for _, weight, *_ in spec.loss.terms], *without],
    )
    assert model.compiled is not None
    names = model.network.output_names
    labelled = {model.compiled.label(names[place], key): key for key, place in places.items()}
    if len(wanted) == 1 and wanted[0] is labels:
        return MadeModel(model, metrics=labelled)
    of_labels = Model(_leaves(labels), wanted)  # also what a program computes of labels

    def targets(batch: Any) -> dict[str, Any]:
        found = of_labels.predict_on_batch(batch)
        return dict(zip(names, found if isinstance(found, list) else [found], strict=True))

    return MadeModel(model, targets, metrics=labelled)
