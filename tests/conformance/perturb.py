"""Make a copy of the golden files with other shapes, weights, rates and seeds, computed by TensorFlow.

    TENSORFLOW_PYTHON tests/conformance/perturb.py SEED FOLDER [FILE...]

with a Python that has tensorflow-cpu 2.15.1, keras 2.15.0 and numpy 1.26.4 (`pip install` into an environment
of its own; dtrain is not needed there). Then ``DTRAIN_GOLDEN=FOLDER pytest tests/conformance`` shows whether
a test follows the files or knows their contents. ``--small`` keeps a case of each kind:
tests/golden/perturbed was made by ``perturb.py 7 tests/golden/perturbed --small``.

Inputs are drawn anew, and every expectation is computed by TensorFlow from them. Files that are not listed in
`FILES` are copied: what they hold are names and places, which follow from no numbers.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden"
FILES = {
    "c_input_context": "distribution.input_contexts",
    "d_partitioners": "distribution.partitioners",
    "f_schedules": "learning.schedules",
    "f_clipping": "learning.clipping",
    "f_optimizers": "learning.optimizers",
    "g_layers": "layers.layers",
    "h_losses": "layers.losses",
    "h2_strategy": "distribution.strategies",
    "i_metrics": "layers.metrics",
    "j_end_to_end": "training.trainings",
    "k_examples": "records.records",
    "m1_mirrored_fit": "fits.fits",
}
NOT_SMALL = ("m1_mirrored_fit",)
ARRAYS = {"j_end_to_end": "j_classifier"}
"""The npz files that have another name than their JSON."""
NEEDS_ARRAYS = ("g_layers", "h_losses", "m1_mirrored_fit")
REPLICAS = 4
KINDS = {
    "c_input_context": lambda case: (case["num_replicas_in_sync"], "error" in case),
    "d_partitioners": lambda case: (case["class"], case["dtype"], "error" in case),
    "f_clipping": lambda case: case["case"],
    "f_optimizers": lambda case: (
        case["api"],
        isinstance(case["args"].get("learning_rate"), list),
        "use_ema" in case["args"],
        case["sparse"] and case["api"] in ("tf.keras.optimizers.Adam", "tf.keras.optimizers.Adagrad"),
    ),
    "g_layers": lambda case: (case["cls"], case.get("training"), "kernel_regularizer" in case["args"]),
    "h_losses": lambda case: case["loss"],
    "i_metrics": lambda case: (case["metric"], case["weighted"] and case["metric"] == "AUC"),
    "j_end_to_end": lambda case: (case["optimizer"][0], case["replicas"], case["driver"][:6], case["data"]),
}
LISTS = {"d_partitioners": "partitioners", "j_end_to_end": "runs"}
MOST_VARIANTS = 2
MOST_BATCHES = 2


def one_of_each(cases, kind):
    """The first case of each kind."""
    found = {}
    for case in cases:
        found.setdefault(kind(case), case)
    return list(found.values())


def smaller(name, golden):
    """The same file with one case of each kind."""
    if name not in KINDS:
        return golden
    key = LISTS.get(name, "cases")
    golden[key] = one_of_each(golden[key], KINDS[name])
    for case in golden[key]:
        if "variants" in case:
            case["variants"] = case["variants"][:: -(-len(case["variants"]) // MOST_VARIANTS)]
        if "batches" in case:
            case["batches"] = case["batches"][:MOST_BATCHES]
    if "classifiers" in golden:
        golden["classifiers"] = one_of_each(
            golden["classifiers"], lambda case: (case["architecture"], case["replicas"])
        )
    return golden


def function_of(path):
    """The function of `conformance/perturbing` that perturbs a file."""
    module, _, name = path.partition(".")
    return getattr(__import__(f"conformance.perturbing.{module}", fromlist=[name]), name)


def main():
    """Write the copy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "files", nargs="*", help=f"of {', '.join(FILES)} (default: all, and all others are copied)"
    )
    parser.add_argument("--small", action="store_true", help="keep one case of each kind, and copy nothing")
    args = parser.parse_args()
    os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    sys.path.insert(0, str(TESTS))
    import tensorflow as tf
    from conformance.perturbing.values import Draw

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * REPLICAS)
    if not args.small and not args.files:
        shutil.copytree(GOLDEN, args.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("perturbed"))
    args.folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(args.files or FILES):
        if args.small and name in NOT_SMALL:
            continue
        golden = json.loads((GOLDEN / f"{name}.json").read_text())
        golden = smaller(name, golden) if args.small else golden
        more = []
        if name in NEEDS_ARRAYS:
            with np.load(GOLDEN / f"{name}.npz") as arrays:
                more.append({key: arrays[key] for key in arrays.files})
        if name == "k_examples":
            more.append(args.folder)
        made, arrays = function_of(FILES[name])(golden, Draw([args.seed, number]), *more)
        made["meta"] |= {"perturbed_from": f"{name}.json", "seed": args.seed}
        (args.folder / f"{name}.json").write_text(json.dumps(made, separators=(",", ":")))
        if arrays:
            np.savez_compressed(args.folder / f"{ARRAYS.get(name, name)}.npz", **arrays)
        print(name, flush=True)


if __name__ == "__main__":
    main()
