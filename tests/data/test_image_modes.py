"""Images of every mode become the numbers that TensorFlow has; hidden folders and files are no images."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import dtrain as dt

GOLDEN = Path(__file__).parents[1] / "golden/p_images.npz"
"""Written by tests/peers/images_golden.py with TensorFlow 2.15.1."""


def at_most_beside(name, mode):
    """Return how far a pixel may be from TensorFlow's: other decoders of JPEG and grey of 16-bit colours round."""
    if name.endswith(".jpg"):
        return 10 if mode == "rgb" else 0
    return 1 if mode == "grayscale" and name in ("rgb16.png", "rgba16.png") else 0


def pixels_of(folder, mode):
    """Return the only image below a folder; its size is asked of nobody but the loader."""
    images = pytest.importorskip("PIL.Image")
    [path] = [path for path in folder.rglob("*") if path.is_file()]
    width, height = images.open(path).size
    [(image, _)] = dt.utils.image_dataset_from_directory(
        folder, image_size=(height, width), shuffle=False, color_mode=mode, batch_size=None
    )
    return image


def test_images_of_every_mode(tmp_path):
    golden = np.load(GOLDEN)
    wrong, seen = [], 0
    for key in golden.files:
        name, mode = key.split("/")
        file = tmp_path / name / "class" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(golden[f"{name}/file"].tobytes())
        if mode == "file":
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Pillow's advice about palettes
            found = pixels_of(tmp_path / name, mode)
        seen += 1
        beside = np.abs(found - golden[key].astype(np.float32)).max()
        if beside > at_most_beside(name, mode):
            wrong.append(f"{key}: {beside} beside TensorFlow's")
    assert not wrong
    assert seen > 50


def test_hidden_folders_are_no_classes_and_files_beside_images_are_none(tmp_path):
    images = pytest.importorskip("PIL.Image")
    for name in (".ipynb_checkpoints/1-checkpoint.png", "cat/1.JPG", "dog/1.png", "dog/deeper/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        images.new("RGB", (8, 8)).save(tmp_path / name)
    (tmp_path / "cat/._1.JPG").write_bytes(b"what macOS keeps beside a file")
    data = dt.utils.image_dataset_from_directory(tmp_path, image_size=(8, 8), shuffle=False, batch_size=None)
    assert list(data.class_names) == ["cat", "dog"]
    assert [int(label) for _, label in data] == [0, 1, 1]
    chosen = dt.utils.image_dataset_from_directory(tmp_path, class_names=["dog", "cat"])
    assert list(chosen.class_names) == ["dog", "cat"]
