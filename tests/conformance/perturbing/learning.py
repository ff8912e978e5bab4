"""Schedules, clipping and optimizers of file f."""

import numpy as np
import tensorflow as tf
from conformance.perturbing.values import array_of, plain

STEPS = 5
SHAPES = {"w": (2, 4), "b": (4,), "e": (5, 2)}
IDS = 3


def schedules(golden, draw):
    """Other rates at other steps."""
    for case in golden["cases"]:
        case["args"] = draw.nudged(case["args"])
        schedule = getattr(tf.keras.optimizers.schedules, case["schedule"])(**case["args"])
        case["steps"] = sorted({*case["steps"][::5], 17, 250})
        case["values"] = [plain(schedule(step)) for step in case["steps"]]
    return golden, {}


def clipping(golden, draw):
    """Other gradients, clipped at other limits."""
    for case in golden["cases"]:
        case["clip"] = draw.nudged(case["clip"])
        case["grads"] = [
            None if each is None else plain(array_of(each) * draw.positive()) for each in case["grads"]
        ]
        dense = [None if each is None else tf.constant(array_of(each)) for each in case["grads"]]
        if "ids" in case:
            case["ids"] = [5, 2, 5]
            dense[0] = tf.IndexedSlices(dense[0], tf.constant(case["ids"]), dense_shape=(6, 2))
        clipped, norm = tf.clip_by_global_norm(dense, case["clip"])
        case["global_norm"] = plain(norm)
        if "ids" in case:
            case["clip_by_global_norm_values"], case["second"] = plain(clipped[0].values), plain(clipped[1])
            continue
        case["clip_by_global_norm"] = plain(clipped)
        limit = case["clip"]
        case["clip_by_norm"] = [
            None if each is None else plain(tf.clip_by_norm(each, limit)) for each in dense
        ]
        case["clip_by_value"] = [
            None if each is None else plain(tf.clip_by_value(each, -limit, limit)) for each in dense
        ]
    return golden, {}


def optimizers(golden, draw):
    """Other shapes, gradients and rates, fewer steps. An optimizer's arguments keep their names."""
    arrays = {f"data/init_{name}": draw.normal(*shape) for name, shape in SHAPES.items()}
    arrays |= {f"data/grad_{name}": draw.normal(STEPS, *SHAPES[name]) for name in "wb"}
    arrays["data/grad_e_ids"] = draw.integers(SHAPES["e"][0], STEPS, IDS)
    arrays["data/grad_e_values"] = draw.normal(STEPS, IDS, *SHAPES["e"][1:])
    for case in golden["cases"]:
        case["args"] = draw.nudged(case["args"])
        arrays |= _trajectory(case, arrays)
    return golden, arrays


def _trajectory(case, data):
    optimizer = _optimizer(case)
    names = ["w", "e" if case["sparse"] else "b"]
    variables = {name: tf.Variable(data[f"data/init_{name}"], name=name) for name in names}
    if hasattr(optimizer, "build"):
        optimizer.build(list(variables.values()))
    walked = {name: [variable.numpy()] for name, variable in variables.items()}
    for step in range(STEPS):
        gradients = [tf.constant(data["data/grad_w"][step])]
        if case["sparse"]:
            values, ids = (data[f"data/grad_e_{what}"][step] for what in ("values", "ids"))
            gradients.append(
                tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant(SHAPES["e"], tf.int64))
            )
        else:
            gradients.append(tf.constant(data["data/grad_b"][step]))
        optimizer.apply_gradients(zip(gradients, variables.values(), strict=True))
        for name, variable in variables.items():
            walked[name].append(variable.numpy())
    found = {name: np.array(values) for name, values in walked.items()}
    slots = dict(_slots(optimizer, variables))
    case["slots"] = sorted(slots)
    found |= {f"slot/{name}": value for name, value in slots.items()}
    if case["args"].get("use_ema"):
        optimizer.finalize_variable_values(list(variables.values()))
        found |= {f"{name}_after_finalize": variable.numpy() for name, variable in variables.items()}
    if case["config"]:
        case["config"] = _config(optimizer.get_config())
    return {f"{case['id']}/{name}": value for name, value in found.items()}


def _optimizer(case):
    arguments = dict(case["args"])
    if isinstance(arguments.get("learning_rate"), list):
        schedule, schedule_arguments = arguments["learning_rate"]
        arguments["learning_rate"] = getattr(tf.keras.optimizers.schedules, schedule)(**schedule_arguments)
    made = tf
    for part in case["api"].split(".")[1:]:
        made = getattr(made, part)
    return made(**arguments)


def _slots(optimizer, variables):
    """Each slot's name in the files and its value."""
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        for slot in optimizer.get_slot_names():
            for name, variable in variables.items():
                yield f"{name}/{slot}", optimizer.get_slot(variable, slot).numpy()
        return
    legacy = isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer)
    for variable in optimizer.weights if legacy else optimizer.variables:
        name = variable.name.removesuffix(":0")
        if not legacy:
            name = name.removeprefix(f"{optimizer.name}/")
        if name not in ("learning_rate", "current_learning_rate"):
            yield name, variable.numpy()


def _config(config):
    """With every float that Keras keeps as float32 written in full, which is float64's view of it."""
    if isinstance(config, dict):
        return {key: _config(value) for key, value in config.items()}
    return float(config) if isinstance(config, np.floating) else config
