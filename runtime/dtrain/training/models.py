"""`Model`, a network that a program compiles and trains, and `Sequential`, a model that is a stack of layers.

Names, arguments and defaults are Keras's.
"""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Self

from dtrain.callbacks import Callback, CallbackList, History, LambdaCallback, ProgressBar
from dtrain.callbacks.callback import as_callbacks
from dtrain.checkpoints import OptimizerState
from dtrain.data import encoding
from dtrain.data.input_context import InputContext
from dtrain.data.user_data import all_or_stepwise
from dtrain.errors import InputError
from dtrain.learning.core.configuration import NO_OBJECTS, CustomObjects
from dtrain.learning.core.results import result_of
from dtrain.learning.functions.tensors import plain
from dtrain.learning.graphs.graph import as_list
from dtrain.learning.graphs.networks import Network
from dtrain.learning.graphs.passes import only
from dtrain.learning.layers import Input, InputLayer, Layer, SymbolicTensor
from dtrain.learning.layers.base import CallArguments
from dtrain.learning.layers.composition import FRAME
from dtrain.learning.layers.weights import of_model
from dtrain.saving.destination import FilePath, tell_format
from dtrain.saving.model_files import SavedModel, write_model, write_onnx
from dtrain.strategies.interface import Strategy, Weights
from dtrain.training.architecture import CLASSES, in_order, submodel
from dtrain.training.arguments import (
    check_class_weight,
    check_example,
    check_finite,
    held_out,
    joined,
    told_of_repetition,
)
from dtrain.training.batches import Batches
from dtrain.training.compiled import Compiled, describe
from dtrain.training.custom_loops import train_shared
from dtrain.training.evaluation import NO_CALLBACKS, Validation, evaluate, predict
from dtrain.training.fits.fitting import Fit
from dtrain.training.fits.leading import Epochs
from dtrain.training.parts import Batch
from dtrain.training.recorded import RecordedModel, call_in_tape, current, is_watched, step_method
from dtrain.training.steps import EvaluationStep, Logs, TrainingStep
from dtrain.types import Shape


class Model(RecordedModel):
    """A network with the strategy in whose scope it was made: `compile`, `fit`, `evaluate`, `predict`.

    ``Model(inputs, outputs)`` is a graph between the results of `dt.Input` and of layers; see `Sequential`
    for a stack. Several of them are a list, or a dict by their layers' names; of outputs in a dict `predict`
    makes a dict in the same order. A model that is called with such results puts its layers there. Models
    that use the same layers share their variables' values.

    Args:
        inputs: one result of `dt.Input`, or a list or dict of them.
        outputs: what the layers make of them: one, or a list or dict.
        name: of the model; None: its class's name in lower case.
    """

    def __init__(self, inputs: Any = None, outputs: Any = None, *, name: str | None = None) -> None:
        super().__init__(None, name)
        self._output_keys: list[str] = []
        self._input_keys: list[str] | None = None
        self._symbols: tuple[list[SymbolicTensor], list[SymbolicTensor]] | None = None
        if outputs is not None:
            self._compose(inputs, outputs)
        self.history: History | None = None
        self._told_of_ignored_batches = False

    def _compose(self, inputs: Any, outputs: Any) -> None:
        self._symbols = as_list(in_order(inputs, "inputs")), as_list(in_order(outputs, "outputs"))
        self._network = Network.from_graph(*self._symbols)
        of_model(self, self._network.layers)
        self._output_keys = list(outputs) if isinstance(outputs, Mapping) else []

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Callback | Sequence[Callback] | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Collection[int] = 1,
        max_queue_size: int = 10,
        workers: int = 1,
        use_multiprocessing: bool = False,
    ) -> History:
        """Train until the global step has reached epochs x steps_per_epoch; see `tf.keras.Model.fit`.

        On a cluster all replicas train together (docs/guide/program.md). In the evaluator this is the
        evaluation loop: every newest checkpoint is evaluated on `validation_data`.

        Args:
            x: ``(x, y)`` arrays, a Dataset of batches, a function of an InputContext that returns one, a
                `dt.utils.Sequence`, or in a process that trains alone a generator object.
            batch_size: of one step, over all replicas; only for arrays. 32 by default.
            validation_split: fraction of the arrays, from their end, to validate on.
            class_weight: factors of the examples' weights, by class number.
            steps_per_epoch: global steps, each of which consumes one batch; by default every batch is seen
                once an epoch.
            max_queue_size, workers, use_multiprocessing: without effect, as for a Dataset in Keras, whose
                `map` and `prefetch` say how it is read ahead.

        Raises:
            InputError: data or arguments do not fit.
        """
        strategy = self.strategy
        data = joined(x, y, sample_weight)
        if validation_split and validation_data is None:
            data, validation_data = held_out(data, validation_split)
        size = validation_batch_size or batch_size
        validation = _validation(validation_data, size, validation_steps, validation_freq)
        fit = self._fit(
            callbacks=[*_of_sequence(data, strategy), *as_callbacks(callbacks)],
            validation=validation,
            class_weight=class_weight,
            verbose=verbose,
        )
        self.history = fit.history
        if strategy.evaluates:
            return fit.follow()
        context = self._input_context()
        if isinstance(data, Iterator):
            data = all_or_stepwise(data, stepwise=steps_per_epoch is not None)
        batches = Batches.of(
            data, batch_size=batch_size, shuffle=shuffle, seed=strategy.seed, context=context
        ).for_fit(strategy, counts=steps_per_epoch is None)
        self.build_for(batches)
        self._check(validation)
        plan = Epochs.of(batches, steps_per_epoch, epochs, initial_epoch, strategy.num_replicas_in_sync)
        if strategy.is_leader:
            batches = told_of_repetition(batches, plan.steps_per_epoch)
        return fit.run(batches, plan)

    def _check(self, validation: Validation | None) -> None:
        """Raise an `InputError` in the leader if an example of the validation does not fit the losses."""
        if validation is None or not self.strategy.is_leader:
            return
        if type(self).test_step is Model.test_step:
            check_example(self, self._compiled().losses, validation.batches, "fit: validation_data")

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        return_dict: bool = False,
        max_queue_size: int = 10,
        workers: int = 1,
        use_multiprocessing: bool = False,
    ) -> Any:
        """Return loss and metrics: a number, a list, or with `return_dict` a dict. See `tf.keras.Model`.

        By default it shows its progress in the leader alone. The last three arguments have no effect.
        """
        batches = Batches.of(joined(x, y, sample_weight), batch_size=batch_size, shuffle=False, seed=0)
        check_finite(batches, steps, "evaluate", "steps")
        self.build_for(batches)
        shows = verbose and (verbose != "auto" or self.strategy.is_leader)
        called = [*as_callbacks(callbacks), *([ProgressBar(verbose)] if shows else [])]
        hooks = CallbackList(called, self, {"steps": steps or batches.count, "verbose": verbose})
        return _reported(self._evaluate(self.arrays, batches.once(steps), hooks), return_dict)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        max_queue_size: int = 10,
        workers: int = 1,
        use_multiprocessing: bool = False,
    ) -> Any:
        """Return the outputs for all inputs, in order, without a progress bar. See `tf.keras.Model`.

        The last three arguments have no effect.
        """
        batches = Batches.of(x, batch_size=batch_size, shuffle=False, seed=0)
        check_finite(batches, steps, "predict", "steps")
        self.build_for(batches)
        hooks = CallbackList(as_callbacks(callbacks), self, {"steps": steps or batches.count})
        step = lambda batch: EvaluationStep(self, None, batch, self.arrays)  # noqa: E731
        found = predict(batches.once(steps), step, step_method(self, "predict_step"), hooks)
        return self._predicted(found)

    def __call__(self, x: Any, training: bool | None = None) -> Any:
        """Return the outputs for a batch, or symbolic ones for symbolic inputs, like a layer.

        Args:
            x: the batch, or results of `dt.Input` and of layers; several in a list, or in a dict by the
                inputs' names.
            training: for a batch, whether dropout drops and batches are normalized by themselves. For
                symbolic inputs False and True hold whenever the model around this one runs, and None means as
                that one does.
        """
        tensors = (
            list(x.values()) if isinstance(x, Mapping) else list(x) if isinstance(x, list | tuple) else [x]
        )
        if not any(isinstance(tensor, SymbolicTensor) for tensor in tensors):
            if FRAME.get() is not None:  # in the `call` of a layer, whose part this model is
                return self._predicted(only(self.network.graph.replayed(list(map(plain, tensors)))))
            if is_watched(tensors):
                return self._predicted(result_of(call_in_tape(self, x, training)))
            return result_of(self._trained_on(x) if training else self.predict_on_batch(x))
        if self._network is None and hasattr(self, "call"):
            self._note_keys(x)
            self._fix_shapes(only([tensor.of_one for tensor in tensors]))
        if isinstance(x, Mapping):
            tensors = [x[name] for name in self.network.input_names]
        return self._predicted(only(submodel(self)(tensors, training)))

    @property
    def input(self) -> Any:
        """The symbolic inputs, for models that use these layers too; a list of several."""
        return only(self._ends()[0])

    @property
    def output(self) -> Any:
        """The symbolic result of the last layer; a list of several outputs."""
        return only(self._ends()[1])

    # One batch

    def train_step(self, step: TrainingStep) -> Logs:
        """Train on one batch; override it for a step of your own, see `dtrain.training.steps`.

        It runs in every replica of every strategy: it adds to `step.gradients`, which the strategy then
        applies. If the parameter of yours has another name than ``step``, it is given the data of the batch,
        as in Keras: x, (x, y), or (x, y, sample_weight). What it gives to `self.optimizer.apply_gradients` is
        then the step's contribution. Metrics that it updates count this batch alone; the log has their means
        over the epoch.

        Returns: Numbers for the log by name, ``loss`` among them.
        """
        step = self._step_of(step)
        return {"loss": step.loss_and_gradients(), **step.losses}

    def test_step(self, step: EvaluationStep) -> Logs:
        """Evaluate one batch: return numbers for the log, and set `step.outputs` for the metrics."""
        step = self._step_of(step)
        return {"loss": step.compute_loss(), **step.losses}

    def predict_step(self, step: EvaluationStep) -> Any:
        """Return the outputs for one batch, for `predict`."""
        return self._step_of(step).forward()

    def _step_of(self, given: Any) -> Any:
        """Return the step for which `super().train_step(data)` was called."""
        return given if isinstance(given, EvaluationStep) else current(self, "train_step").step

    def build_for(self, batches: Batches) -> None:
        """Fix the shapes, if they are not known, for inputs like these."""
        if not self.built and hasattr(self, "call"):
            self._note_keys(batches.first().x)
        super().build_for(batches)

    def _note_keys(self, x: Any) -> None:
        self._input_keys = list(x) if isinstance(x, Mapping) else None

    def _fix_shapes(self, of_one_example: Any) -> None:
        """Fix the shapes, and first trace the `call` of a subclassed model (`dtrain.training.tracing`)."""
        if self._network is None and hasattr(self, "call"):
            several = isinstance(of_one_example, list)
            shapes = of_one_example if several else [of_one_example]
            tracing = import_module("dtrain.training.tracing")
            self._compose(*tracing.traced(self, shapes, self._input_keys))
            self.network.graph.order = tracing.attributes(self, self.network.graph.names)
            if self.compiled is not None and len(self.compiled.outputs) != len(self.network.output_names):
                raise InputError(
                    f"{self.name}: has {len(self.network.output_names)} outputs; call build(input_shape) "
                    "before compile"
                )
        super()._fix_shapes(of_one_example)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Train one step on one batch: a `fit` of its own, which on a cluster costs a round of all tasks.

        That is two checkpoints and some milliseconds. For a loop of your own over many batches override
        `train_step` instead. The batch is the leader's (that of the replica of rank 0, if the chief does not
        train), whose replica computes all of it. With a `ClusterCoordinator` it is a step of its caller.

        Returns: Loss and metrics, as `evaluate`; None in tasks that do not lead.
        """
        strategy = self.strategy
        if strategy.shared is not None:
            batch = Batch(x, y, sample_weight)
            return _reported(train_shared(self, self._compiled(), batch, class_weight), return_dict)
        batches = Batches.of(joined(x, y, sample_weight), batch_size=Batch(x).size, shuffle=False, seed=0)
        self.build_for(batches)
        if strategy.rank > 0 and not self._told_of_ignored_batches:
            self._told_of_ignored_batches = True
            told = "train_on_batch: the leader's batch is trained; those of other tasks are not used"
            print(told, file=sys.stderr, flush=True)
        fit = self._fit(class_weight=class_weight, verbose=0, alone=True)
        history = fit.run(batches, Epochs(1, epochs=1)).history
        if not strategy.is_leader:
            return None
        return _reported({name: values[-1] for name, values in history.items()}, return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Return loss and metrics of one batch, as `evaluate`."""
        batch = Batch(x, y, sample_weight)
        self.build(batch.input_shape)
        return _reported(self._evaluate(self.arrays, [batch]), return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """Return the outputs for one batch."""
        batch = Batch(x)
        self.build(batch.input_shape)
        step = EvaluationStep(self, None, batch, self.arrays)
        return self._predicted(step_method(self, "predict_step")(step))

    # As a file

    def save(
        self,
        filepath: FilePath | None = None,
        overwrite: bool = True,
        include_optimizer: bool = True,
        save_format: str | None = None,
    ) -> None:
        """Write architecture, weights, compile arguments and optimizer state; `dt.load_model` reads them.

        The file is in the safetensors format, whatever its name ends in; a name of Keras's formats gives a
        warning. In tasks that do not lead it is deleted at the end; until then they read it under its name.
        Compare `tf.keras.Model.save`, whose `save_format` has no effect here. Without a path it goes to
        AIP_MODEL_DIR of a job of Vertex AI.

        Raises:
            CheckpointError: it cannot be written.
            SpecError: a layer, loss or metric has an argument that is no data.
        """
        if self.strategy.is_leader:
            tell_format(filepath)
        state = self.optimizer_state if include_optimizer and self.compiled else None
        write_model(filepath, self._saved(self.compiled, state), self.strategy, overwrite=overwrite)

    def write(self, filepath: FilePath) -> None:
        """Save without the optimizer's state, in any task, such as an evaluator that keeps a model."""
        write_model(filepath, self._saved(self._compiled()), None)

    def export(self, filepath: FilePath | None = None, format: str = "onnx") -> None:  # noqa: A002
        """Write an ONNX file that computes what `predict` does; needs the extra ``dtrain[onnx]``.

        Inputs and outputs are named as their layers are. In tasks that do not lead the file is deleted.
        Without a path it is ``model.onnx`` in AIP_MODEL_DIR of a job of Vertex AI.

        Raises:
            SpecError: ONNX has no form of a layer, or the name does not end in ``.onnx``.
            CheckpointError: it cannot be written.
        """
        write_onnx(filepath, self.network.graph, self.arrays, self.name, self.strategy, format)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: CustomObjects = NO_OBJECTS) -> Self:
        """Return a model of the layers that `get_config` described."""
        model = cls.of_network(Network.from_config(config, custom_objects), config["name"])
        names = model.network.output_names
        model._output_keys = [names[names.index(key)] for key in config.get("output_keys", ())]
        return model

    @classmethod
    def of_network(cls, network: Network, name: str) -> Self:
        """Return a model of these layers."""
        model = cls(name=name)
        model._network = network
        of_model(model, network.layers)
        return model

    def get_config(self) -> dict[str, Any]:
        """Return name and layers as JSON types; see `tf.keras.Model.get_config`."""
        return super().get_config() | ({"output_keys": self._output_keys} if self._output_keys else {})

    # Inner parts

    def _trained_on(self, x: Any) -> Any:
        """Return the outputs for one batch in training mode; no moving average moves."""
        batch = Batch(x)
        self.build(batch.input_shape)
        return self._predicted(self.network.predict(self.arrays, batch.x, training=True))

    def _ends(self) -> tuple[list[SymbolicTensor], list[SymbolicTensor]]:
        if self._symbols is None:
            inputs = [Input(shape) for shape in self._built_network().input_shapes]
            self._symbols = inputs, self.network.graph.replayed(inputs)
        return self._symbols

    def _predicted(self, outputs: Any) -> Any:
        """Return outputs in the form in which the model was given its own."""
        if not self._output_keys:
            return outputs
        names = self.network.output_names
        by_name = dict(zip(names, outputs if len(names) > 1 else [outputs], strict=True))
        return {key: by_name[key] for key in self._output_keys}

    def _saved(self, compiled: Compiled | None, state: OptimizerState | None = None) -> SavedModel:
        values = self.arrays
        return SavedModel(
            describe(self, compiled), {spec.name: values[spec.name] for spec in self.created_variables}, state
        )

    def _fit(self, **options: Any) -> Fit:
        check_class_weight(options.get("class_weight"))
        return Fit(self, self._compiled(), self._owner_of_fit(), self._train_step, self._evaluate, **options)

    def _evaluate(
        self, weights: Weights, batches: Iterable[Batch], callbacks: CallbackList = NO_CALLBACKS
    ) -> dict[str, float]:
        compiled = self._compiled()
        return evaluate(
            batches,
            compiled,
            lambda batch: EvaluationStep(self, compiled.losses, batch, weights),
            self.strategy.context.activity.after(step_method(self, "test_step")),
            callbacks,
        )

    def _input_context(self) -> InputContext:
        place, pipelines = self.strategy.input_workers, self.strategy.context.pipelines
        if place.wraps:
            context = place.context
            pipelines = pipelines or context.num_input_pipelines
            return InputContext(
                pipelines, context.input_pipeline_id % pipelines, context.num_replicas_in_sync
            )
        pipelines = pipelines or self.strategy.num_replicas
        return InputContext(
            pipelines, max(self.strategy.rank, 0) % pipelines, self.strategy.num_replicas_in_sync
        )


def model_of(layer: Layer, shapes: Sequence[Shape], arguments: CallArguments) -> Model:
    """Return the model of one use of a layer that is called on arrays; all such models share its weights."""
    made: dict[Any, Model] = layer.__dict__.setdefault("_called_alone", {})
    key = tuple(shapes), arguments.tensors, repr(arguments.options)
    if key not in made:
        inputs = [Input(shape) for shape in shapes]
        made[key] = Model(inputs, layer.used(tuple(inputs), None, arguments))
    return made[key]


CLASSES["Model"] = Model


def _reported(results: Mapping[str, float], return_dict: bool) -> Any:
    """Return results as Keras does: a dict, a list, or the loss alone."""
    if return_dict:
        return dict(results)
    return list(results.values()) if len(results) > 1 else results["loss"]


def _of_sequence(data: Any, strategy: Strategy) -> list[Callback]:
    """Return the callback that tells a `dt.utils.Sequence` of the ends of epochs, which runs in the leader.

    Raises:
        InputError: its `on_epoch_end` is overridden, or it is a generator, and replicas of several tasks or
            threads would each have a different state of the object.
    """
    in_run = strategy.context.run_id is not None
    if isinstance(data, Iterator) and (in_run or strategy.num_replicas_in_sync > 1):
        raise InputError(
            "data: found a generator, of which every replica would read another part; expected arrays, or "
            "dtrain.data.Dataset.from_generator(function_that_makes_it, output_signature=...)"
        )
    if getattr(type(data), "on_epoch_end", encoding.Sequence.on_epoch_end) is encoding.Sequence.on_epoch_end:
        return []
    if in_run:
        raise InputError(
            f"data: {type(data).__name__} has an on_epoch_end of its own, and tasks of a run would differ; "
            "leave it out and let fit shuffle, or give a dtrain.data.Dataset, as of from_generator"
        )
    return [LambdaCallback(on_epoch_end=lambda epoch, logs: data.on_epoch_end())]


def _validation(
    data: Any, batch_size: int | None, steps: int | None, freq: int | Collection[int]
) -> Validation | None:
    """Return the validation of a fit from its `validation_data`."""
    if data is None or isinstance(data, Validation):
        return data
    if isinstance(data, Iterator):
        data = all_or_stepwise(data, stepwise=steps is not None)
    if isinstance(data, list):  # Keras takes [x, y] and [x, y, sample_weight], too
        data = tuple(data)
    batches = Batches.of(data, batch_size=batch_size, shuffle=False, seed=0)
    check_finite(batches, steps, "fit: validation_data", "validation_steps")
    return Validation(batches, steps, freq)


Item = Layer | Model | SymbolicTensor


class Sequential(Model):
    """A stack of layers: ``Sequential([dt.layers.Dense(64, activation="relu"), dt.layers.Dense(10)])``.

    A model may stand among them like a layer; the two models share the values of its variables.

    Args:
        layers: layers, models, or a `dt.Input` as the first; more with `add`.
        name: of the model; None: its class's name in lower case.
    """

    def __init__(self, layers: Sequence[Item] | Item = (), name: str | None = None) -> None:
        super().__init__(name=name)
        self._stack: list[Item] = []
        for layer in [layers] if isinstance(layers, Item) else layers:
            self.add(layer)

    @classmethod
    def of_network(cls, network: Network, name: str) -> Self:
        """Return a model of these layers."""
        model = super().of_network(network, name)
        model._stack = list(network.layers)
        return model

    def add(self, layer: Item) -> None:
        """Add a layer at the end.

        Raises:
            InputError: the stack is already in use, or this is no layer.
        """
        if not isinstance(layer, Item):
            raise InputError(
                f"{self.name}: expected a layer such as dtrain.layers.Dense(10), found {layer!r}"
            )
        if self._network is not None:
            raise InputError(
                f"{self.name}: layers can only be added before the model is used; make a model of its layers "
                "and this one, Sequential([*model.layers, layer]), which keeps their values"
            )
        self._stack.append(layer)
        of_model(self, [layer])

    def pop(self) -> None:
        """Remove the last layer; those that stay keep their values, and the model is to be compiled anew.

        Raises:
            InputError: there is none.
        """
        if not self._stack:
            raise InputError(f"{self.name}: pop: the stack has no layer")
        shape = self.network.input_shapes[0] if self.built else None
        values = self.arrays if self.built else {}
        del self._stack[-1]
        self._network = self._values = self._in_replicas = self._symbols = self.compiled = None
        if shape is not None and self._stack:
            self.build((None, *shape))
            self.arrays = {spec.name: values[spec.name] for spec in self.created_variables}

    @property
    def network(self) -> Network:
        """The layers as a whole."""
        if self._network is None and self._stack:
            self._network = Network(
                [submodel(each) if isinstance(each, Model) else each for each in self._stack]
            )
        return super().network

    @property
    def layers(self) -> list[Any]:
        """Every layer and model once, in the order of use, without the input that stands before them."""
        return [layer for layer in super().layers if not isinstance(layer, InputLayer)]

    @property
    def built(self) -> bool:
        """True if the variables' shapes are known."""
        return bool(self._stack) and self.network.built


CLASSES["Sequential"] = Sequential
