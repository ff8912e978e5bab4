"""Models and weights in Keras's own files: `.keras` (of 2.13 and later), `.weights.h5` and `.h5`.

A layer of a file becomes the layer of that name here, with the same arguments, or reading stops with the
name of what is not there. Values are taken layer by layer in Keras's order, and every shape is compared
before an array is read. Nothing of a file is run: names are looked up, and links out of a file not followed.
The package h5py is an extra and is loaded when such a file is read.
"""

import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from dtrain.errors import CheckpointDamagedError, CheckpointError, DtrainError, SpecError
from dtrain.formats.bounded_reading import open_regular
from dtrain.learning import layers, losses, metrics, optimizers
from dtrain.learning.core.configuration import REGISTERED, CustomObjects, argument_names, snake_case
from dtrain.learning.layers import Input, Layer, SymbolicTensor
from dtrain.training import models
from dtrain.training.architecture import shown
from dtrain.types import Array

HDF5 = b"\x89HDF"
ZIP = b"PK\x03\x04"
CONFIG_MAX = 64 << 20
"""Bytes of a description; a layer has about a thousand."""
GROWTH_MAX = 100
"""How often larger a part of an archive may be than the archive: Keras does not compress."""
MODELS = {"Sequential": "sequential", "Functional": "functional", "Model": "functional"}
CONTAINERS = ("layers", "_layer_checkpoint_dependencies")
"""The group of a model's layers, by Keras's version."""
NO_EFFECT = (
    "dtype batch_input_shape batch_shape implementation unroll use_cudnn sparse ragged seed autocast fn "
    "jit_compile is_legacy_optimizer name cache_output"
)
"""Arguments that change no number here."""
NEUTRAL: tuple[Any, ...] = (None, False, 0.0, "channels_last", "float32", {}, [])


def is_of_keras(path: Path) -> bool:
    """Judge by its first bytes whether a file is an HDF5 file, or an archive with a model of Keras."""
    try:
        with open(open_regular(path), "rb") as file:
            begin = file.read(4)
    except OSError:  # whoever reads it says what is wrong
        return False
    return begin == HDF5 or (begin == ZIP and "model.weights.h5" in _names(path))


def _names(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except BadZipFile:
        return []


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
    """Yield the root of the arrays, and the description of the model, None of weights alone."""
    try:
        import h5py  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise DtrainError(
            f"{path} is a file of Keras, which needs the package h5py: `pip install -e '.[keras]'` in "
            "dtrain's clone; or write it anew in Keras with numpy.savez, and set_weights here"
        ) from None
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                most = max(CONFIG_MAX, path.stat().st_size * GROWTH_MAX)
                if any(each.file_size > most for each in archive.infolist()):
                    raise CheckpointDamagedError(
                        f"{path} cannot be used: a part of it is larger than {most} bytes"
                    )
                config = json.loads(archive.read("config.json"))
                with h5py.File(BytesIO(archive.read("model.weights.h5")), "r") as root:
                    yield root, config
            return
        with h5py.File(path, "r") as root:
            config = root.attrs.get("model_config")
            if config is not None:
                training = json.loads(root.attrs.get("training_config", "null"))
                config = {**json.loads(config), "compile_config": training}
            yield root, config
    except DtrainError:
        raise
    except (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, BadZipFile) as error:
        raise CheckpointDamagedError(
            f"{path} cannot be used: it is no sound HDF5 file or archive of Keras: {error!r:.300}"
        ) from error


def load_weights(
    path: Path, model: Any, *, by_name: bool = False, skip_mismatch: bool = False
) -> dict[str, Array]:
    """Return values for a model's variables, by the variables' names.

    Args:
        by_name: take the layers that have a name of the file's, as Keras does with a file ``.h5``.
        skip_mismatch: skip layers whose shapes are others in the file.

    Raises:
        CheckpointError: the file has other layers or shapes, or is damaged.
        DtrainError: h5py is not installed.
    """
    with _opened(path) as (root, _):
        return _values(path, root, model, by_name=by_name, skip_mismatch=skip_mismatch)


def _values(
    path: Path, root: Any, model: Any, *, by_name: bool = False, skip_mismatch: bool = False
) -> dict[str, Array]:
    found: dict[str, Array] = {}
    legacy = root.get("model_weights", root)
    pairs = (
        _legacy(path, legacy, model, by_name=by_name)
        if "layer_names" in legacy.attrs
        else _by_class(root, model)
    )
    names = {(layer, weight.name): (name, weight) for layer, weight, name in model.network.graph.weights()}
    for label, part, nodes in pairs:
        wanted = [found for (layer, _), found in names.items() if layer in _layers_of(part)]
        wanted.sort(key=lambda each: not each[1].trainable)
        shapes = [tuple(weight.shape) for _, weight in wanted]
        theirs = [tuple(node.shape) for node in nodes]
        if shapes != theirs:
            if skip_mismatch:
                continue
            raise CheckpointError(
                f"{path} does not fit this model: {label}: expected arrays of shapes {shapes}, found {theirs}"
            )
        found |= {name: _array(path, node) for (name, _), node in zip(wanted, nodes, strict=True)}
    if not found:
        raise CheckpointError(f"{path} does not fit this model: no layer of the file is one of {model.name}")
    return found


def _layers_of(part: Any) -> list[Layer]:
    return [part] if isinstance(part, Layer) else list(part.network.layers)


def _array(path: Path, node: Any) -> Array:
    if node.external or node.is_virtual or node.dtype.kind not in "fiub":
        raise CheckpointDamagedError(
            f"{path} cannot be used: {node.name} is no array of numbers within the file"
        )
    return np.asarray(node[()], np.float32 if node.dtype.kind == "f" else None)


def _inner(group: Any, name: str) -> Any:
    """Return what lies under a name in the file itself, an empty mapping if nothing does."""
    link = type(group.get(name, getlink=True)).__name__ if hasattr(group, "attrs") and name in group else ""
    return group[name] if link == "HardLink" else {}


def _by_class(group: Any, model: Any) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield layers with their arrays: groups are named by class and numbered in the order of the layers."""
    container: Any = next((found for each in CONTAINERS if (found := _inner(group, each))), {})
    counts: Counter[str] = Counter()
    for part in model.layers:
        kind = type(part).__name__
        base = snake_case(kind) if isinstance(part, Layer) else MODELS.get(kind, snake_case(kind))
        name = f"{base}_{counts[base]}" if counts[base] else base
        counts[base] += 1
        own = _inner(container, name)
        if not isinstance(part, Layer):
            yield from _by_class(own, part)
            continue
        groups = (_inner(own, "vars"), _inner(_inner(own, "cell"), "vars"))
        variables: Any = next((each for each in groups if len(each)), {})
        yield f"{part.label} ({name})", part, [variables[key] for key in sorted(variables, key=int)]


def _legacy(path: Path, group: Any, model: Any, *, by_name: bool) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield layers with their arrays: groups have the layers' names, and lists of arrays in order."""

    def text(name: Any) -> str:
        return name.decode() if isinstance(name, bytes) else str(name)

    stored = []
    for name in map(text, group.attrs["layer_names"]):
        inner = _inner(group, name)
        stored.append((name, [inner[text(each)] for each in inner.attrs["weight_names"]] if inner else []))
    names = {shown(part): name for part, name in model.network.graph.names.items()}
    parts = {names[part]: part for part in model.layers}
    if by_name:
        yield from ((name, parts[name], nodes) for name, nodes in stored if name in parts and nodes)
        return
    filled = [each for each in stored if each[1]]
    graph_layers = {layer for layer, _, _ in model.network.graph.weights()}
    own = [part for part in parts.values() if graph_layers & set(_layers_of(part))]
    if len(filled) != len(own):
        raise CheckpointError(
            f"{path} does not fit this model: expected {len(own)} layers with weights, found {len(filled)}; "
            "by_name=True takes those that have the same name"
        )
    yield from ((name, part, nodes) for part, (name, nodes) in zip(own, filled, strict=True))


# Models


def load_model(path: Path, custom_objects: CustomObjects, *, compiled: bool) -> Any:
    """Return the model of a file of Keras; its optimizer begins anew.

    Raises:
        CheckpointError: it has a layer or an argument that is not there, or holds weights alone.
        DtrainError: h5py is not installed.
    """
    with _opened(path) as (root, config):
        if config is None:
            raise CheckpointError(
                f"{path} holds weights and no model; build the model and use its load_weights"
            )
        model = _model(config, {**REGISTERED, **custom_objects})
        model.arrays = {**model.arrays, **_values(path, root, model)}
        training = config.get("compile_config")
    if compiled and training:
        _compile(model, training, custom_objects)
    return model


def _model(config: Mapping[str, Any], known: CustomObjects) -> Any:
    """Return a model, or a layer, of a config."""
    kind, arguments = config["class_name"], config["config"]
    if kind == "Sequential":
        stack = [_model(each, known) for each in arguments["layers"]]
        return models.Sequential(stack, name=arguments["name"])
    if kind in MODELS:
        return _functional(arguments, known)
    shape = arguments.get("batch_input_shape", arguments.get("batch_shape"))
    if kind == "InputLayer":
        return Input(tuple(shape[1:]), arguments["name"])
    found = _object(config, {**layers.classes(), **known}, "layer")
    if shape is not None:
        found.input_shape = tuple(shape[1:])
    return found


def _object(config: Any, known: Mapping[str, Any], what: str) -> Any:
    """Return the object of ``{"class_name", "config"}``; a name stays one."""
    if not isinstance(config, Mapping):
        return config
    kind = str(config.get("class_name")).rpartition(">")[2][:100]
    if kind == "function":
        return config["config"]
    if not isinstance(known.get(kind), type):
        raise CheckpointError(
            f"the {what} {kind} of Keras is not in dtrain; hand in a class of that name as custom_objects, "
            "or make the model here and use its load_weights(path, by_name=True)"
        )
    names = argument_names(known[kind])
    given = {**config["config"]}
    taken = {*names, *NO_EFFECT.split()}
    lost = [key for key, value in given.items() if key not in taken and value not in NEUTRAL]
    if lost:
        argument = f"{lost[0]:.100}={given[lost[0]]!r:.100}"
        raise CheckpointError(
            f"the {what} {given.get('name', kind)!s:.100} ({kind}): its argument {argument} is not in dtrain"
        )
    kept = {key: _plain(value) for key, value in given.items() if key in names and key != "dtype"}
    if isinstance(kept.get("axis"), list) and len(kept["axis"]) == 1:
        kept["axis"] = kept["axis"][0]
    return known[kind].from_config(kept)


def _plain(value: Any) -> Any:
    """Return an argument with the objects in it as this library writes them."""
    if isinstance(value, Mapping) and "class_name" in value:
        kind, inner = value["class_name"], value["config"]
        return inner if kind == "function" else {"class_name": kind, "config": _plain(inner)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if key != "dtype"}
    return value


def _functional(config: Mapping[str, Any], known: CustomObjects) -> Any:
    """Return a graph, in which each use of a layer is built after the uses whose outputs it reads."""
    parts = {each["name"]: _model(each, known) for each in config["layers"]}
    made: dict[tuple[str, int], Any] = {
        (name, 0): part for name, part in parts.items() if isinstance(part, SymbolicTensor)
    }
    waiting = [
        (each["name"], number, list(_sources(use)), _training(use))
        for each in config["layers"]
        for number, use in enumerate(each["inbound_nodes"])
    ]

    def tensor(source: tuple[str, int, int]) -> Any:
        outputs = made[source[0], source[1]]
        return outputs[source[2]] if isinstance(outputs, list) else outputs

    while waiting:
        ready = [use for use in waiting if all((name, node) in made for name, node, _ in use[2])]
        if not ready:
            raise SpecError(
                f"the model {config['name']!s:.100}: the uses of {waiting[0][0]!s:.100} read each other"
            )
        for name, number, sources, training in ready:
            inputs = [tensor(source) for source in sources]
            made[name, number] = parts[name](inputs if len(inputs) > 1 else inputs[0], training=training)
        waiting = [use for use in waiting if use not in ready]
    ends = [[tensor(each) for each in _ends(config[key])] for key in ("input_layers", "output_layers")]
    return models.Model(*(each if len(each) > 1 else each[0] for each in ends), name=config["name"])


def _ends(listed: Any) -> list[Any]:
    """Return a list of ends, also where there is one, which Keras 3 writes without the outer list."""
    return [listed] if listed and isinstance(listed[0], str) else listed


def _sources(use: Any) -> Iterator[tuple[str, int, int]]:
    """Yield what a use reads: a layer's name, the number of its use, and of the output; in both forms."""
    if isinstance(use, Mapping):
        if "keras_history" in use:
            yield tuple(use["keras_history"])
        else:
            for each in use.values():
                yield from _sources(each)
    elif isinstance(use, list) and len(use) >= 3 and isinstance(use[0], str):
        yield use[0], use[1], use[2]
    elif isinstance(use, list):
        for each in use:
            yield from _sources(each)


def _training(use: Any) -> bool | None:
    given = use.get("kwargs", {}) if isinstance(use, Mapping) else use[0][3] if len(use[0]) > 3 else {}
    found: bool | None = given.get("training")
    return found


def _compile(model: Any, config: Mapping[str, Any], custom_objects: CustomObjects) -> None:
    optimizer = config.get("optimizer_config", config.get("optimizer"))
    known = {**losses.BY_NAME, **metrics.BY_NAME, **REGISTERED, **custom_objects}

    def each(given: Any) -> Any:
        if isinstance(given, list):
            return [each(item) for item in given]
        if isinstance(given, Mapping) and "class_name" not in given:
            return {key: each(item) for key, item in given.items()}
        if isinstance(given, Mapping) and given["class_name"] == "MeanMetricWrapper":
            return metrics.get(
                {"class_name": given["config"]["fn"], "config": {"name": given["config"]["name"]}}
            )
        return _object(given, known, "loss or metric")

    model.compile(
        _object(optimizer, dict(optimizers.RULES), "optimizer"),
        each(config.get("loss")),
        each(config.get("metrics")) or (),
        config.get("loss_weights"),
        each(config.get("weighted_metrics")) or (),
    )
