"""Layers, losses and metrics: files g, h and i."""

import functools

import numpy as np
import tensorflow as tf
from conformance.perturbing.values import error_of, plain

WIDER = ("units", "filters", "output_dim")
"""Arguments that may be one more."""


def layers(golden, draw, before):
    """Other batch sizes, widths and weights."""
    arrays = {}
    for case in golden["cases"]:
        case["args"] = {key: value + 1 if key in WIDER else value for key, value in case["args"].items()}
        x = before[f"{case['name']}/x"]
        (x,) = draw.rows(len(x) + 1, x) if len(x) > 1 else draw.rows(len(x), x)
        arrays |= {f"{case['name']}/{key}": value for key, value in _layer(case, x, draw).items()}
    return golden, arrays


def _layer(case, x, draw):
    gelu = functools.partial(tf.nn.gelu, approximate=True)
    layer = (
        tf.keras.layers.Activation(gelu)
        if case["cls"] == "gelu_approx"
        else _class(case["cls"])(**case["args"])
    )
    arguments = {"training": case["training"]} if "training" in case else {}
    inputs = tf.constant(x)
    layer(inputs, **arguments)
    names = [weight.name.split("/")[-1].removesuffix(":0") for weight in layer.weights]
    layer.set_weights(
        [
            (draw.positive if "variance" in name else draw.normal)(*weight.shape)
            for name, weight in zip(names, layer.weights, strict=True)
        ]
    )
    found = {f"weight/{name}": weight.numpy() for name, weight in zip(names, layer.weights, strict=True)}
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(inputs)
        y = layer(inputs, **arguments)
        outputs = y if isinstance(y, (list, tuple)) else [y]
        upstream = [draw.normal(*output.shape) for output in outputs]
        total = tf.add_n([tf.reduce_sum(output * dy) for output, dy in zip(outputs, upstream, strict=True)])
    trained = dict(zip(names, layer.weights, strict=True))
    trained = {name: weight for name, weight in trained.items() if weight.trainable}
    for index, (output, dy) in enumerate(zip(outputs, upstream, strict=True)):
        found |= {f"y{index or ''}": output.numpy(), f"dy{index or ''}": dy}
    if not case.get("ids"):
        found["dx"] = tape.gradient(total, inputs).numpy()
    for name, weight in trained.items():
        gradient = tape.gradient(total, weight)
        if isinstance(gradient, tf.IndexedSlices):
            found[f"dweight_slices_values/{name}"] = gradient.values.numpy()
            found[f"dweight_slices_indices/{name}"] = gradient.indices.numpy().astype(np.int32)
        found[f"dweight/{name}"] = tf.convert_to_tensor(gradient).numpy()
    found |= {
        f"after/{name}": weight.numpy()
        for name, weight in zip(names, layer.weights, strict=True)
        if not weight.trainable
    }
    if layer.losses:
        found["regularization_loss"] = tf.add_n(layer.losses).numpy()
    case.update(xshape=list(x.shape), yshape=list(outputs[0].shape), weights=names, trainable=list(trained))
    return found | {"x": x}


def _class(name):
    return getattr(tf.keras.layers, name)


def losses(golden, draw, before):
    """Other examples, one fewer, with other weights and arguments."""
    arrays = {}
    for case in golden["cases"]:
        case["args"] = draw.nudged(case["args"])
        given = {
            what: before[f"{case['name']}/{what}"]
            for what in ("y_true", "y_pred", "w_sample", "w_batch_only")
            if f"{case['name']}/{what}" in before
        }
        given = dict(zip(given, draw.rows(len(given["y_true"]) - 1 or 1, *given.values()), strict=True))
        arrays |= {f"{case['name']}/{what}": value for what, value in given.items()}
        for variant in case["variants"]:
            arrays |= _loss(case, variant, given)
    for case in golden["compute_average_loss"]:
        _average_loss(case, draw)
    return golden, arrays


def _loss(case, variant, given):
    kind = variant["weights"]
    weights = {
        "none": lambda: None,
        "scalar": lambda: 0.3,
        "sample_col": lambda: given["w_sample"][:, np.newaxis],
    }
    weight = weights.get(kind, lambda: given[f"w_{kind}"])()
    loss = getattr(tf.keras.losses, case["loss"])(**case["args"], reduction=variant["reduction"])
    y_pred = tf.constant(given["y_pred"])
    with tf.GradientTape() as tape:
        tape.watch(y_pred)
        value = loss(given["y_true"], y_pred, sample_weight=weight)
        total = tf.reduce_sum(value)
    return {
        f"{variant['key']}/loss": value.numpy(),
        f"{variant['key']}/grad": tape.gradient(total, y_pred).numpy(),
    }


def _average_loss(case, draw):
    found = np.array(case["per_example_loss"])
    if found.dtype == np.float64:
        found = (found * draw.positive(*found.shape)).astype(case.get("dtype", "f4"))
    case["per_example_loss"], losses = (
        plain(found),
        tf.constant(case["per_example_loss"] if found.dtype == np.int64 else found),
    )
    for outcome in ("value", "error"):
        case.pop(outcome, None)
    try:
        value = tf.nn.compute_average_loss(losses, case.get("sample_weight"), case.get("global_batch_size"))
        case["value"] = plain(value)
    except Exception as error:
        case["error"] = error_of(error)


def metrics(golden, draw, _before=None):
    """Other examples in batches of other sizes."""
    for case in golden["cases"]:
        metric = getattr(tf.keras.metrics, case["metric"])(**case["args"])
        for batch in case["batches"]:
            names = [name for name in ("y_true", "y_pred", "sample_weight") if batch[name] is not None]
            given = [np.array(batch[name]) for name in names]
            given = [
                each if np.issubdtype(each.dtype, np.integer) else each.astype("f8").astype("f4")
                for each in given
            ]
            given = dict(
                zip(names, draw.rows(given[0].size and len(np.atleast_1d(given[0])) + 1, *given), strict=True)
            )
            batch.update({name: plain(value) for name, value in given.items()})
            values = [given[name] for name in ("y_true", "y_pred") if name in given]
            metric.update_state(*values, sample_weight=given.get("sample_weight"))
            batch["result"] = plain(metric.result())
        metric.reset_state()
        case["result_after_reset"] = plain(metric.result())
    return golden, {}
