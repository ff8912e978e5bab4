"""Replicas in threads give TensorFlow's numbers: golden files m1, m3 and j by the shipped strategies."""

import numpy as np
import pytest
from conformance import test_end_to_end_golden as tutorial
from conformance import test_mirrored_fit_golden as fits
from conformance.golden import load_json, load_npz
from conformance.left_out import LEFT_OUT
from row_by_row import every_row

import dtrain as dt
from dtrain.config import CentralStorageSection, MirroredSection
from dtrain.strategies.mirrored import CentralStorage, MirroredThreads

CENTRAL = load_json("m3_central_storage.json")
CENTRAL_ARRAYS = load_npz("m3_central_storage.npz")
SERVERS_ONLY = ("batchnorm_sync", "dataset_off")
"""What is left out of m1 on parameter servers alone."""
MIRRORED = [
    case
    for name, case in fits.CASES.items()
    if case["replicas"] > 1 and not any(each in name for each in set(fits.NOT_RUN) - set(SERVERS_ONLY))
]
STORED = [
    case
    for case in CENTRAL["cases"]
    if case["id"].rpartition("_n")[0] not in LEFT_OUT["m3_central_storage.json"]
]
EXTRAS = [extra for extra in fits.GOLDEN["extras"] if extra["op"] not in fits.NOT_RUN]
BATCHES = [extra for extra in EXTRAS if extra["op"].startswith("train_on_batch")]


def named(key):
    return lambda case: str(case[key])


def agrees(strategy, case):
    """A whole run of a case has TensorFlow's numbers."""
    with strategy.scope():
        model = fits.model_of(case)
    fits.agree(case, fits.trained(case, model))
    state = strategy.optimizer_state(model._owner)
    assert state.step == case["iterations"]
    fits.agree_with_slots(case, lambda variable, slot: state.slots[slot][variable])


@every_row("case", MIRRORED, ids=named("id"))
def test_mirrored(case):
    agrees(MirroredThreads(MirroredSection(replicas=case["replicas"])), case)


@every_row("case", STORED, ids=named("id"))
def test_central_storage(case):
    central = CentralStorage(CentralStorageSection(replicas=case["replicas"]))
    agrees(central, case | {"arrays": CENTRAL_ARRAYS})


@every_row("kind", [(MirroredThreads, MirroredSection), (CentralStorage, CentralStorageSection)])
@every_row("name", tutorial.FITTED)
def test_the_tutorial(name, kind):
    strategy, section = kind
    run = tutorial.RUNS[name]
    with strategy(section(replicas=run["replicas"])).scope():
        model = tutorial.tutorial_model(run)
    tutorial.agree_in_fit(run, *tutorial.fitted(run, model))


@every_row("extra", BATCHES, ids=lambda extra: f"{extra['examples']} over {extra['replicas']}")
def test_one_batch(extra):
    case = extra | {"input_shape": fits.ARRAYS["data/x"].shape[1:], "loss": "mse", "metrics": ["mae"]}
    with MirroredThreads(MirroredSection(replicas=extra["replicas"])).scope():
        model = fits.model_of(case)
    for what, value in fits.one_batch(extra, model).items():
        np.testing.assert_allclose(value, np.float32(extra[what]), rtol=1e-4, atol=1e-5, err_msg=what)


def network():
    return dt.Sequential([dt.layers.Dense(1, input_shape=(4,))])


def compiled(strategy, optimizer="sgd"):
    with strategy.scope():
        model = network()
        model.compile(optimizer, "mse")
    return model


def built_outside(mirrored, data):
    model = network()
    with mirrored().scope():
        model.compile("sgd", "mse")


def compiled_outside(mirrored, data):
    with mirrored().scope():
        model = network()
    model.compile("sgd", "mse")
    return model.fit(*data, verbose=0) and "trained"


def optimizer_made_outside(mirrored, data):
    return compiled(mirrored(), dt.optimizers.SGD()).fit(*data, verbose=0) and "trained"


def compiled_in_another_scope(mirrored, data):
    with mirrored().scope():
        model = network()
    with mirrored().scope():
        model.compile("sgd", "mse")


def endless(mirrored, data):
    compiled(mirrored()).fit(dt.data.Dataset.from_tensor_slices(data).batch(4).repeat(), verbose=0)


def without_batch_size(mirrored, data):
    steps = []
    note = dt.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    compiled(mirrored()).fit(*(each[:7] for each in data), callbacks=[note], verbose=0)
    return f"trained, {len(steps)} steps with no batch_size given"


DONE = {
    "model built outside the scope, compiled inside": built_outside,
    "model inside, compile outside": compiled_outside,
    "optimizer made outside the scope": optimizer_made_outside,
    "compiled in the scope of another strategy": compiled_in_another_scope,
    "endless dataset without steps_per_epoch": endless,
    "fit without batch_size on 7 examples": without_batch_size,
}
ERRORS = {"ValueError": ValueError, "RuntimeError": RuntimeError}


@every_row(
    "extra",
    [extra for extra in EXTRAS if extra not in BATCHES],
    ids=lambda extra: f"{extra['op']} {extra['replicas']}",
)
def test_what_is_made_outside_the_scope(extra):
    chance = np.random.default_rng(0)
    data = chance.normal(size=(16, 4)).astype(np.float32), chance.normal(size=(16, 1)).astype(np.float32)

    def mirrored():
        return MirroredThreads(MirroredSection(replicas=extra["replicas"]))

    if "error" in extra:
        with pytest.raises(ERRORS[extra["error"]["class"]]):
            DONE[extra["op"]](mirrored, data)
    else:
        assert DONE[extra["op"]](mirrored, data) == extra["value"]
