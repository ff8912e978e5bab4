"""A coordinator in one process: what closures compute, which functions are refused, and what of data travels."""

import contextlib
import functools
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from weakref import WeakValueDictionary

import numpy as np
import pytest
from row_by_row import every_row

import dtrain as dt
from dtrain.distribute.coordinator import ClusterCoordinator
from dtrain.errors import ClosureError, InputError, NotAFunctionError, OutOfRangeError, ProgramError
from dtrain.formats.plain_data import Reference, decode
from dtrain.strategies.coordinator.closures import Execution, ProgramNames, encode
from dtrain.strategies.single import SingleStrategy

X = np.random.default_rng(0).normal(size=(96, 3)).astype(np.float32)
Y = X.sum(1, keepdims=True)
BATCHES = [(X[start : start + 16], Y[start : start + 16]) for start in range(0, 96, 16)]
PROGRAM = {}
"""What the closures below use; a program has it at module level."""
momentum = dt.optimizers.SGD(0.1, momentum=0.9)


@pytest.fixture(autouse=True)
def program(monkeypatch):
    """This file is the program, and not pytest's: a worker has its functions."""
    main = ModuleType("__main__")
    main.__dict__.update(__file__=__file__, getoutput=subprocess.getoutput, count=count)
    monkeypatch.setitem(sys.modules, "__main__", main)


def network():
    model = dt.Sequential(
        [
            dt.layers.Dense(4, activation="relu", input_shape=(3,), kernel_regularizer="l2"),
            dt.layers.BatchNormalization(),
            dt.layers.Dense(1),
        ]
    )
    model.compile(dt.optimizers.Adam(0.01, clipnorm=0.5), "mse", metrics=["mae"])
    return model


@pytest.fixture
def coordinator(monkeypatch):
    """A coordinator, and a model in `PROGRAM`."""
    monkeypatch.setattr(
        "dtrain.strategies.shared._registered", WeakValueDictionary()
    )  # other tests' models are not this program's
    strategy = SingleStrategy()
    with strategy.scope():
        PROGRAM["model"] = network()
        PROGRAM["count"] = dt.Variable(np.int64(0), dtype=np.int64)
    coordinator = ClusterCoordinator(strategy)
    yield coordinator
    strategy.close()
    PROGRAM.clear()


def train(number):
    return PROGRAM["model"].train_on_batch(*BATCHES[number])


def train_by_hand(number):
    model = PROGRAM["model"]
    value, gradients = model.value_and_gradients("mse", *BATCHES[number])
    momentum.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return float(value)


def weights():
    return PROGRAM["model"].get_weights()


def end_of_data():
    return next(iter([]))


class OwnError(Exception):
    pass


def own_error():
    raise OwnError("of the program")


def key_error():
    raise KeyError("a key")


def returns_an_object():
    return object()


def count():
    return int(PROGRAM["count"].assign_add(np.int64(1)).numpy())


def test_steps_in_closures_are_those_of_one_process(coordinator):
    before = PROGRAM["model"].get_weights()
    results = [coordinator.schedule(train, args=(number,)) for number in range(6)]
    coordinator.join()
    with SingleStrategy().scope():
        alone = network()
        alone.set_weights(before)
    expected = [alone.train_on_batch(*batch) for batch in BATCHES]
    np.testing.assert_allclose(coordinator.fetch(results), expected, rtol=1e-6)
    for ours, theirs in zip(PROGRAM["model"].get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert int(PROGRAM["model"].optimizer.iterations) == 6


def test_loops_of_ones_own_in_closures_are_those_of_one_process(coordinator):
    other = SingleStrategy()
    with other.scope():
        alone = network()
        alone.set_weights(PROGRAM["model"].get_weights())
        rule = dt.optimizers.SGD(0.1, momentum=0.9)
        expected = []
        for batch in BATCHES:
            value, gradients = alone.value_and_gradients("mse", *batch)
            rule.apply_gradients(zip(gradients, alone.trainable_variables, strict=True))
            expected.append(float(value))
    results = [coordinator.schedule(train_by_hand, args=(number,)) for number in range(6)]
    np.testing.assert_allclose(coordinator.fetch(results), expected, rtol=1e-5)
    for ours, theirs in zip(PROGRAM["model"].get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_weights_that_the_chief_sets_are_those_of_the_next_closure(coordinator, tmp_path):
    model = PROGRAM["model"]
    assert coordinator.done()
    new = [np.full_like(value, 0.5) for value in model.get_weights()]
    model.set_weights(new)
    found = coordinator.fetch(coordinator.schedule(weights))
    assert all(np.array_equal(one, two) for one, two in zip(found, new, strict=True))
    coordinator.fetch(coordinator.schedule(train, args=(0,)))
    model.save(tmp_path / "model")
    loaded = dt.load_model(tmp_path / "model")
    assert all(
        np.array_equal(one, two) for one, two in zip(loaded.get_weights(), model.get_weights(), strict=True)
    )


def test_fit_of_a_cluster_and_changes_of_iterations_are_refused(coordinator):
    assert coordinator.done()
    with pytest.raises(NotImplementedError, match="iterations are counted by the parameter servers"):
        PROGRAM["model"].optimizer.iterations.assign(3)


def test_models_that_share_layers_are_refused():
    strategy = SingleStrategy()
    with strategy.scope():
        inputs = dt.Input((3,))
        hidden = dt.layers.Dense(2)(inputs)
        models = dt.Model(inputs, hidden), dt.Model(inputs, dt.layers.Dense(1)(hidden))
        for model in models:
            model.arrays  # noqa: B018
    with pytest.raises(ProgramError, match="shares layers with"):
        ClusterCoordinator(strategy).done()
    del models


def test_exceptions_keep_their_class_if_the_coordinator_has_it_too(coordinator):
    for function, kind, text in (
        (end_of_data, OutOfRangeError, "at its end"),
        (own_error, ClosureError, "has ended with OwnError: of the program"),
        (key_error, KeyError, "a key"),
        (returns_an_object, InputError, "the result of returns_an_object: expected numbers"),
    ):
        with pytest.raises(kind, match=re.escape(text)) as raised:
            coordinator.schedule(function).fetch()
        assert "Traceback" in raised.value.__notes__[0]
        with pytest.raises(kind):
            coordinator.join()


def test_a_closure_that_fails_while_another_one_is_scheduled_is_raised(coordinator, monkeypatch):
    """The first one ends after `schedule` was called, and before the closure is in the queue."""
    first = coordinator.schedule(leave)

    def encoded_late(*given):
        with pytest.raises(ProgramError):
            first.fetch()
        return encode(*given)

    monkeypatch.setattr("dtrain.strategies.coordinator.closures.encode", encoded_late)
    with pytest.raises(ProgramError, match=r"leave called sys\.exit"):
        coordinator.schedule(train, args=(0,))


def leave():
    sys.exit(3)


@pytest.mark.timeout(30)
def test_a_closure_that_leaves_the_program_has_failed(coordinator):
    """Its worker goes on: another one would only leave, too."""
    coordinator.schedule(leave)
    with pytest.raises(ProgramError, match=r"leave called sys\.exit\(3\)"):
        coordinator.join()
    result = coordinator.schedule(train, args=(0,))
    coordinator.join()
    assert result.fetch() is not None


def test_a_closure_counts_once_in_one_process(coordinator):
    results = [coordinator.schedule(count) for _ in range(50)]
    assert coordinator.fetch(results) == list(range(1, 51))


# Functions


class Methods:
    def method(self):
        return 1

    @staticmethod
    def static():
        return 1


def outer():
    value = 1

    def inner():
        return value

    return inner


def later():
    return 1


REFUSED = [
    (lambda: 1, "has no name"),
    (outer(), "outer.<locals>.inner .*test_coordinator.py:\\d+\\) is defined inside another function"),
    (Methods().method, "methods, partials"),
    (functools.partial(count), "methods, partials"),
    (len, "expected a function that is defined in a module"),
    (5, "expected a function that is defined in a module, found 5"),
]


@pytest.mark.parametrize(("function", "text"), REFUSED, ids=range(len(REFUSED)))
def test_functions_that_workers_cannot_find_are_refused_by_name_and_line(function, text):
    with pytest.raises(NotAFunctionError, match=text) as raised:
        ProgramNames().of_function(function, "schedule")
    assert isinstance(raised.value, TypeError)


def test_a_function_that_was_defined_later_is_refused_by_its_line(monkeypatch):
    names = ProgramNames()
    assert names.of_function(later, "schedule") == (__name__, "later")
    assert names.of_function(Methods.static, "schedule") == (__name__, "Methods.static")
    line = later.__code__.co_firstlineno
    monkeypatch.setitem(globals(), "later", outer)
    with pytest.raises(NotAFunctionError, match=f"later .*test_coordinator.py:{line}\\) was defined after"):
        names.of_function(LATER, "schedule")


LATER = later


def test_names_that_are_received_find_functions_of_the_program_alone():
    names = ProgramNames()
    for module, name in (("os", "no_such"), ("no_such_module", "f"), (__name__, "outer.__globals__")):
        with pytest.raises(ProgramError, match="this task's program has no"):
            names.find(module, name)


STRANGE = [
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("os", "system"),
    ("os", "popen"),
    ("posixpath", "join"),
    ("subprocess", "getoutput"),
    ("subprocess", "Popen"),
    ("numpy", "load"),
    ("runpy", "run_path"),
    ("dtrain", "load_model"),
    ("__main__", "getoutput"),
    ("__main__", "count"),
    (__name__, "subprocess.getoutput"),
    (__name__, "spec_from_file_location"),
    (__name__, "network.__globals__"),
    (__name__, "np.load"),
    (__name__, "OwnError.with_traceback"),
]
"""Names of functions that are defined elsewhere, also if the program has imported them."""


@pytest.mark.parametrize(("module", "name"), STRANGE, ids=map(".".join, STRANGE))
def test_a_function_that_is_defined_elsewhere_is_not_run_under_any_name(monkeypatch, module, name):
    monkeypatch.chdir("/")  # Python's frozen modules have files without a folder
    names = ProgramNames()
    with pytest.raises(ProgramError, match=r"may not be run as a closure|this task's program has no"):
        names.find(module, name)
    with pytest.raises(ProgramError, match=r"may not be run as a closure|this task's program has no"):
        Execution(names).resolve(Reference((0, 0, module, name, True)))


@pytest.mark.parametrize(("module", "name"), [("os", "environ"), ("sys", "argv"), (__name__, "BATCHES")])
def test_only_a_dataset_is_a_dataset_for_closures(module, name):
    with pytest.raises(InputError, match=f"expected a dataset from {name}, found NoneType"):
        Execution(ProgramNames()).resolve(Reference((0, 0, module, name, False)))


def test_of_datasets_that_have_a_name_the_named_one_is_taken():
    iterator = Execution(ProgramNames()).resolve(Reference((0, 0, __name__, "NUMBERS", False)))
    assert list(iterator) == [0, 1, 2]


NUMBERS = dt.data.Dataset.range(3)


def imported(monkeypatch, folder, name, marked=False):
    """A module in a file below a folder, which the program has imported."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = "import dtrain as dt\n@dt.distribute.coordinator.closure\n" if marked else ""
    (folder / f"{name}.py").write_text(f"{mark}def step():\n    return 7\n")
    spec = spec_from_file_location(name, folder / f"{name}.py")
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module.step


@pytest.mark.parametrize(
    ("folder", "marked", "own"),
    [
        ("project", False, True),
        ("project/steps/deep", False, True),
        ("elsewhere", False, False),
        ("elsewhere", True, True),
        ("project/venv/lib/python3/site-packages/package", False, False),
        ("project/venv/lib/python3/site-packages/package", True, True),
        ("project/env/src/package", False, False),
        ("project-2", False, False),
    ],
)
def test_the_programs_own_files_are_those_below_its_folder_that_are_not_installed(
    monkeypatch, tmp_path, folder, marked, own
):
    """Sender and receiver have one rule, also where the program is a link into another folder."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "project/env"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/train.py").touch()
    (tmp_path / "links").mkdir()
    (tmp_path / "links/train.py").symlink_to(tmp_path / "project/train.py")
    step = imported(monkeypatch, tmp_path / folder, "a_module", marked)
    for program in ("project/train.py", "links/train.py"):
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / program))
        names = ProgramNames()
        if own:
            assert names.of_function(step, "schedule") == ("a_module", "step")
            assert names.find("a_module", "step")() == 7
            continue
        remedy = r"decorate its definition with @dt\.distribute\.coordinator\.closure"
        with pytest.raises(ProgramError, match=f"step of module a_module may not be run .*{remedy}"):
            names.find("a_module", "step")
        with pytest.raises(
            NotAFunctionError, match=rf"schedule: step \(.*a_module\.py:1\) may not .*{remedy}"
        ):
            names.of_function(step, "schedule")


def test_a_function_of_a_notebook_is_the_programs_own(monkeypatch):
    """Its `__main__` has no file, and every cell another one."""
    main = ModuleType("__main__")
    exec(compile("def cell():\n    return 1\n", "<ipython-input-1>", "exec"), main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert ProgramNames().find("__main__", "cell")() == 1


# Data

NEST = {
    "numbers": [1, -(2**63), 2.5, True, None],
    ("a", 1): (b"bytes", "text"),
    "arrays": [
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.float32(1.5),
        np.float64(2),
        np.zeros((0, 4)),
        np.array(True),
    ],
}


def same(one, two):
    if isinstance(one, np.ndarray | np.generic):
        return type(one) is type(two) and one.dtype == two.dtype and np.array_equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(two) and len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and one == two


def test_plain_data_travels_as_it_is():
    assert same(decode(encode(NEST, "a nest")), NEST)


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, 2**64, 1j, np.array(["text"]), np.array([None]), lambda: 1],
    ids=["object", "set", "too large", "complex", "texts", "objects", "function"],
)
def test_what_is_no_plain_data_is_refused(value):
    with pytest.raises(InputError, match="an argument: expected"):
        encode([value], "an argument")


def test_nests_without_end_are_refused():
    nest = []
    nest.append(nest)
    with pytest.raises(InputError, match="levels"):
        encode(nest, "an argument")


@every_row("seed", range(300))
def test_damaged_data_are_refused_or_read(seed):
    chance = np.random.default_rng(seed)
    data = bytearray(encode(NEST, "a nest"))
    for _ in range(chance.integers(1, 4)):
        data[chance.integers(len(data))] = chance.integers(256)
    with contextlib.suppress(ValueError):  # refused as no plain data; or as a text of an array
        encode(decode(bytes(data)), "what was read")
