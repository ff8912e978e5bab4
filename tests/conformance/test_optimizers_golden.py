"""Optimizers walk the way that TensorFlow's walked: golden file f (optimizers)."""

import json

import numpy as np
from conformance.golden import at_single_precision, load_json, load_npz
from conformance.left_out import LEFT_OUT
from row_by_row import every_row

from dtrain.learning import optimizers
from dtrain.learning.core.sparse_rows import SparseRows

CASES = {case["id"]: case for case in load_json("f_optimizers.json")["cases"]}
ARRAYS = load_npz("f_optimizers.npz")
STEPS = len(ARRAYS["data/grad_w"])

V1_RULES = {
    "GradientDescentOptimizer": "SGD",
    "MomentumOptimizer": "SGD",
    "AdagradOptimizer": "Adagrad",
    "AdamOptimizer": "Adam",
    "AdadeltaOptimizer": "Adadelta",
    "FtrlOptimizer": "Ftrl",
}
V1_DEFAULTS = {
    "AdagradOptimizer": {"epsilon": 0.0},
    "AdamOptimizer": {"epsilon": 1e-8},
    "AdadeltaOptimizer": {"epsilon": 1e-8},
}
RENAMED_SLOTS = {
    ("SGD", "momentum"): "m",
    ("Adamax", "v"): "u",
    ("RMSprop", "rms"): "velocity",
    ("RMSprop", "mg"): "average_gradient",
    ("Adadelta", "accum"): "accumulated_grad",
    ("Adadelta", "accum_grad"): "accumulated_grad",
    ("Adadelta", "accum_var"): "accumulated_delta_var",
    ("Adadelta", "accum_update"): "accumulated_delta_var",
    ("Ftrl", "accum"): "accumulator",
}


def optimizer_of(case):
    """dtrain's optimizer for a case; those of compat.v1 are the legacy ones with other defaults."""
    api, _, name = case["api"].rpartition(".")
    arguments = dict(case["args"])
    if isinstance(arguments.get("learning_rate"), list):
        schedule, schedule_arguments = arguments["learning_rate"]
        arguments["learning_rate"] = getattr(optimizers.schedules, schedule)(**schedule_arguments)
    if api == "tf.keras.optimizers":
        return getattr(optimizers, name)(**arguments)
    if api == "tf.compat.v1.train":
        arguments = V1_DEFAULTS.get(name, {}) | arguments
        if "use_nesterov" in arguments:
            arguments["nesterov"] = arguments.pop("use_nesterov")
        name = V1_RULES[name]
    return getattr(optimizers.legacy, name)(**arguments)


def gradients_of(case, step):
    gradients = {"w": ARRAYS["data/grad_w"][step]}
    if case["sparse"]:
        return gradients | {
            "e": SparseRows(ARRAYS["data/grad_e_ids"][step], ARRAYS["data/grad_e_values"][step])
        }
    return gradients | {"b": ARRAYS["data/grad_b"][step]}


def expected_slots(case, optimizer):
    """Golden slots as (variable, dtrain's slot name) -> array; counters and scalars, which follow from the
    step, are left out.
    """
    slots = {}
    for key, array in ARRAYS.items():
        if not key.startswith(f"{case['id']}/slot/"):
            continue
        parts = key.split("/")[2:]
        variables = [part for part in parts if part in "wbe"]
        if not variables:
            continue
        slot = next(part for part in reversed(parts) if part not in variables)
        if optimizer.is_legacy_optimizer:
            slot = RENAMED_SLOTS.get((type(optimizer).__name__, slot), slot)
        slots[variables[0], slot] = array
    return slots


TESTED = [key for key, case in CASES.items() if case["api"] not in LEFT_OUT["f_optimizers.json"]]


@every_row("case_id", TESTED)
def test_trajectory_and_slots_agree_with_tensorflow(case_id):
    case = CASES[case_id]
    optimizer = optimizers.from_config(json.loads(json.dumps(optimizers.serialize(optimizer_of(case)))))
    tolerance = {"rtol": 1e-4, "atol": 2e-5 if "Ada" in case["api"] or "Nadam" in case["api"] else 1e-5}
    names = ["w", "e" if case["sparse"] else "b"]
    values = {name: ARRAYS[f"data/init_{name}"].copy() for name in names}
    slots = {name: optimizer.initial_slots(value) for name, value in values.items()}
    for step in range(STEPS):
        optimizer.apply(values, gradients_of(case, step), slots, step)
        for name, value in values.items():
            np.testing.assert_allclose(
                value, ARRAYS[f"{case_id}/{name}"][step + 1], **tolerance, err_msg=f"{name}, step {step}"
            )
    for (name, slot), expected in expected_slots(case, optimizer).items():
        if slot == "m" and isinstance(optimizer, optimizers.SGD) and not optimizer.momentum:
            continue  # Keras writes the step there and never reads it
        found = slots[name][slot]
        if case["api"].startswith("tf.compat.v1") and "Momentum" in case["api"]:
            found = (
                found / -case["args"]["learning_rate"]
            )  # v1 keeps the sum of gradients, Keras that of steps
        np.testing.assert_allclose(found, expected, **tolerance, err_msg=f"slot {slot} of {name}")
    for name, value in values.items():
        optimizer.finalize(value, slots[name])
        expected = ARRAYS.get(f"{case_id}/{name}_after_finalize", value)
        np.testing.assert_allclose(value, expected, **tolerance, err_msg=f"{name} after finalize")


@every_row("case_id", [name for name, case in CASES.items() if case["config"]])
def test_config_agrees_with_keras(case_id):
    case = CASES[case_id]
    found = optimizers.serialize(optimizer_of(case))
    expected = {
        key: value
        for key, value in case["config"].items()
        if key not in ("jit_compile", "is_legacy_optimizer")
    }
    if isinstance(expected["learning_rate"], dict):
        expected["learning_rate"] = {key: expected["learning_rate"][key] for key in ("class_name", "config")}
    answered = {key: found["config"].get(key) for key in expected}
    assert at_single_precision(answered) == at_single_precision(expected)
