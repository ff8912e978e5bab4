"""`Model.fit` over mirrored replicas: file m1."""

import numpy as np
import tensorflow as tf
from conformance.perturbing.distribution import mirrored
from conformance.perturbing.values import error_of, plain

WIDTH = 5
"""How many features `data/x` has."""
MORE = 1
"""A batch has so many examples more, and a hidden layer so many units."""


def fits(golden, draw, before):
    """Other data, weights, rates, batch sizes and widths. What is not a whole `fit` (`extras`) is left
    out.
    """
    data = {key.removeprefix("data/"): value for key, value in before.items() if key.startswith("data/")}
    data = dict(zip(data, draw.rows(len(data["x"]), *data.values()), strict=True))
    data["x"] = draw.normal(len(data["x"]), WIDTH)
    arrays = {f"data/{name}": value for name, value in data.items()}
    golden["extras"] = []
    for case in golden["cases"]:
        _perturb(case, draw)
        arrays |= {f"{case['id']}/{name}": value for name, value in train(case, data, draw).items()}
    return golden, arrays


def _perturb(case, draw):
    if case["x"] == "x":
        case["input_shape"] = [WIDTH]
    case["optimizer"], case["batch_size"] = draw.nudged(case["optimizer"]), case["batch_size"] + MORE
    for op in case.get("pipeline", []):
        if op[0] == "batch":
            op[1] += MORE
    hidden = case["layers"] if "heads" in case else case["layers"][:-1]
    for _, arguments in hidden:
        if "units" in arguments:
            arguments["units"] += MORE
        if "activity_regularizer" in arguments:
            arguments["activity_regularizer"] = draw.nudged(arguments["activity_regularizer"])
    for asked in (*case.get("evaluate", []), *case.get("predict", [])):
        asked["batch_size"] += MORE


def train(case, data, draw, initial=None):
    """Do what a case says, and note in it what came out; return its arrays. Weights are drawn where `initial`
    has none.
    """
    strategy = mirrored(case["replicas"]) if case["replicas"] > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        model = _model(case)
        arguments = {"metrics": _made(case["metrics"], "metrics"), **case.get("compile_args", {})}
        if case.get("weighted_metrics"):
            arguments["weighted_metrics"] = _made(case["weighted_metrics"], "metrics")
        model.compile(optimizer=_optimizer(case), loss=_losses(case), **arguments)
    weights = _weights(model)
    case["weights"] = [[name, list(weight.shape)] for name, weight in weights.items()]
    case["trainable"] = [name for name, weight in weights.items() if weight.trainable]
    for name, value in (initial or _drawn(weights, draw)).items():
        weights[name].assign(value)
    notes = _Notes(weights)
    for outcome in ("error", "epoch_logs", "iterations"):
        case.pop(outcome, None)
    try:
        model.fit(
            *_fed(case, data),
            epochs=case["epochs"],
            shuffle=False,
            verbose=0,
            callbacks=[notes],
            **_fit_arguments(case, data),
        )
    except Exception as error:
        case["error"], case["batch_logs"] = error_of(error), plain(notes.batches)
        case["slots"] = _slots(model.optimizer)[0]
        return {"weights": np.array(notes.walked)}
    case.update(
        epoch_logs=plain(notes.epochs),
        batch_logs=plain(notes.batches),
        iterations=plain(model.optimizer.iterations),
    )
    case["slots"], slots = _slots(model.optimizer)
    for asked in case["evaluate"]:
        weights = (
            {"sample_weight": data[case["sample_weight"]][: asked["examples"]]}
            if "sample_weight" in case
            else {}
        )
        asking = {"batch_size": asked["batch_size"], "verbose": 0, "return_dict": True, **weights}
        asked["result"] = plain(model.evaluate(*_rows(case, data, asked["examples"]), **asking))
    for asked in case["predict"]:
        found = model.predict(data[case["x"]][: asked["examples"]], batch_size=asked["batch_size"], verbose=0)
        asked["result"] = plain(found)
    return {"weights": np.array(notes.walked), "slots": _joined(slots)}


def _slots(optimizer):
    """Names and shapes of what an optimizer keeps, and the variables."""
    named = {variable.name.removesuffix(":0"): variable for variable in optimizer.variables}
    slots = {
        name: slot
        for name, slot in named.items()
        if name not in ("iteration", "learning_rate", "current_learning_rate")
    }
    return [[name, list(slot.shape)] for name, slot in slots.items()], slots


class _Notes(tf.keras.callbacks.Callback):
    """What a callback sees."""

    def __init__(self, weights):
        super().__init__()
        self._weights = weights
        self.walked, self.batches, self.epochs = [_joined(weights)], [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.batches.append([])

    def on_train_batch_end(self, batch, logs=None):
        self.batches[-1].append({"batch": batch, **logs})

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))
        self.walked.append(_joined(self._weights))


def _joined(variables):
    return np.concatenate(
        [np.ravel(tf.convert_to_tensor(variable).numpy()) for variable in variables.values()]
        or [np.zeros(0, "f4")]
    )


def _layer(spec, name):
    kind, arguments = spec
    return getattr(tf.keras.layers, kind)(**arguments, name=name)


def _model(case):
    inputs = y = tf.keras.Input(case["input_shape"])
    for index, spec in enumerate(case["layers"]):
        y = _layer(spec, f"l{index}")(y)
    if "heads" in case:
        y = [_layer(spec, f"h{index}")(y) for index, spec in enumerate(case["heads"])]
    return tf.keras.Model(inputs, y)


def _weights(model):
    """In the order of the layers."""
    return {weight.name.removesuffix(":0"): weight for layer in model.layers for weight in layer.weights}


def _drawn(weights, draw):
    return {
        n: (draw.positive if "variance" in n else draw.normal)(*weight.shape) for n, weight in weights.items()
    }


def _optimizer(case):
    name, arguments = case["optimizer"]
    arguments = dict(arguments)
    if isinstance(arguments["learning_rate"], list):
        schedule, schedule_arguments = arguments["learning_rate"]
        arguments["learning_rate"] = getattr(tf.keras.optimizers.schedules, schedule)(**schedule_arguments)
    return getattr(tf.keras.optimizers, name)(**arguments)


def _made(specs, room):
    """Names stay; ``[class, arguments]`` becomes an object."""
    return specs and [
        each if isinstance(each, str) else getattr(getattr(tf.keras, room), each[0])(**each[1])
        for each in specs
    ]


def _losses(case):
    if "heads" in case:
        return _made(case["loss"], "losses")
    return _made([case["loss"]], "losses")[0]


def _rows(case, data, count):
    """The first examples and their labels."""
    y = [data[name][:count] for name in case["y"]] if isinstance(case["y"], list) else data[case["y"]][:count]
    return data[case["x"]][:count], y


def _fed(case, data):
    x, y = _rows(case, data, case["examples"])
    if case.get("feed") != "dataset":
        return x, y
    pipeline = tf.data.Dataset.from_tensor_slices((x, y))
    for op, *arguments in case["pipeline"]:
        pipeline = getattr(pipeline, op)(*arguments)
    if case.get("policy"):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = getattr(
            tf.data.experimental.AutoShardPolicy, case["policy"]
        )
        pipeline = pipeline.with_options(options)
    return (pipeline,)


def _fit_arguments(case, data):
    arguments = dict(case.get("fit_args", {}))
    if case.get("feed") != "dataset":
        arguments["batch_size"] = case["batch_size"]
    if "sample_weight" in case:
        arguments["sample_weight"] = data[case["sample_weight"]][: case["examples"]]
    if "class_weight" in case:
        arguments["class_weight"] = {int(label): weight for label, weight in case["class_weight"].items()}
    if "validation_examples" in case:
        last = -case["validation_examples"]
        arguments["validation_data"] = (data[case["x"]][last:], data[case["y"]][last:])
    return arguments
