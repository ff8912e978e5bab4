"""`dtrain evaluate`, `predict` and `export`: a trained model, without a cluster.

The numbers are the runtime's business (`dtrain.task.model_command`), which is imported as the command runs.
"""

from pathlib import Path
from typing import Any

import click

from dtrain.errors import RunNotFoundError
from dtrain_cli.commands.command_line import Count, all_of, complete_run, json_option, runs_dir_option
from dtrain_cli.commands.runs import find

MODEL = (
    "MODEL is a file that model.save wrote, a run (id, prefix of one, name or path; its newest checkpoint "
    "counts), or a folder of checkpoints."
)
DATA = (
    "DATA is a file of examples: .npz (arrays x and y, or those named by --x, --y, or one for each input of "
    "the model, and for each output where it has several), .npy (x), .csv (the last column is y) or "
    ".tfrecord."
)


_model_options = all_of(
    click.argument("model", shell_complete=complete_run),
    click.option(
        "--custom-objects",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE.py",
        help="A Python file with the layers, losses or metrics of your own that the model names; it is run.",
    ),
    json_option,
    runs_dir_option,
)
_data_options = all_of(
    click.argument("data", type=click.Path()),
    click.option("--x", metavar="NAME", help="The array, column or feature of inputs."),
    click.option("--y", metavar="NAME", help="The array, column or feature of targets."),
    click.option(
        "--batch-size", type=Count(1), default=32, show_default=True, metavar="N", help="Examples at a time."
    ),
    click.option("--steps", type=Count(1), metavar="N", help="Stop after N batches."),
)


@click.command(
    short_help="Evaluate a trained model on a file of examples.",
    epilog="\b\nExamples:\n  dtrain evaluate model.safetensors test.npz\n"
    "  dtrain evaluate digits test.npz --json\n"
    "  dtrain evaluate digits measured.csv --y price --loss mse --metric mae\n",
    help=f"Loss and metrics of MODEL on DATA.\n\n{MODEL}\n\n{DATA}",
)
@_model_options
@_data_options
@click.option("--loss", metavar="NAME", help="In place of the loss that the model was compiled with.")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="In place of its metrics; may be repeated."
)
@click.option("-o", "--output", type=click.Path(), metavar="FILE", help="Write the JSON object there.")
def evaluate(metrics: tuple[str, ...], **order: Any) -> int:
    """Print loss and metrics of a trained model."""
    return _do("evaluate", metrics=metrics, **order)


@click.command(
    short_help="Predict with a trained model.",
    epilog="\b\nExamples:\n  dtrain predict model.safetensors images.npy\n"
    "  dtrain predict digits test.npz --classes | head\n"
    "  dtrain predict digits test.npz --output predictions.npy\n",
    help=(
        f"What MODEL makes of DATA: one JSON line an example, or a file.\n\n{MODEL}\n\n{DATA} No y is needed."
    ),
)
@_model_options
@_data_options
@click.option(
    "--classes",
    is_flag=True,
    help="Print the number of the largest output in place of the outputs; of a single output, whether it is "
    "above 0.5 (a logit: above 0).",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="FILE",
    help="Write them there: .npy, .npz, .csv, .json or .jsonl.",
)
def predict(**order: Any) -> int:
    """Print or write the outputs of a trained model."""
    return _do("predict", **order)


@click.command(
    short_help="Write a trained model as an ONNX file.",
    epilog="\b\nExamples:\n  dtrain export model.safetensors\n  dtrain export digits served/digits.onnx\n",
    help=(
        "Write MODEL as an ONNX file, which every runtime runs; default: the model's name in this "
        f"directory.\n\n{MODEL}"
    ),
)
@_model_options
@click.argument("output", required=False, type=click.Path(), metavar="[FILE.onnx]")
def export(**order: Any) -> int:
    """Write a trained model for other runtimes."""
    return _do("export", **order)


def _do(action: str, *, model: str, runs_dir: Path | None, **order: Any) -> int:
    from dtrain.task.model_command import ModelRequest, main

    return main(ModelRequest(action=action, model=str(_located(model, runs_dir)), **order))


def _located(model: str, runs_dir: Path | None) -> Path:
    if Path(model).exists():
        return Path(model)
    try:
        return find(model, runs_dir).files.directory
    except RunNotFoundError as error:
        raise RunNotFoundError(f"{model}: no such file or folder, and {error}") from None


COMMANDS = (evaluate, predict, export)
