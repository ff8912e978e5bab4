"""Synchronous training of N replicas gives TensorFlow's numbers under MirroredStrategy: golden file m1."""

import pickle
from dataclasses import dataclass, field

import numpy as np
import pytest
from conformance.golden import load_json, load_npz
from conformance.left_out import LEFT_OUT
from conformance.on_clusters import cluster_of
from in_memory import InMemoryCluster
from row_by_row import every_row

import dtrain as dt
from dtrain import checkpoints
from dtrain.data.experimental import AutoShardPolicy
from dtrain.runs.files import RunFiles
from dtrain.strategies.single import SingleStrategy

GOLDEN = load_json("m1_mirrored_fit.json")
ARRAYS = load_npz("m1_mirrored_fit.npz")
CASES = {case["id"]: case for case in GOLDEN["cases"]}
NOT_RUN = LEFT_OUT["m1_mirrored_fit.json"]
COMPARED = [name for name in CASES if not any(reason in name for reason in NOT_RUN)]
BATCHES = [extra for extra in GOLDEN["extras"] if extra["op"].startswith("train_on_batch")]


def optimizer_of(case):
    name, arguments = case["optimizer"]
    rate = arguments["learning_rate"]
    if isinstance(rate, list):
        arguments = arguments | {"learning_rate": getattr(dt.optimizers.schedules, rate[0])(**rate[1])}
    return getattr(dt.optimizers, name)(**arguments)


def made(module, named):
    """A loss or a metric: a name, or a class with arguments; None stays."""
    return getattr(module, named[0])(**named[1]) if isinstance(named, list) else named


def losses_of(case):
    loss = case["loss"]
    several = isinstance(loss, list) and len(loss) == len(case.get("heads", ()))
    return [made(dt.losses, each) for each in loss] if several else made(dt.losses, loss)


def model_of(case):
    """The model of a case with its first weights, compiled."""
    inputs = x = dt.Input(tuple(case["input_shape"]))
    for k, (name, given) in enumerate(case["layers"]):
        x = getattr(dt.layers, name)(**given, name=f"l{k}")(x)
    heads = [
        getattr(dt.layers, name)(**arguments, name=f"h{k}")(x)
        for k, (name, arguments) in enumerate(case.get("heads", ()))
    ]
    model = dt.Model(inputs, heads or x)
    metrics = {
        what: [made(dt.metrics, each) for each in case[what]]
        for what in ("metrics", "weighted_metrics")
        if case.get(what)
    }
    model.compile(
        optimizer=optimizer_of(case), loss=losses_of(case), **metrics, **case.get("compile_args", {})
    )
    return model


def weights_of(case, flat):
    """Arrays by the variables' names."""
    ends = np.cumsum([int(np.prod(shape)) for _, shape in case["weights"]])
    return {
        name: part.reshape(shape)
        for (name, shape), part in zip(case["weights"], np.split(flat, ends[:-1]), strict=True)
    }


def give(model, values):
    """Set every variable by its name."""
    assert set(values) == set(model.arrays)
    model.set_weights([values[spec.name] for spec in model.variables])


def flat_weights(case, model):
    return np.concatenate([np.ravel(model.arrays[name]) for name, _ in case["weights"]])


def rows(case, what, selected):
    """Rows of the array, or of the arrays, that a case names."""
    arrays, names = arrays_of(case), case[what]
    return (
        [arrays[f"data/{name}"][selected] for name in names]
        if isinstance(names, list)
        else arrays[f"data/{names}"][selected]
    )


def arrays_of(case):
    """The arrays beside a case; those of this file, unless it brings others."""
    return case.get("arrays", ARRAYS)


def fit_arguments(case):
    """What `fit` is given."""
    count, arguments = slice(case["examples"]), dict(case.get("fit_args", {}))
    if "class_weight" in case:
        arguments["class_weight"] = {int(key): value for key, value in case["class_weight"].items()}
    if "validation_examples" in case:
        last = slice(-case["validation_examples"], None)
        arguments["validation_data"] = rows(case, "x", last), rows(case, "y", last)
    if case.get("feed") == "dataset":
        data = dt.data.Dataset.from_tensor_slices((rows(case, "x", count), rows(case, "y", count)))
        for name, *rest in case["pipeline"]:
            data = getattr(data, name)(*rest)
        if case.get("policy"):
            options = dt.data.Options()
            options.experimental_distribute.auto_shard_policy = AutoShardPolicy[case["policy"]]
            data = data.with_options(options)
        return arguments | {"x": data}
    if "sample_weight" in case:
        arguments["sample_weight"] = rows(case, "sample_weight", count)
    return arguments | {
        "x": rows(case, "x", count),
        "y": rows(case, "y", count),
        "batch_size": case["batch_size"],
    }


@dataclass
class Noted(dt.callbacks.Callback):
    """What a leader's callback sees."""

    case: dict
    weights: list = field(default_factory=list)
    batches: list = field(default_factory=list)
    epochs: list = field(default_factory=list)
    evaluated: list = field(default_factory=list)
    predicted: list = field(default_factory=list)

    def on_epoch_begin(self, epoch, logs=None):
        self.batches.append({})

    def on_train_batch_end(self, batch, logs=None):
        self.batches[-1][batch] = dict(logs)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))
        self.weights.append(flat_weights(self.case, self.model))


def trained(case, model):
    """Train a replica of a case, and evaluate and predict afterwards; returns what the leader has seen."""
    noted = Noted(case)
    give(model, weights_of(case, arrays_of(case)[f"{case['id']}/weights"][0]))
    model.fit(**fit_arguments(case), epochs=case["epochs"], shuffle=False, verbose=0, callbacks=[noted])
    if not model.strategy.is_leader:
        return None
    for each in case["evaluate"]:
        data = {
            what: rows(case, what, slice(each["examples"]))
            for what in ("x", "y", "sample_weight")
            if what in case
        }
        noted.evaluated.append(
            model.evaluate(**data, batch_size=each["batch_size"], verbose=0, return_dict=True)
        )
    for each in case["predict"]:
        noted.predicted.append(
            model.predict(rows(case, "x", slice(each["examples"])), batch_size=each["batch_size"])
        )
    return noted


def tolerance(case):
    """A trajectory's; the README's for optimizers like Adam."""
    return {"rtol": 1e-4, "atol": 2e-5 if "Ada" in case["optimizer"][0] else 1e-5}


def leaves_parts_empty(case):
    """Whether some batch has fewer blocks than there are replicas."""
    size, last = case["batch_size"], case["examples"] % case["batch_size"]
    return any(
        -(-count // -(-count // case["replicas"])) < case["replicas"] for count in (size, last) if count
    )


def compared_weights(case):
    """Which elements of the weights are compared; all, but for the moving values of replicas that had batches
    without examples.

    TensorFlow has a moving value for each replica, of which that of one without examples stays, and shows
    their mean.
    """
    apart = leaves_parts_empty(case)
    return np.repeat(
        [not (apart and "/moving_" in name) for name, _ in case["weights"]],
        [np.prod(s) for _, s in case["weights"]],
    )


def expected_weights(case):
    """Every epoch's; when the last one ends dtrain has overwritten them with their averages, which Keras does
    a moment later.
    """
    expected = arrays_of(case)[f"{case['id']}/weights"][1:]
    if case["optimizer"][1].get("use_ema"):
        averages = {
            path.split("/", 2)[2]: array for path, array in slots_of(case) if path.split("/")[1] == "average"
        }
        assert list(averages) == [name for name, _ in case["weights"]]
        expected[-1] = np.concatenate([array.ravel() for array in averages.values()])
    return expected


def slots_of(case):
    """The paths of the optimizer's slots with their final values."""
    ends = np.cumsum([int(np.prod(shape)) for _, shape in case["slots"]])
    arrays = np.split(arrays_of(case)[f"{case['id']}/slots"], ends[:-1])
    return [(path, array.reshape(shape)) for (path, shape), array in zip(case["slots"], arrays, strict=True)]


def reduction(case):
    loss = case["loss"]
    return loss[1].get("reduction") if isinstance(loss, list) and isinstance(loss[1], dict) else None


def close(case, found, expected, what, *, loss=True):
    """Numbers by name are TensorFlow's; without `loss` the loss is left out."""
    assert list(found) == list(expected), what
    for name, value in expected.items():
        if name == "loss" and not loss:
            continue
        np.testing.assert_allclose(
            found[name], np.float32(value), **tolerance(case), err_msg=f"{what}: {name}"
        )


def agree(case, noted):
    """Weights after each epoch, logs, evaluations and predictions are TensorFlow's."""
    expected, compared = expected_weights(case), compared_weights(case)
    assert len(noted.weights) == len(expected)
    for epoch, weights in enumerate(noted.weights):
        np.testing.assert_allclose(
            weights[compared], expected[epoch][compared], **tolerance(case), err_msg=f"epoch {epoch}"
        )
    whole = reduction(case) != "none"  # there Keras counts every example as often as its block has examples
    for epoch, logs in enumerate(case["epoch_logs"]):
        close(case, noted.epochs[epoch], logs, f"epoch {epoch}", loss=whole)
    for epoch, batches in enumerate(case["batch_logs"]):
        for logs in batches:
            own = {name: value for name, value in logs.items() if name != "batch"}
            number = logs["batch"]
            close(
                case,
                noted.batches[epoch][number],
                own,
                f"epoch {epoch}, batch {number}",
                loss=whole or number == 0,
            )
    if case["replicas"] > 1 and any(name == "BatchNormalization" for name, _ in case["layers"]):
        return  # TensorFlow evaluates on each replica with that replica's own moving values
    for each, found in zip(case["evaluate"], noted.evaluated, strict=True):
        # A batch is evaluated as one block, and Keras's sum is N times the mean of the sums of N blocks.
        close(
            case,
            found,
            each["result"],
            f"evaluate {each['examples']}",
            loss=reduction(case) not in ("sum", "none"),
        )
    for each, found in zip(case["predict"], noted.predicted, strict=True):
        np.testing.assert_allclose(found, np.array(each["result"], np.float32), **tolerance(case))


def agree_in_slots(case, folder):
    """The optimizer's state in the last checkpoint is TensorFlow's."""
    with checkpoints.open_checkpoint(RunFiles(folder).checkpoints) as checkpoint:
        assert checkpoint.step == case["iterations"]
        agree_with_slots(case, lambda variable, slot: checkpoint.read(checkpoints.slot_key(variable, slot)))


def agree_with_slots(case, slot_of):
    """The optimizer's state at the end is TensorFlow's."""
    for path, array in slots_of(case):
        rule, slot, variable = path.split("/", 2)
        if rule == "SGD" and slot == "m" and not case["optimizer"][1].get("momentum"):
            continue  # Keras writes the step there and never reads it
        np.testing.assert_allclose(slot_of(variable, slot), array, **tolerance(case), err_msg=path)


@every_row("name", COMPARED)
def test_fit_evaluate_and_predict_of_n_replicas(name, tmp_path):
    case = CASES[name]
    if case["replicas"] == 1:
        with SingleStrategy().scope():
            agree(case, trained(case, model_of(case)))
        return
    clipped_by_all = "global_clipnorm" in case["optimizer"][1]  # all variables stand on one server
    cluster = InMemoryCluster(tmp_path, case["replicas"], servers=1 if clipped_by_all else 2)
    noted, *_ = cluster.run(lambda: model_of(case), lambda model: trained(case, model))
    agree(case, noted)
    agree_in_slots(case, tmp_path)


def one_batch(extra, model):
    """Train on one batch, and look at it; returns what the leader has seen."""
    batch = [ARRAYS[f"data/{what}"][: extra["examples"]] for what in "xy"]
    give(model, weights_of(extra, np.float32(extra["before"])))
    reported = model.train_on_batch(*batch)
    after = flat_weights(extra, model)
    if not model.strategy.is_leader:
        return None
    return {
        "train_on_batch": reported,
        "after": after,
        "test_on_batch": model.test_on_batch(*batch),
        "predict_on_batch": model.predict_on_batch(batch[0]),
    }


@every_row("extra", BATCHES, ids=lambda extra: f"{extra['examples']} over {extra['replicas']}")
def test_one_batch_of_n_replicas(extra, tmp_path):
    case = extra | {"input_shape": ARRAYS["data/x"].shape[1:], "loss": "mse", "metrics": ["mae"]}
    cluster = InMemoryCluster(tmp_path, extra["replicas"])
    found, *_ = cluster.run(lambda: model_of(case), lambda model: one_batch(extra, model))
    for what, value in found.items():
        np.testing.assert_allclose(value, np.float32(extra[what]), rtol=1e-4, atol=1e-5, err_msg=what)


PROGRAM = """
    import sys
    sys.path.insert(0, {tests!r})
    import pickle
    import dtrain as dt
    from conformance.test_mirrored_fit_golden import CASES, model_of, trained

    case = CASES[sys.argv[1]]
    strategy = dt.get_strategy()
    with strategy.scope():
        model = model_of(case)
    noted = trained(case, model)
    if noted is not None:
        noted.model = noted.params = None
        with open("noted", "wb") as file:
            pickle.dump(noted, file)
"""


def on_clusters():
    """One case a kind that is hardest to get right, each of the most replicas."""
    kinds = ("adam_empty", "two_heads")
    found = {
        kind: name for kind in kinds for name in COMPARED if kind in name and CASES[name]["replicas"] > 1
    }
    return list(found.values())


@pytest.mark.parametrize("name", on_clusters())
def test_fit_on_a_cluster(name, launcher, monkeypatch):
    cluster_of(launcher, monkeypatch, PROGRAM, name, CASES[name]["replicas"], 2, [])
    with (launcher.folder / "noted").open("rb") as file:
        agree(CASES[name], pickle.load(file))
    [run] = (launcher.folder / "runs").iterdir()
    agree_in_slots(CASES[name], run)
