"""`dtrain evaluate`, `predict` and `export`: use of a trained model without a cluster."""

import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dtrain.data.tables import read_examples
from dtrain.errors import DtrainError, InputError, SpecError
from dtrain.learning.core.activations import Activation
from dtrain.process.plain_text import plain, plain_line
from dtrain.runs.failure import show_alone
from dtrain.saving import predictions
from dtrain.saving.destination import write_whole
from dtrain.strategies.single import SingleStrategy
from dtrain.task.unwritten_output import end_of_output
from dtrain.training.models import Model
from dtrain.training.saved_models import load_model
from dtrain.types import Array, Shape


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One use of a trained model.

    Attributes:
        action: ``evaluate`` | ``predict`` | ``export``.
        model: a file, or the folder of a run, of checkpoints, or of one checkpoint.
        data: a file of examples; see `dtrain.data.tables`.
        x, y: names in it.
        output: the file that is written; None: stdout.
        as_json: the answer on stdout is one JSON object.
        steps: how many batches; None: all there are.
        loss, metrics: in place of those that the model was compiled with.
        classes: print the number of an example's largest output in place of the outputs.
        custom_objects: a Python file whose classes the model may name.
    """

    action: str
    model: str
    data: str = ""
    x: str | None = None
    y: str | None = None
    output: str | None = None
    as_json: bool = False
    batch_size: int = 32
    steps: int | None = None
    loss: str | None = None
    metrics: Sequence[str] = ()
    classes: bool = False
    custom_objects: str | None = None


def main(request: ModelRequest) -> int:
    """Do what the request asks; an error is one message."""
    try:
        # Without TF_CONFIG: this is no task of a cluster.
        with SingleStrategy().scope():
            ACTIONS[request.action](request)
        sys.stdout.flush()
    except OSError as error:  # files have errors of dtrain's: this one is of the output
        return end_of_output(error)
    except DtrainError as error:
        print(plain(str(error) if isinstance(error, SpecError) else f"dtrain: {error}"), file=sys.stderr)
        return error.exit_code
    except MemoryError:
        print(plain(f"dtrain: {request.model}: not enough memory"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the user's layers, losses and metrics may raise anything
        show_alone(error)
        return 1
    return 0


def evaluate(request: ModelRequest) -> None:
    """Print loss and metrics over all examples."""
    model = _loaded(request)
    if request.loss is not None or request.metrics:
        told = model.compiled.arguments() if model.compiled else {"optimizer": "sgd"}
        given = {"loss": request.loss, "metrics": request.metrics}
        model.compile(**told | {name: value for name, value in given.items() if value})
    if model.compiled is None or model.compiled.losses is None:
        raise InputError(f"{request.model}: was saved without a loss; say which one with --loss NAME")
    trained = [output.name for output in model.compiled.outputs if output.loss is not None]
    data = read_examples(
        Path(request.data), _inputs(model), request.x, request.y, targets=True, outputs=trained
    )
    results = model.evaluate(
        data, batch_size=request.batch_size, steps=request.steps, return_dict=True, verbose=0
    )
    answer = {
        "model": request.model,
        "data": request.data,
        **{name: predictions.plain(value) for name, value in results.items()},
    }
    if request.output is not None:
        write_whole(Path(request.output), [predictions.line(answer)])
    if request.as_json:
        print(json.dumps(answer))
    elif request.output is None:
        width = max(map(len, results))
        for name, value in results.items():
            print(plain_line(f"{name:{width}}  {value:.6g}"))


def predict(request: ModelRequest) -> None:
    """Print the outputs of all examples, a JSON line each, or write them to a file."""
    if request.output is not None and Path(request.output).suffix not in predictions.SUFFIXES:
        raise SpecError(
            f"--output {request.output}: expected a name that ends in {', '.join(predictions.SUFFIXES)}"
        )
    model = _loaded(request)
    given = read_examples(Path(request.data), _inputs(model), request.x, request.y, targets=False)
    outputs = model.predict(given, batch_size=request.batch_size, steps=request.steps, verbose=0)
    named = (
        outputs
        if isinstance(outputs, dict)
        else dict(
            zip(model.network.output_names, outputs if isinstance(outputs, list) else [outputs], strict=True)
        )
    )
    if request.classes:
        named = {name: _classes(model, name, output) for name, output in named.items()}
    answer: dict[str, Any] = {
        "model": request.model,
        "data": request.data,
        "examples": len(next(iter(named.values()))),
    }
    if request.output is not None:
        write_whole(Path(request.output), predictions.encoded(Path(request.output), named))
        if request.as_json:
            print(json.dumps(answer | {"output": request.output}))
    elif request.as_json:
        print(json.dumps(answer | {"predictions": list(predictions.rows(named))}))
    else:
        for row in predictions.rows(named):
            print(json.dumps(row))


def _classes(model: Model, name: str, output: Array) -> Array:
    """Return the class of each example: the number of its largest output, or of a single output 1 from the
    middle on: a probability of 0.5, or a logit of 0.
    """
    if output.shape[-1] > 1:
        return np.asarray(np.argmax(output, axis=-1))
    losses = [each.loss for each in model.compiled.outputs if each.name == name] if model.compiled else []
    middle = 0.0 if losses and getattr(losses[0], "from_logits", False) else 0.5
    return (output[..., 0] > middle).astype(np.int64)


def export(request: ModelRequest) -> None:
    """Write the model as an ONNX file."""
    output = request.output or f"{Path(request.model).resolve().stem}.onnx"
    model = _loaded(request)
    model.export(output)
    if request.as_json:
        print(
            json.dumps(
                {
                    "model": request.model,
                    "output": output,
                    "inputs": list(_inputs(model)),
                    "outputs": model.network.output_names,
                }
            )
        )
    else:
        print(plain_line(output))


ACTIONS = {"evaluate": evaluate, "predict": predict, "export": export}


def _loaded(request: ModelRequest) -> Model:
    return load_model(request.model, _custom_objects(request.custom_objects))


def _custom_objects(path: str | None) -> dict[str, Any]:
    """Return the classes and activations that a Python file of the user's defines or imports."""
    if path is None:
        return {}
    sys.path.insert(0, str(Path(path).resolve().parent))
    found = runpy.run_path(path, run_name="custom_objects")
    classes = {name: each for name, each in found.items() if isinstance(each, type)}
    return classes | {each.name: each for each in found.values() if isinstance(each, Activation)}


def _inputs(model: Model) -> dict[str, Shape]:
    """Return names of the inputs, and the shape of an example."""
    return {step.path: step.shapes[0] for step in model.network.graph.inputs}
