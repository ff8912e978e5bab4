"""The readers of models, weights and checkpoints, for the fuzzer."""

import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from security.mutations import some_bytes, some_data, some_json
from security.readers import Case, Reader, checked, files_of, of_bytes

import dtrain as dt
from dtrain import checkpoints
from dtrain.checkpoints.manifest import _with_checksum
from dtrain.config import CheckpointSection
from dtrain.errors import DtrainError
from dtrain.learning import optimizers
from dtrain.messages import Lineage
from dtrain.parameters import placement
from dtrain.roles.chief.saver import Saver
from dtrain.roles.chief.start import Start, replicas_in_sync, restored, saved_generation, saved_rows
from dtrain.state.batch_cut import Dealt
from dtrain.state.fit_state import FitState
from dtrain.variables import VariableSpec

# Models and weights


def model_of(kind: int) -> Any:
    """Return one of three small models."""
    if kind == 0:
        model = dt.Sequential([dt.layers.Dense(3, "relu", input_shape=(2,)), dt.layers.Dense(1)])
        model.compile(dt.optimizers.Adam(), "mse", metrics=["mae"])
    elif kind == 1:
        words = dt.layers.IntegerLookup(vocabulary=[5, 6, 7], input_shape=(2,))
        model = dt.Sequential([words, dt.layers.Embedding(5, 2), dt.layers.LSTM(2), dt.layers.Dense(1)])
    else:
        x = dt.Input((4, 4, 1))
        y = dt.layers.Conv2D(2, 3)(x)
        y = dt.layers.Flatten()(dt.layers.BatchNormalization()(y))
        model = dt.Model(x, dt.layers.Dense(2)(y))
        model.compile(
            dt.optimizers.SGD(dt.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)), dt.losses.Huber()
        )
    return model


def resealed(text: bytes, header: Any, data: bytes) -> bytes:
    """Return a safetensors file of a header, with the right checksum if it has a place for one."""
    head = text if header is None else json.dumps(header, separators=(",", ":")).encode()
    head = len(head).to_bytes(8, "little") + head
    place = head.find(b'"crc32":"')
    if place < 0:
        return head + data
    blank = head[: place + 9] + b"00000000" + head[place + 17 :]
    crc32 = zlib.crc32(data, zlib.crc32(blank))
    return blank[: place + 9] + b"%08x" % crc32 + blank[place + 17 :] + data


def changed_archive(name: str, whole: bytes, chance: Random) -> bytes:
    """Change header, description or arrays of a model, and make the checksum right again."""
    length = int.from_bytes(whole[:8], "little")
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    kind = chance.random()
    if kind < 0.7:
        description = json.loads(header["__metadata__"]["description"])
        header["__metadata__"]["description"] = json.dumps(some_data(description, chance))
    elif kind < 0.9:
        header = some_data(header, chance)
    elif data:
        data = some_bytes(data, [data], chance)
    return resealed(b"", header, data)


def models(folder: Path) -> Iterator[tuple[str, Reader]]:
    """Yield the readers of models and weights."""
    sound = []
    for kind in range(3):
        model = model_of(kind)
        if kind == 0:
            model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
        model.save(folder / "model")
        sound.append({"model": (folder / "model").read_bytes()})
    yield (
        "models",
        Reader(sound, of_bytes(sound, changed_archive), lambda path: dt.load_model(path / "model")),
    )
    target = model_of(0)

    def load(path: Path) -> None:
        target.load_weights(path / "model", by_name=True, skip_mismatch=True)
        target.load_weights(path / "model")

    target.save_weights(folder / "model")
    sound = [{"model": (folder / "model").read_bytes()}, sound[0]]
    yield "weights", Reader(sound, of_bytes(sound, changed_archive), load)


# Keras's files

OF_KERAS = Path(__file__).parents[1] / "keras" / "data"


def changed_config(name: str, whole: bytes, chance: Random) -> bytes:
    """Change the description in an archive of Keras, or a part's bytes, under checksums that are right."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        parts = {each: archive.read(each) for each in archive.namelist()}
    changed = "config.json" if chance.random() < 0.9 else chance.choice(sorted(parts))
    parts[changed] = (
        some_json(parts[changed], chance)
        if changed == "config.json"
        else some_bytes(parts[changed], [whole], chance)
    )
    with zipfile.ZipFile(made := io.BytesIO(), "w") as archive:
        for each, data in parts.items():
            archive.writestr(each, data)
    return made.getvalue()


def files_of_keras() -> Iterator[tuple[str, Reader]]:
    """Yield the readers of Keras's models and weights."""
    archives = [{"model": (OF_KERAS / f"{name}.keras").read_bytes()} for name in ("chain", "graph")]
    yield (
        "models of Keras",
        Reader(archives, of_bytes(archives, changed_config), lambda path: dt.load_model(path / "model")),
    )
    target = dt.load_model(OF_KERAS / "chain.keras")
    names = "chain.weights.h5", "chain.h5"
    weights = [{"model": (OF_KERAS / name).read_bytes()} for name in names]

    def load(path: Path) -> None:
        target.load_weights(path / "model", by_name=True, skip_mismatch=True)
        target.load_weights(path / "model")

    yield "weights of Keras", Reader(weights, of_bytes(weights), load)


# Checkpoints

VARIABLES = [
    VariableSpec("kernel", (2, 3)),
    VariableSpec("scale", ()),
    VariableSpec("table", (5, 2), sparse=True),
]
PLAN = placement.plan(VARIABLES, servers=2)
COMPILED = optimizers.serialize(optimizers.Adam(0.1))
ASKED = FitState(compiled=COMPILED, optimizer=COMPILED, max_steps=20)


def saved_run(folder: Path) -> Case:
    """Return a checkpoint of a run under way."""
    names = optimizers.from_config(COMPILED).initial_slots(np.zeros(1, np.float32))
    arrays = {spec.name: np.ones(spec.shape, spec.dtype) for spec in VARIABLES}
    seen = (("worker:0", 1, 4), ("worker:1", 2, 9)), (("worker:0", 1, 5),)
    state = ASKED.but(
        version=7,
        seen=seen,
        lineage=Lineage(first_step=2, origin=3),
        dealt=Dealt(3, 24, (19, 20)),
        history={1: {0: {"loss": 0.5}}},
    )
    start = Start(state, PLAN, arrays, dict.fromkeys(names, arrays))
    saver = Saver(None, PLAN, ASKED, CheckpointSection(), folder, lambda: 7, print, sync=True)
    saver.save_start(start)
    return files_of(folder)


def changed_checkpoint(case: Case, chance: Random) -> Case:
    """Change the manifest or a header, and make all sizes and checksums right again, or change bytes."""
    manifest = next(name for name in case if name.endswith("manifest.json"))
    if chance.random() < 0.3:
        return of_bytes([case])(case, chance)
    fields = json.loads(case[manifest])
    del fields["crc32"]
    case = dict(case)
    if chance.random() < 0.3:
        name = chance.choice([name for name in case if name != manifest])
        length = int.from_bytes(case[name][:8], "little")
        header = some_data(json.loads(case[name][8 : 8 + length]), chance)
        case[name] = resealed(b"", header, case[name][8 + length :])
        fields["files"][name.rpartition("/")[2]] = {
            "nbytes": len(case[name]),
            "crc32": zlib.crc32(case[name]),
        }
    elif chance.random() < 0.9:
        fields["extra"] = some_data(fields["extra"], chance)
    else:
        fields = some_data(fields, chance)
    if isinstance(fields, dict):
        case[manifest] = _with_checksum(fields)
    return case


def read_checkpoint(path: Path) -> None:
    """Do all that a resume, an evaluator and `load_model` do with a checkpoint."""
    replicas_in_sync(path)
    for read in (
        lambda: restored(path, PLAN, ASKED),
        lambda: saved_rows(path, saved_generation(path)),
        lambda: dt.load_model(path),
    ):
        try:
            read()
        except DtrainError as error:
            checked(error)
    with checkpoints.open_checkpoint(path) as checkpoint:
        for name in checkpoint.arrays:
            checkpoint.read(name)
            if checkpoint.arrays[name].shape:
                checkpoint.look_into(name)
