"""Batch sizes of replicas, partitioners, and what replicas compute: files c, d and h2."""

import numpy as np
import tensorflow as tf
from conformance.perturbing.values import error_of, plain


def mirrored(replicas):
    """TensorFlow's strategy over so many logical CPUs, of which `perturb.py` makes enough."""
    devices = [f"CPU:{index}" for index in range(replicas)]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())


def input_contexts(golden, draw):
    """Other numbers of pipelines, replicas and examples."""
    for case in golden["cases"]:
        case["num_input_pipelines"] += 3
        case["num_replicas_in_sync"] += 1
        case["global_batch_size"] += 5
        fields = ("num_input_pipelines", "input_pipeline_id", "num_replicas_in_sync")
        context = tf.distribute.InputContext(**{field: case[field] for field in fields})
        case["str"] = str(context)
        case.pop("per_replica", None), case.pop("error", None)
        try:
            case["per_replica"] = context.get_per_replica_batch_size(case["global_batch_size"])
        except ValueError as error:
            case["error"] = error_of(error)
    return golden, {}


def partitioners(golden, draw):
    """Other shapes, dtypes and sizes for the partitioners; sharded variables stay."""
    dtypes = {"float16": tf.bfloat16, "bool": tf.complex64, "int64": tf.uint32}
    for case in golden["partitioners"]:
        case["shape"] = [size + 2 if size else size for size in case["shape"]]
        dtype = dtypes.get(case["dtype"], tf.as_dtype(case["dtype"]))
        case["dtype"] = dtype.name
        case["args"] = {
            key: value + 1 if value and value > 0 else value for key, value in case["args"].items()
        }
        case.pop("partitions", None), case.pop("error", None)
        try:
            made = getattr(tf.distribute.experimental.partitioners, case["class"])(**case["args"])
            case["partitions"] = plain(made(tf.TensorShape(case["shape"]), dtype, axis=case["axis"]))
        except Exception as error:
            case["error"] = error_of(error)
    return golden, {}


def strategies(golden, draw):
    """Other examples in each replica, other losses and rates; what dtrain leaves out is left out here too."""
    kept = []
    for case in golden["cases"]:
        compute = next((each for op, each in OPERATIONS.items() if case["op"].startswith(op)), None)
        if compute is None:
            continue
        for what in ("value", "error"):
            case.pop(what, None)
        if "per_replica" in case:
            sizes = [len(each) + 1 if each else 0 for each in case["per_replica"]]
            case["per_replica"] = [plain(draw.normal(size)) for size in sizes]
        try:
            case["value"] = compute(
                case,
                mirrored(case["replicas"]),
                [np.array(each, "f4") for each in case.get("per_replica", [])],
            )
        except Exception as error:
            case["error"] = error_of(error)
        kept.append(case)
    golden["cases"] = kept
    return golden, {}


def _in_each(strategy, work, inputs):
    """What each replica makes of its own input."""
    if not inputs:
        return plain(strategy.experimental_local_results(strategy.run(work)))
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(inputs[context.replica_id_in_sync_group])
    )
    return plain(
        [each.numpy() for each in strategy.experimental_local_results(strategy.run(work, (values,)))]
    )


def _average(case, strategy, inputs):
    size = case["global_batch_size"]
    return _in_each(strategy, lambda x: tf.nn.compute_average_loss(x, global_batch_size=size), inputs)


def _regularization(case, strategy, inputs):
    case["loss"] *= 1.5
    return _in_each(strategy, lambda: tf.nn.scale_regularization_loss(case["loss"]), inputs)


def _keras(case, strategy, inputs):
    loss = tf.keras.losses.MeanSquaredError(reduction=case["reduction"])
    return _in_each(strategy, lambda x: loss(tf.zeros_like(x)[:, None], x[:, None]), inputs)


def _sgd(case, strategy, inputs):
    start, rate = [2.0, -1.0, 0.5], 0.07
    case["op"] = case["op"].replace("SGD(0.1", f"SGD({rate}").replace("x[:2] to [1,2]", "x[:3] to [2,-1,0.5]")
    with strategy.scope():
        variable = tf.Variable(start)
        optimizer = tf.keras.optimizers.SGD(rate, **case.get("clip", {}))
        optimizer.build([variable])
    skip = {"skip_gradients_aggregation": True} if case.get("skip_gradients_aggregation") else {}
    _in_each(strategy, lambda x: optimizer.apply_gradients([(x[:3], variable)], **skip) or x, inputs)
    return plain([each.numpy() for each in strategy.experimental_local_results(variable)])


OPERATIONS = {
    "strategy.run(tf.nn.compute_average_loss)": _average,
    "strategy.run(tf.nn.scale_regularization_loss)": _regularization,
    "Keras MeanSquaredError": _keras,
    "SGD(0.1": _sgd,
}
